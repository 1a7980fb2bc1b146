"""One job on two workstations: real ranks over gloo that step aside, come back, and lose one of their nodes."""

import json
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.cluster import EXAMPLES, Cluster, wait_for

STEPS = ("--steps", "100000", "--log-every", "1")
GANG = ("--nodes", "2", "--gpus", "2")


@pytest.fixture
def workstations(idle_cluster: Cluster, tmp_path: Path) -> Cluster:
    """A head without GPUs, and two workstations with one GPU each that share a checkpoint root."""
    idle_cluster.up("none", "--node", "head")
    for name in ("left", "right"):
        idle_cluster.add_workstation(name, "1xRTX4090", tmp_path / "shared")
    return idle_cluster


def train(cluster: Cluster, *options: str) -> str:
    """Submit a training run with one rank on each of two nodes."""
    command = ["python", str(EXAMPLES / "digits_ddp.py"), *STEPS]
    return cluster.submit(*GANG, "--launch", "ddp", *options, "--", *command)


def steps_of(log: str) -> list[int]:
    return [int(step) for step in re.findall(r"^step (\d+)", log, re.MULTILINE)]


def wait_for_training(cluster: Cluster, job: str, attempt: int) -> None:
    """Wait until the attempt has made a few steps."""

    def trains() -> bool:
        log = cluster.ebb("logs", "--attempt", str(attempt), job, code=None).out
        return len(steps_of(log)) > 3

    wait_for(f"attempt {attempt} of job {job} trains", trains, 90)


def resumed_without_a_gap(log: str) -> int:
    """The step from which the run went on; fails if it is not one that it had come to, or steps are missing."""
    [resume] = [int(step) for step in re.findall(r"^resumed from step (\d+)", log, re.MULTILINE)]
    before, after = (steps_of(part) for part in log.split("resumed from"))
    assert resume in before
    assert after == list(range(resume + 1, resume + 1 + len(after)))
    return resume


def test_a_run_on_two_nodes_is_suspended_and_goes_on(workstations: Cluster) -> None:
    job = train(workstations)
    wait_for_training(workstations, job, 1)
    shown = workstations.show(job)
    assert (shown["state"], sorted(shown["nodes"]), shown["gpus"]["allocated"]) == ("RUNNING", ["left", "right"], 2)
    workstations.ebb("suspend", "--wait", job)
    assert workstations.show(job)["suspensions"][0]["checkpointed"] == "yes"
    workstations.ebb("resume", job)
    wait_for_training(workstations, job, 2)
    log = workstations.log(job)
    assert re.findall(r"^world size (\d)", log, re.MULTILINE) == ["2", "2"]
    assert resumed_without_a_gap(log) == steps_of(log.split("resumed from")[0])[-1]
    workstations.ebb("cancel", "--wait", job)
    assert workstations.show(job)["state"] == "CANCELLED"


def rank_on(cluster: Cluster, node: str) -> psutil.Process:
    """The process of a job on that node."""
    for path in (cluster.home / "nodes" / node / "attempts").glob("*/status.json"):
        print(path)
    found = [process for process in psutil.process_iter() if _is_rank_on(process, cluster.home / "nodes" / node)]
    return found[0]


def _is_rank_on(process: psutil.Process, node_dir: Path) -> bool:
    try:
        return str(node_dir) in process.environ().get("EBB_SOCKET", "")
    except (psutil.Error, OSError):
        return False


def test_a_run_that_loses_one_rank_is_stopped_on_the_other_node_and_resumed(workstations: Cluster) -> None:
    job = train(workstations, "--retries", "1")
    wait_for_training(workstations, job, 1)
    wait_for("a checkpoint", lambda: workstations.show(job)["checkpoint"], 60)
    workstations.kill(rank_on(workstations, workstations.show(job)["nodes"][1]))
    wait_for_training(workstations, job, 2)
    [first, _] = workstations.show(job)["attempts"]
    assert "SIGKILL" in first["outcome"]
    assert first["exited"] - first["started"] < 60
    resumed_without_a_gap(workstations.log(job))


def environment_of(log: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(log.strip().splitlines()[-1])
    return facts
