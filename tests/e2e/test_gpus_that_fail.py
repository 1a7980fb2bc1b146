"""GPUs that are lost or not given back: who goes on where, and what is never handed out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from ebbtide_agent.processes import procfs

from tests.e2e.cluster import ANY_ACCOUNT, Cluster, alive, wait_for

GIB = 2**30
# Has a child that shares nothing with it any more: no parent, no session, no lock, no variable.
HAS_A_CHILD = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    print(os.getpid(), flush=True)
    os.closerange(3, 256)
    os.execve(sys.executable, [sys.executable, "-Sc", "import time; time.sleep(1000)"], {})
time.sleep(1000)
"""


class Gpus:
    """The fake GPUs of one node, and what befalls them."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self._folder = cluster.home / "nodes" / node / "gpus"
        self.uuids = [gpu["uuid"] for gpu in json.loads((self._folder / "gpus.json").read_text())["gpus"]]

    def faults(self, **faults: object) -> None:
        self._write("faults.json", faults)

    def hold(self, pid: int, gpu: str, mem_bytes: int) -> None:
        """Have the process hold so much of the GPU."""
        stat = procfs.read_stat(pid)
        assert stat is not None
        content = {"pid": pid, "starttime": stat.starttime, "gpus": {gpu: mem_bytes}}
        self._write(f"processes/{pid}.json", content)

    def _write(self, name: str, content: object) -> None:
        draft = self._folder / f".draft-{os.getpid()}"
        draft.write_text(json.dumps(content))
        draft.replace(self._folder / name)


def jobs_pids(cluster: Cluster, job: str) -> set[int]:
    """The processes on GPUs that are known as the job's."""
    gpus = [gpu for node in cluster.facts("nodes") for gpu in node["gpus"]]
    return {process["pid"] for gpu in gpus for process in gpu["processes"] if process["id"] == job}


def held_gpu(cluster: Cluster, job: str) -> str:
    (gpu,) = cluster.show(job)["gpu_uuids"]
    return str(gpu)


@pytest.mark.slow
def test_jobs_of_lost_gpus_go_on_elsewhere_and_others_do_not_notice(idle_cluster: Cluster, tmp_path: Path) -> None:
    cluster, now = idle_cluster, tmp_path / "now"
    cluster.up("5xT4", "--node", "ws")
    gpus = Gpus(cluster, "ws")
    fails = f'test "$EBB_ATTEMPT" = 1 || exit 0; until test -e {now}; do sleep 0.02; done; exit 1'
    failing, stopped, other = (
        cluster.submit("--retries", "0", "--", "sh", "-c", command) for command in (fails, *2 * ("sleep 1000",))
    )
    before = {job: cluster.wait_for_state(job, "RUNNING") for job in (failing, stopped, other)}
    lost = {held_gpu(cluster, failing), held_gpu(cluster, stopped)}
    gpus.faults(lost=sorted(lost))
    now.touch()
    assert cluster.wait_for_state(failing, "COMPLETED", "FAILED")["state"] == "COMPLETED"
    wait_for("the other goes on", lambda: cluster.show(stopped)["attempt"] == 2)
    assert "is lost" in cluster.wait_for_state(stopped, "RUNNING")["suspensions"][0]["reason"]
    assert held_gpu(cluster, stopped) not in lost
    assert cluster.show(other)["attempts"] == before[other]["attempts"]
    gpus.faults()
    wait_for("they are used again", lambda: all(gpu["healthy"] for gpu in cluster.facts("nodes")[0]["gpus"]))


def test_a_child_that_outlives_its_job_is_ended_before_the_gpu_is_given_out_again(idle_cluster: Cluster) -> None:
    cluster = idle_cluster
    cluster.up("1xT4", "--node", "ws")
    gpus = Gpus(cluster, "ws")
    job = cluster.submit("--", sys.executable, "-Sc", HAS_A_CHILD)
    first = cluster.wait_for_state(job, "RUNNING")["attempts"][0]["pid"]
    child = psutil.Process(int(wait_for("its child runs", lambda: cluster.log(job).strip())))
    gpus.hold(child.pid, gpus.uuids[0], 10 * GIB)
    wait_for("it is known as the job's", lambda: child.pid in jobs_pids(cluster, job))
    cluster.kill(psutil.Process(first).parent())
    wait_for("it goes on", lambda: cluster.show(job)["attempt"] == 2)
    assert not alive(child)


@pytest.mark.slow
def test_memory_that_nobody_has_is_never_given_out_and_the_event_says_when_it_is_over(idle_cluster: Cluster) -> None:
    cluster = idle_cluster
    cluster.up("1xT4", "--node", "ws")
    gpus = Gpus(cluster, "ws")
    gpus.faults(release_after_s={gpus.uuids[0]: 50})
    job = cluster.submit("--gpu-mem", "10GiB", "--", "sleep", "1000")
    cluster.wait_for_state(job, "RUNNING")
    wait_for("it is seen", lambda: cluster.facts("nodes")[0]["gpus"][0]["processes"])
    cluster.ebb("cancel", "--now", job)
    follower = cluster.submit("--", "sleep", "1000")
    reason = wait_for("it is set aside", lambda: cluster.facts("nodes")[0]["gpus"][0]["unhealthy_reason"])
    assert reason == f"job {job} ended, but 10.0 GiB are in use, and no process has them"
    assert cluster.show(follower)["state"] == "PENDING"
    gpus.faults()
    cluster.wait_for_state(follower, "RUNNING")
    assert "is usable again" in cluster.ebb("events").out


@pytest.mark.slow
def test_the_owner_of_a_foreign_process_is_told(idle_cluster: Cluster, tmp_path: Path) -> None:
    cluster = idle_cluster
    cluster.up("1xT4", "--node", "first")
    told = tmp_path / "told"
    command = f'{sys.executable} -Sc \'import os; open("{told}", "w").write(os.environ["EBB_FOREIGN_PID"])\''
    log = (tmp_path / "agent.log").open("ab")
    with log:
        arguments = ["agent", "--name", "ws", "--gpus", "1xT4", *ANY_ACCOUNT, "--on-foreign", command]
        agent = subprocess.Popen(
            [sys.executable, "-m", "ebbtide_cli.main", *arguments], env=cluster.environment, stdout=log, stderr=log
        )
    cluster.agents.append(agent)
    wait_for("it is up", lambda: "ws" in cluster.nodes_up())
    gpus = Gpus(cluster, "ws")
    with subprocess.Popen(["sleep", "1000"]) as foreign:
        gpus.hold(foreign.pid, gpus.uuids[0], GIB)
        wait_for("its owner is told", told.exists)
        assert wait_for("it is written", told.read_text) == str(foreign.pid)
        assert alive(psutil.Process(foreign.pid))
        foreign.kill()
