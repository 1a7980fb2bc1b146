"""Jobs on several workstations: ranks that step aside, come back, lose one of their nodes, and are put together."""

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.cluster import EXAMPLES, Cluster, alive, wait_for
from tests.e2e.conftest import a_home
from tests.processes import every_process

GPUS = {"large": 2, "left": 1, "right": 1, "apart": 1}
GANG = ("--nodes", "2", "--gpus", "2")
SPREAD = ("--nodes", "1-3", "--gpus", "1-4")
COUNTING = (sys.executable, str(Path(__file__).with_name("rank.py")))
DIGITS = ("python", str(EXAMPLES / "digits_ddp.py"), "--steps", "100000", "--log-every", "1")


@pytest.fixture(scope="module")
def shop() -> Iterator[Cluster]:
    """A head without GPUs; three workstations that share a checkpoint root, and one that has its own."""
    with a_home() as cluster:
        cluster.up("none", "--node", "head", "--policy-option", "resize_after_s=0")
        for name in GPUS:
            start(cluster, name)
        wait_for("all nodes are up", lambda: GPUS.keys() <= cluster.nodes_up())
        yield cluster


@pytest.fixture
def workstations(shop: Cluster) -> Iterator[Cluster]:
    """The same, without jobs before and after the test, and with all GPUs: a busy machine may read one late."""
    wait_for(
        "all GPUs can be used", lambda: all(gpu["healthy"] for node in shop.facts("nodes") for gpu in node["gpus"])
    )
    yield shop
    shop.cancel_all()


def start(cluster: Cluster, name: str) -> None:
    root = cluster.home / ("apart" if name == "apart" else "checkpoints")
    cluster.start_workstation(name, f"{GPUS[name]}xRTX4090", root)


def train(cluster: Cluster, *options: str, script: tuple[str, ...] = COUNTING) -> str:
    """Submit a run with one rank per GPU."""
    return cluster.submit("--launch", "ddp", *options, "--", *script)


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


def suspended_and_resumed(cluster: Cluster, job: str) -> None:
    wait_for_training(cluster, job, 1)
    wait_for("each node has said that its part runs", lambda: cluster.show(job)["state"] == "RUNNING", 90)
    shown = cluster.show(job)
    assert (shown["state"], len(shown["nodes"]), shown["gpus"]["allocated"]) == ("RUNNING", 2, 2)
    cluster.ebb("suspend", "--wait", job)
    assert cluster.show(job)["suspensions"][0]["checkpointed"] == "yes"
    cluster.ebb("resume", job)
    wait_for_training(cluster, job, 2)
    log = cluster.log(job)
    assert re.findall(r"^world size (\d)", log, re.MULTILINE) == ["2", "2"]
    assert resumed_without_a_gap(log) == steps_of(log.split("resumed from")[0])[-1]
    cluster.ebb("cancel", "--wait", job)
    assert cluster.show(job)["state"] == "CANCELLED"


def test_a_run_on_two_nodes_is_suspended_and_goes_on(workstations: Cluster) -> None:
    suspended_and_resumed(workstations, train(workstations, *GANG))


@pytest.mark.slow
def test_so_is_one_whose_ranks_train_together(workstations: Cluster) -> None:
    suspended_and_resumed(workstations, train(workstations, *GANG, script=DIGITS))


def put_together(cluster: Cluster, job: str) -> None:
    """It has four ranks on three nodes, then two on one, and loses no step."""
    wait_for_training(cluster, job, 1)
    shown = cluster.show(job)
    assert (sorted(shown["nodes"]), shown["gpus"]["allocated"]) == (["large", "left", "right"], 4)
    cluster.ebb("resize", "--gpus", "2", job)
    wait_for_training(cluster, job, 2)
    shown = cluster.show(job)
    assert (shown["nodes"], shown["gpus"]["allocated"], shown["resizes"]) == (["large"], 2, 1)
    log = cluster.log(job)
    assert re.findall(r"^world size (\d)", log, re.MULTILINE) == ["4", "2"]
    resumed_without_a_gap(log)


def test_free_gpus_of_three_nodes_are_put_together_and_given_back(workstations: Cluster) -> None:
    put_together(workstations, train(workstations, *SPREAD))


@pytest.mark.slow
def test_so_they_are_for_ranks_that_train_together(workstations: Cluster) -> None:
    put_together(workstations, train(workstations, *SPREAD, script=DIGITS))


def processes_on(cluster: Cluster, node: str) -> list[psutil.Process]:
    """The job's processes on that node, which its supervisor's socket tells."""
    folder = str(cluster.home / "nodes" / node)
    found = []
    for process in every_process():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("EBB_SOCKET", "").startswith(folder):
                found.append(process)
    return found


def resumed_after_a_loss(cluster: Cluster, job: str, outcome: str) -> None:
    wait_for_training(cluster, job, 2)
    shown = cluster.wait_for_state(job, "RUNNING")  # one node's rank may print before the other node has reported
    first, second = shown["attempts"]
    assert outcome in first["outcome"]
    assert (shown["attempt"], len(second["nodes"])) == (2, 2)
    resumed_without_a_gap(cluster.log(job))


def test_a_run_that_loses_one_rank_is_stopped_on_the_other_node_and_resumed(workstations: Cluster) -> None:
    job = train(workstations, *GANG, "--retries", "1", "--grace", "10m")
    wait_for("a checkpoint", lambda: workstations.show(job)["checkpoint"], 90)
    [other], [victim] = (processes_on(workstations, node) for node in workstations.show(job)["nodes"])
    workstations.kill(victim)
    wait_for("the other node's rank is gone, long before its grace period ends", lambda: not alive(other))
    resumed_after_a_loss(workstations, job, "failed with signal SIGKILL")


def test_a_run_whose_node_breaks_down_is_resumed_without_a_charge_once_that_is_proven(workstations: Cluster) -> None:
    job = train(workstations, *GANG)
    wait_for("a checkpoint", lambda: workstations.show(job)["checkpoint"], 90)
    home, away = workstations.show(job)["nodes"]
    [rank], [other] = processes_on(workstations, away), processes_on(workstations, home)
    for process in (workstations.daemon(away), rank.parent(), rank):
        assert process is not None
        workstations.kill(process)
    assert alive(other)  # nothing proves yet that the rank on the other node is dead
    start(workstations, away)
    wait_for("the other node's rank is gone", lambda: not alive(other))
    resumed_after_a_loss(workstations, job, "interrupted")


def environments(cluster: Cluster, folder: Path, *options: str) -> list[dict[str, str]]:
    """The environment of every rank of a job, in their order."""
    job = train(cluster, *options, script=("sh", "-c", f"env > {folder}/$RANK"))
    cluster.wait_for_state(job, "COMPLETED")
    written = [path.read_text().splitlines() for path in sorted(folder.iterdir())]
    return [dict(line.split("=", 1) for line in lines if "=" in line) for lines in written]


def test_every_node_gets_its_part_of_the_environment(workstations: Cluster, tmp_path: Path) -> None:
    names = ("EBB_NODE_RANK", "EBB_NUM_NODES", "EBB_GPU_COUNT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    left, right = environments(workstations, tmp_path, *GANG)
    assert [left[name] for name in names] == ["0", "2", "1", "0", "2", "0", "1"]
    assert [right[name] for name in names] == ["1", "2", "1", "1", "2", "0", "1"]
    assert left["MASTER_ADDR"] == right["MASTER_ADDR"] == "127.0.0.1"
    assert left["MASTER_PORT"] == right["MASTER_PORT"]
    assert 20000 <= int(left["MASTER_PORT"]) <= 31999


def test_ranks_count_on_over_unequal_nodes_as_under_torchrun(workstations: Cluster, tmp_path: Path) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "EBB_GPU_COUNT")
    ranks = environments(workstations, tmp_path, "--nodes", "1-3", "--gpus", "4")
    assert ["".join(rank[name] for name in names) for rank in ranks] == ["0402002", "1412002", "2401111", "3401221"]
    assert len({rank["MASTER_PORT"] for rank in ranks}) == 1


def test_a_command_that_does_not_exist_fails_on_the_first_node(workstations: Cluster) -> None:
    job = workstations.submit(*GANG, "--hold", "--", "no-such-program")
    workstations.ebb("release", job)
    shown = workstations.wait_for_state(job, "FAILED")
    assert "not found" in shown["reason"]


def test_without_a_checkpoint_root_in_common_it_waits_and_explain_says_so(workstations: Cluster) -> None:
    job = workstations.submit("--nodes", "4", "--gpus", "4", "--", "true")
    assert "no 4 of the connected nodes have them and share a checkpoint root" in workstations.ebb("explain", job).out
    refused = workstations.ebb("submit", "--nodes", "2", "--gpus", "3", "--", "true", code=2)
    assert "3 GPUs cannot be divided equally among 2 nodes" in refused.err
