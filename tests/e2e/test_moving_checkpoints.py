"""Two workstations whose disks are their own: a job's checkpoint goes with it, whole, or the job waits for it."""

import sys
from pathlib import Path

import pytest
from ebbtide import checkpoints

from tests.e2e.cluster import Cluster, wait_for

MIB = 2**20
LARGE = 600 * MIB
COUNTING = """
import ebbtide, os, sys, time
job = ebbtide.job()
state = job.load_checkpoint()
print(f"from {state.step if state else 0}", flush=True)
if state:
    assert (state.path / "big").stat().st_size == int(sys.argv[1])
def save(folder):
    (folder / "big").write_bytes(os.urandom(int(sys.argv[1])))
for step in range(state.step if state else 0, 10**6):
    job.report(step=step)
    if job.should_suspend():
        job.suspend(save)
    time.sleep(0.01)
"""


class Workstations:
    """A head without GPUs; workstations with one GPU and a disk each."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        cluster.up("none", "--node", "head")
        self.start("left")

    def start(self, name: str) -> None:
        self.cluster.add_workstation(name, "1xRTX4090", self.root(name))

    def root(self, name: str) -> Path:
        return self.cluster.home / f"disk-{name}"

    def kill(self, name: str) -> None:
        self.cluster.kill(self.cluster.daemon(name))

    def saved_on_left(self, size: int, *options: str) -> str:
        """A job that saved so many bytes on node left, whose place another has; node right is idle."""
        job = self.cluster.submit(*options, "--", sys.executable, "-c", COUNTING, str(size))
        self.cluster.wait_for_step(job, 5)
        self.cluster.ebb("suspend", "--wait", job)
        guard = self.cluster.submit("--suspend", "none", "--", "sleep", "1000")
        self.cluster.wait_for_state(guard, "RUNNING")
        self.start("right")
        return job

    def arrived(self) -> int:
        """How much of a copy has arrived on node right."""
        return sum(path.stat().st_size for path in self.root("right").rglob(".*-copy/big"))

    def half_way(self, size: int) -> None:
        wait_for("a part of the copy has arrived", lambda: size // 10 < self.arrived() or self.saved("right"))
        assert self.arrived() < size, "it was faster than this test"

    def saved(self, name: str) -> list[checkpoints.Checkpoint]:
        """The checkpoints on that disk that verify."""
        folders = {manifest.parent for manifest in self.root(name).rglob("attempt-*/step-*/MANIFEST.json")}
        return [checkpoints.verify(folder) for folder in folders]

    def goes_on_right(self, job: str) -> None:
        """It runs on node right, from what it saved on node left, which is still there."""
        shown = self.cluster.wait_for_state(job, "RUNNING")
        step = shown["suspensions"][0]["checkpointed"] == "yes" and shown["attempts"][-1]["resumed_step"]
        assert shown["nodes"] == ["right"]
        assert step >= 5
        assert [found.step for found in self.saved("left")] == [step]
        self.cluster.wait_for_step(job, step + 3)
        assert f"from {step}" in self.cluster.log(job)


@pytest.fixture
def workstations(idle_cluster: Cluster) -> Workstations:
    return Workstations(idle_cluster)


def test_a_checkpoint_goes_with_its_job_or_the_job_waits_for_it(workstations: Workstations) -> None:
    cluster = workstations.cluster
    job = workstations.saved_on_left(20 * MIB, "--move-checkpoints")
    stays = cluster.submit("--hold", "--", "true")
    cluster.ebb("resume", job)
    workstations.goes_on_right(job)
    assert "its checkpoint is copied from node left first" in cluster.ebb("story", job).out
    assert cluster.show(job)["move_checkpoints"] is True
    cluster.ebb("cancel", stays)


@pytest.mark.slow
def test_a_lost_node_with_the_only_copy_is_named(workstations: Workstations) -> None:
    cluster = workstations.cluster
    job = workstations.saved_on_left(MIB)
    cluster.ebb("resume", job)
    assert "of node left, where its checkpoint is" in cluster.ebb("explain", job).out
    workstations.kill("left")
    expected = "its checkpoint is on node left, not connected"
    wait_for("it says which node is missing", lambda: expected in cluster.ebb("explain", job).out)
    workstations.start("left")  # its other job is to be ended


@pytest.mark.slow
def test_a_copy_survives_the_death_of_the_agent_that_makes_it(workstations: Workstations) -> None:
    job = workstations.saved_on_left(LARGE, "--move-checkpoints")
    workstations.cluster.ebb("resume", job)
    workstations.half_way(LARGE)
    workstations.kill("right")
    assert workstations.saved("right") == []
    workstations.start("right")
    workstations.goes_on_right(job)
    assert workstations.cluster.show(job)["attempt"] == 2


@pytest.mark.slow
def test_a_copy_survives_the_death_of_the_agent_that_has_it(workstations: Workstations) -> None:
    job = workstations.saved_on_left(LARGE, "--move-checkpoints")
    workstations.cluster.ebb("resume", job)
    workstations.half_way(LARGE)
    workstations.kill("left")
    workstations.start("left")
    workstations.goes_on_right(job)
    assert workstations.cluster.show(job)["attempt"] == 2


@pytest.mark.slow
def test_a_node_that_goes_away_for_good_takes_the_copy_along(workstations: Workstations) -> None:
    cluster = workstations.cluster
    job = workstations.saved_on_left(LARGE, "--move-checkpoints")
    cluster.ebb("resume", job)
    workstations.half_way(LARGE)
    workstations.kill("left")
    wait_for("it gives up", lambda: cluster.show(job)["state"] == "SUSPENDED", 60)
    assert "its checkpoint is on node left, not connected" in cluster.ebb("explain", job).out
    assert workstations.saved("right") == []
    workstations.start("left")
    explained = cluster.ebb("explain", job).out
    assert "of node left, where its checkpoint is (its checkpoint could not be copied: node left is not" in explained


@pytest.mark.slow
def test_one_that_is_suspended_while_it_is_copied_never_starts(workstations: Workstations) -> None:
    cluster = workstations.cluster
    job = workstations.saved_on_left(LARGE, "--move-checkpoints")
    cluster.ebb("resume", job)
    workstations.half_way(LARGE)
    cluster.ebb("suspend", "--wait", job)
    shown = cluster.show(job)
    assert (shown["attempt"], shown["attempts"][-1]["start_time"]) == (2, None)
    cluster.ebb("resume", job)
    workstations.goes_on_right(job)
