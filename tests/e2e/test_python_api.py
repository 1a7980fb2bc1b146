"""Notebooks, each a Python process of its own, use a real cluster through `ebbtide.cluster`."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.e2e.cluster import EXAMPLES, Cluster, wait_for

PATIENCE_S = 240.0
TRAIN = """
import time
import ebbtide
from ebbtide.cluster import Cluster

def train(steps, stays=False):
    job = ebbtide.job()
    state = job.load_checkpoint()
    first = state.step if state else 0
    for step in range(first, steps):
        time.sleep(0.5 if stays and not first else 0.02)
        job.report(step=step + 1, total=steps, loss=1 / (step + 1))
        if job.should_suspend():
            job.suspend(lambda directory: (directory / "state").write_text("saved"))
    return {"steps": steps, "attempt": job.attempt, "went on": first > 0, "gpus": job.gpu_count}

cluster = Cluster.connect()
"""


def start(cluster: Cluster, folder: Path, code: str) -> "subprocess.Popen[str]":
    """Run a notebook's cells in that directory."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.Popen(command, env=cluster.environment, cwd=folder, stdout=pipe, stderr=pipe, text=True)


def run(cluster: Cluster, folder: Path, code: str, status: int = 0) -> str:
    """Run a notebook's cells to their end; what they printed."""
    with start(cluster, folder, code) as notebook:
        out, err = notebook.communicate(timeout=PATIENCE_S)
    assert notebook.returncode == status, err
    return out if status == 0 else err


@pytest.mark.timeout(300)
def test_a_notebook_suspends_a_function_resumes_it_and_gets_its_result(shared_cluster: Cluster, tmp_path: Path) -> None:
    printed = run(
        shared_cluster,
        tmp_path,
        TRAIN
        + """
job = cluster.submit(train, 100, True, gpus=1)
for facts in job.watch():
    if (facts["progress"]["step"] or 0) >= 5:
        break
print(job.progress.step >= 5, job.progress.total)
job.suspend(wait=True)
print(job.state)
job.resume(wait=True)
print(job.result())
print(job.id)
""",
    ).splitlines()
    assert printed[:2] == ["True 100", "SUSPENDED"]
    assert printed[2] == "{'steps': 100, 'attempt': 2, 'went on': True, 'gpus': 1}"
    shown = shared_cluster.show(printed[3])
    assert (shown["state"], shown["name"], shown["progress"]["step"]) == ("COMPLETED", "train", 100)
    assert [suspension["checkpointed"] for suspension in shown["suspensions"]] == ["yes"]


@pytest.mark.timeout(300)
def test_an_exception_comes_back_with_its_traceback(shared_cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "tides.py").write_text("def height(moon):\n    return 1 / moon\n")
    (tmp_path / "notebook.py").write_text(
        "import tides\nfrom ebbtide.cluster import Cluster\n\n"
        "def tomorrow(moon):\n    return tides.height(moon)\n\n"
        "cluster = Cluster.connect()\n"
        "print(cluster.submit(tomorrow, 4, gpus=1).result())\n"
        "cluster.submit(tomorrow, 0, gpus=1).result()\n"
    )
    done = subprocess.run(
        [sys.executable, "notebook.py"], env=shared_cluster.environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "0.25\n"), done.stderr
    in_the_job, _, here = done.stderr.partition("The above exception was the direct cause of the following exception:")
    assert f'File "{tmp_path}/notebook.py", line 5, in tomorrow\n    return tides.height(moon)' in in_the_job
    assert f'File "{tmp_path}/tides.py", line 2, in height\n    return 1 / moon' in in_the_job
    assert here.rstrip().endswith("ZeroDivisionError: division by zero")
    newest = shared_cluster.facts("ls", "--all")[-1]
    assert (newest["state"], newest["exit_code"]) == ("FAILED", 1)
    assert "ZeroDivisionError: division by zero" in shared_cluster.log(newest["id"])


@pytest.mark.timeout(400)
def test_jobs_are_found_again_after_the_kernel_has_died(shared_cluster: Cluster, tmp_path: Path) -> None:
    first = start(
        shared_cluster,
        tmp_path,
        TRAIN
        + """
job = cluster.submit(train, 60, gpus=1, name="before")
jobs = cluster.map(lambda number: number * number, range(3), gpus=0.5, name="squares")
print("submitted", flush=True)
print(job.result(), jobs.result())
""",
    )
    with first:
        assert first.stdout is not None
        assert first.stdout.readline() == "submitted\n"
        first.send_signal(signal.SIGKILL)
    printed = run(
        shared_cluster,
        tmp_path,
        """
from ebbtide.cluster import Cluster
cluster = Cluster.connect()
[job] = cluster.jobs(name="before", all=True)
[squares] = cluster.jobs(name="squares", all=True)
print(job.wait(), job.result()["steps"], squares.result(), len(squares))
print(cluster.job(job.id).result() == job.result())
""",
    )
    assert printed == "COMPLETED 60 [0, 1, 4] 3\nTrue\n"


@pytest.mark.timeout(400)
def test_an_executor_maps_and_cancels(shared_cluster: Cluster, tmp_path: Path) -> None:
    printed = run(
        shared_cluster,
        tmp_path,
        TRAIN
        + """
with cluster.executor(gpus=0.5) as executor:
    print(list(executor.map(pow, range(4), [3] * 4)))
    future = executor.submit(train, 100_000)
    print(future.job.progress, future.cancel(), future.job.wait())
""",
    )
    assert printed == "[0, 1, 8, 27]\nNone True CANCELLED\n"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_executor_maps_over_a_hundred_inputs(shared_cluster: Cluster, tmp_path: Path) -> None:
    code = """
    from ebbtide.cluster import Cluster
    with Cluster.connect().executor(gpus=0.25) as executor:
        print(sum(executor.map(lambda number: number * number, range(100))))
    """
    with start(shared_cluster, tmp_path, code) as notebook:
        out, err = notebook.communicate(timeout=800)
    assert (out, notebook.returncode) == ("328350\n", 0), err


@pytest.mark.timeout(300)
def test_a_function_waits_for_a_node_that_has_its_directory(shared_cluster: Cluster, tmp_path: Path) -> None:
    """The node is this machine, which has it; once it is gone, the job does not start, and says why."""
    code = TRAIN + "print(cluster.submit(train, 1, hold=True).id)"
    job = run(shared_cluster, tmp_path, code).strip()
    folder, _ = shared_cluster.show(job)["needs"]["require_paths"]
    away = Path(folder).rename(tmp_path / "away")
    shared_cluster.ebb("release", job)

    def excluded() -> str:
        return " ".join(shared_cluster.show(job)["excluded_nodes"].values())

    assert f"{folder} does not exist here" in wait_for("the node is left out", excluded, 120)
    away.rename(folder)
    shared_cluster.ebb("release", job)
    shared_cluster.wait_for_state(job, "COMPLETED", seconds=120)


@pytest.mark.timeout(600)
def test_a_sweep_is_stopped_and_taken_up_again(shared_cluster: Cluster) -> None:
    command = [sys.executable, str(EXAMPLES / "sweep.py")]
    with subprocess.Popen(command, env=shared_cluster.environment, stdout=subprocess.PIPE, text=True) as sweep:
        assert sweep.stdout is not None
        array = sweep.stdout.readline().split()[1]
        sweep.send_signal(signal.SIGKILL)
    again = [*command, "--again", array]
    done = subprocess.run(again, env=shared_cluster.environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"array {array} with 6 tasks"
    assert sorted(lines[1:7]) == [f"{array}.{index} COMPLETED" for index in range(6)]
    assert lines[7].startswith("best: lr ")
