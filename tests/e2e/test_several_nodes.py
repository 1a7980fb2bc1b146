"""One job on two workstations: real ranks over gloo that step aside, come back, and lose one of their nodes."""

import contextlib
import re
from pathlib import Path

import psutil
import pytest

from tests.e2e.cluster import EXAMPLES, Cluster, alive, wait_for

STEPS = ("--steps", "100000", "--log-every", "1")
GANG = ("--nodes", "2", "--gpus", "2")


@pytest.fixture
def workstations(idle_cluster: Cluster) -> Cluster:
    """A head without GPUs, and two workstations with one GPU each that share a checkpoint root."""
    idle_cluster.up("none", "--node", "head")
    for name in ("left", "right"):
        idle_cluster.add_workstation(name, "1xRTX4090", idle_cluster.home / "checkpoints")
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


def processes_on(cluster: Cluster, node: str) -> list[psutil.Process]:
    """The job's processes on that node, which its supervisor's socket tells."""
    folder = str(cluster.home / "nodes" / node)
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("EBB_SOCKET", "").startswith(folder):
                found.append(process)
    return found


def resumed_after_a_loss(cluster: Cluster, job: str, outcome: str) -> None:
    wait_for_training(cluster, job, 2)
    shown = cluster.show(job)
    first, second = shown["attempts"]
    assert outcome in first["outcome"]
    assert (shown["state"], shown["attempt"], len(second["nodes"])) == ("RUNNING", 2, 2)
    resumed_without_a_gap(cluster.log(job))


def test_a_run_that_loses_one_rank_is_stopped_on_the_other_node_and_resumed(workstations: Cluster) -> None:
    job = train(workstations, "--retries", "1", "--grace", "10m")
    wait_for("a checkpoint", lambda: workstations.show(job)["checkpoint"], 90)
    [victim] = processes_on(workstations, workstations.show(job)["nodes"][1])
    [other] = processes_on(workstations, workstations.show(job)["nodes"][0])
    workstations.kill(victim)
    wait_for("the other node's rank is gone, long before its grace period ends", lambda: not alive(other), 20)
    resumed_after_a_loss(workstations, job, "failed with signal SIGKILL")


def test_a_run_whose_node_breaks_down_is_resumed_without_a_charge_once_that_is_proven(workstations: Cluster) -> None:
    job = train(workstations)
    wait_for("a checkpoint", lambda: workstations.show(job)["checkpoint"], 90)
    home, away = workstations.show(job)["nodes"]
    [rank], [other] = processes_on(workstations, away), processes_on(workstations, home)
    for process in (workstations.daemon(away), rank.parent(), rank):
        assert process is not None
        workstations.kill(process)
    assert alive(other)  # nothing proves yet that the rank on the other node is dead
    workstations.add_workstation(away, "1xRTX4090", workstations.home / "checkpoints")
    wait_for("the other node's rank is gone", lambda: not alive(other), 20)
    resumed_after_a_loss(workstations, job, "interrupted")


def test_every_node_gets_its_part_of_the_environment(workstations: Cluster, tmp_path: Path) -> None:
    names = ("EBB_NODE_RANK", "EBB_NUM_NODES", "EBB_GPU_COUNT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    script = f"env > {tmp_path}/node-$EBB_NODE_RANK"
    job = workstations.submit(*GANG, "--launch", "ddp", "--", "sh", "-c", script)
    workstations.wait_for_state(job, "COMPLETED")
    written = [(tmp_path / f"node-{rank}").read_text().splitlines() for rank in range(2)]
    left, right = (dict(line.split("=", 1) for line in lines if "=" in line) for lines in written)
    assert [left[name] for name in names] == ["0", "2", "1", "0", "2", "0", "1"]
    assert [right[name] for name in names] == ["1", "2", "1", "1", "2", "0", "1"]
    assert left["MASTER_ADDR"] == right["MASTER_ADDR"] == "127.0.0.1"
    assert left["MASTER_PORT"] == right["MASTER_PORT"]
    assert 20000 <= int(left["MASTER_PORT"]) <= 31999


def test_a_command_that_does_not_exist_fails_on_the_first_node(workstations: Cluster) -> None:
    job = workstations.submit(*GANG, "--", "no-such-program")
    shown = workstations.wait_for_state(job, "FAILED")
    assert "not found" in shown["reason"]


def test_without_a_checkpoint_root_in_common_it_waits_and_explain_says_so(
    idle_cluster: Cluster, tmp_path: Path
) -> None:
    idle_cluster.up("none", "--node", "head")
    for name in ("left", "right"):
        idle_cluster.add_workstation(name, "1xRTX4090", tmp_path / name)
    job = idle_cluster.submit(*GANG, "--", "true")
    assert "share a checkpoint root" in idle_cluster.ebb("explain", job).out
    refused = idle_cluster.ebb("submit", "--nodes", "2", "--gpus", "3", "--", "true", code=2)
    assert "3 GPUs cannot be divided equally among 2 nodes" in refused.err
