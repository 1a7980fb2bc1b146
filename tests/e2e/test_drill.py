"""`ebb drill` on real jobs: one that can be trusted, one that lies, one that is swapped."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import EXAMPLES, Cluster, wait_for

LIES = """
import signal, sys, time, ebbtide
job = ebbtide.job()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
for step in range(1, 100_000):
    job.report(step=step)
    time.sleep(0.01)
"""
"""Exits with 0 when it is asked to leave, as one that has saved would, but it has not."""
COUNTS = """
import itertools, time
for step in itertools.count():
    print(f"step {step}", flush=True)
    time.sleep(0.01)
"""
SAVES = """
import time, ebbtide
job = ebbtide.job()
state = job.load_checkpoint()
for step in range(state.step if state else 0, 100_000):
    time.sleep(0.01)
    job.report(step=step + 1, total=100_000)
    if job.should_suspend():
        job.suspend(lambda folder: (folder / "n").write_text(str(step + 1)))
"""


PREPARES = "{guard}python -c 'import time\nwhile time.process_time() < 2: pass'{mark}\npython train.py\n"
"""A job script of two commands, of which the first computes for 2 s."""


def drill(cluster: Cluster, job: str, code: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.ebb("drill", "--json", job, code=code).out)
    return found


@pytest.mark.slow
def test_a_drill_tells_who_can_be_trusted_from_who_lies(cluster: Cluster) -> None:
    honest = cluster.submit("--", "python", str(EXAMPLES / "digits.py"), "--steps", "100000")
    liar = cluster.submit("--", "python", "-c", LIES)
    silent = cluster.submit("--", "python", "-c", COUNTS)
    swapped = cluster.submit("--suspend", "swap", "--mem", "64MiB", "--", "python", "-c", COUNTS)
    unwilling = cluster.submit("--cpu-only", "--suspend", "none", "--", "sleep", "600")

    cluster.wait_for_step(liar, 20)
    found = drill(cluster, liar, 1)
    assert (found["verdict"], found["checkpointed"], found["steps"]["after"]) == ("not trustworthy", "unknown", 1)
    assert cluster.show(liar)["proved"] is False

    wait_for("it counts", lambda: "step 9\n" in cluster.log(silent))
    found = drill(cluster, silent, 1)
    assert (found["verdict"], found["log"]["after"].splitlines()[0]) == ("not trustworthy", "step 0")

    wait_for("it counts", lambda: "step 9\n" in cluster.log(swapped))
    found = drill(cluster, swapped, 0)
    assert (found["verdict"], cluster.show(swapped)["attempt"]) == ("trustworthy", 1)

    cluster.wait_for_state(unwilling, "RUNNING")
    assert "--suspend none" in cluster.ebb("drill", unwilling, code=1).err

    cluster.wait_for_step(honest, 20)
    found = drill(cluster, honest, 0)
    shown = cluster.show(honest)
    assert (found["verdict"], found["checkpointed"], shown["state"]) == ("trustworthy", "yes", "RUNNING")
    steps = found["steps"]
    assert 20 <= steps["before"] <= steps["checkpoint"] <= steps["after"]
    assert found["parts_s"].keys() == {"save", "exit", "free", "queue", "start", "first_progress", "total"}
    assert (shown["attempt"], shown["proved"], shown["preemptions"]) == (2, True, 0)
    assert shown["attempts"][0]["gpu_uuids"] == shown["attempts"][1]["gpu_uuids"]
    assert 0 < shown["save_s"] < shown["restart_cost_s"]


@pytest.mark.slow
def test_a_measured_job_grows_only_while_that_is_worth_a_restart(idle_cluster: Cluster, tmp_path: Path) -> None:
    cluster = idle_cluster
    cluster.up("2xA100-40GB", "--policy", "fifo", "--policy-option", "resize_after_s=0")
    blocking = cluster.submit("--", "sleep", "600")
    job = cluster.submit("--gpus", "1-2", "--", "python", "-c", SAVES)
    cluster.wait_for_step(job, 20)
    assert drill(cluster, job, 0)["verdict"] == "trustworthy"
    cost = cluster.show(job)["restart_cost_s"]
    cluster.ebb("cancel", "--now", "--wait", blocking)
    # A thousand seconds are left: half of them are worth what was measured, once the job has run for ten times that.
    grown = wait_for("it grows", lambda: (shown := cluster.show(job))["resizes"] == 1 and shown)
    assert grown["suspensions"][1]["requested"] - grown["suspensions"][0]["resumed"] > 9 * cost


@pytest.mark.slow
def test_a_drill_finds_a_script_that_does_its_first_command_again(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    done = '[ -e "$EBB_OUTPUT_DIR/done" ] || { ', '; touch "$EBB_OUTPUT_DIR/done"; }'
    for name, guard, mark in (("again", "", ""), ("once", *done)):
        script = tmp_path / f"{name}.sh"
        script.write_text(PREPARES.format(guard=guard, mark=mark))
        job = cluster.submit("--cpu-only", "--workdir", str(tmp_path), str(script))
        cluster.wait_for_step(job, 20)
        found = drill(cluster, job, 0)
        assert (found["verdict"], found["repeated_cpu_s"] is not None) == ("trustworthy", name == "again")
        cluster.ebb("cancel", "--now", job)
