"""Room that exists only in pieces: who is moved so that one who waits has it in one, and who is left alone."""

from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import ForeignProcess, GpuId, JobState, NodeId, SuspendMode

from tests.core.lab import DONE, Lab, gpus_of, registration, stopped

POLICIES = ("fifo", "priority", "fair-share", "fitgpp")
WAITS, STARTS, RUNS = JobState.PENDING, JobState.STARTING, JobState.RUNNING
LONG_S = 4000.0


def lab_of(nodes: str, gpus: int, policy: str = "fifo", **options: str) -> Lab:
    """Nodes that see one checkpoint root."""
    lab = Lab(policy, nodes="", **options)
    for name in nodes:
        lab.tell(registration(name, gpus, checkpoint_root_id="shared"))
    return lab


def suspend_once(lab: Lab, job: Job, cost_s: float = 5.0) -> None:
    """Have it measured what a restart costs ``job``."""
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job)
    lab.tell(e.ResumeRequested(job.id))
    lab.now += cost_s - 1.0
    lab.start(job)
    assert job.suspending.restart_cost_s is not None


def halves(lab: Lab, **spec: Any) -> tuple[Job, Job]:
    """Two jobs on half a GPU each, on one GPU each, of which the restart cost is known, and that have run for long."""
    first, filler, second = lab.running("1/2", **spec), lab.running("1/2"), lab.running("1/2", **spec)
    for job in (first, second):
        suspend_once(lab, job)
    lab.end(filler, DONE)
    assert gpus_of(first) != gpus_of(second)
    lab.now += LONG_S
    return first, second


@pytest.mark.parametrize("policy", POLICIES)
def test_a_shared_job_is_moved_to_another_s_gpu_so_that_one_is_whole(policy: str) -> None:
    lab = lab_of("a", 2, policy)
    first, second = halves(lab)
    waiting = lab.submit(1)
    assert len(stopped(lab.last)) == 1
    [moved] = [job for job in (first, second) if job.state is JobState.SUSPENDING]
    assert moved.reason == f"moved to make room for job {waiting.id}"
    assert waiting.reason == f"waiting for 1 GPU that job {moved.id} is moved from"
    lab.end(moved)
    assert waiting.state is STARTS
    assert moved.state is STARTS
    assert gpus_of(first) == gpus_of(second) != gpus_of(waiting)
    assert (moved.suspending.preemptions, moved.suspending.resizes) == (0, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_on_a_whole_gpu_is_moved_to_another_node_so_that_two_are_free_on_one(policy: str) -> None:
    lab = lab_of("ab", 2, policy)
    jobs = [lab.running(1) for _ in range(4)]
    for job in jobs:
        suspend_once(lab, job)
    here = {min(gpus_of(job))[0]: job for job in jobs}
    assert set(here) == {"a", "b"}
    for job in jobs:
        if job not in here.values():
            lab.end(job, DONE)
    lab.now += LONG_S
    waiting = lab.submit(2)
    lab.settle()
    assert waiting.state is RUNS
    assert all(job.state is RUNS for job in here.values())


def test_the_cheapest_is_moved() -> None:
    lab = lab_of("a", 2)
    first, filler, second = lab.running("1/2"), lab.running("1/2"), lab.running("1/2")
    suspend_once(lab, first, 50.0)
    suspend_once(lab, second, 5.0)
    lab.end(filler, DONE)
    lab.now += LONG_S
    lab.submit(1)
    assert stopped(lab.last) == {second.id}


def test_several_are_moved_if_one_is_not_enough_and_only_those_that_are_needed() -> None:
    lab = lab_of("ab", 3)
    jobs = [lab.running(1) for _ in range(6)]
    for job in jobs:
        suspend_once(lab, job)
    on_a = [job for job in jobs if min(gpus_of(job)) < "b"]
    on_b = [job for job in jobs if job not in on_a]
    for job in (on_a[0], on_b[0], on_b[1]):
        lab.end(job, DONE)
    lab.now += LONG_S
    waiting = lab.submit(3)
    assert len(stopped(lab.last)) == 1  # b's only one goes to a
    lab.settle()
    assert waiting.state is RUNS
    assert {gpu[0] for gpu in gpus_of(waiting)} == {"b"}


def test_a_move_that_costs_more_than_the_wait_is_not_made() -> None:
    lab = lab_of("a", 2)
    first, second = halves(lab)
    for job in (first, second):
        job.suspending.restart_cost_s = 700.0  # ten times that has not passed yet, and it is more than anybody waits
    lab.now += 10 * LONG_S
    assert lab.submit(1).state is WAITS
    assert (first.state, second.state) == (RUNS, RUNS)


def test_nobody_is_moved_if_there_will_be_room_sooner_anyway() -> None:
    lab = lab_of("a", 2)
    halves(lab, work_s=LONG_S / 2)  # on half a GPU each, they are nearly done
    assert lab.submit(1).state is WAITS
    assert stopped(lab.last) == set()


@pytest.mark.parametrize(
    "spec", [{"suspend": SuspendMode.NONE}, {"suspend": SuspendMode.SWAP}], ids=["never preempted", "swapped"]
)
def test_who_cannot_go_elsewhere_is_not_moved(spec: dict) -> None:
    lab = lab_of("a", 2)
    first, filler, second = lab.running("1/2", **spec), lab.running("1/2"), lab.running("1/2", **spec)
    for job in (first, second):
        job.suspending.restart_cost_s = 1.0
        lab.cluster.state.pools["default"].came_back.update(job)
    lab.end(filler, DONE)
    lab.now += LONG_S
    assert lab.submit(1).state is WAITS
    assert stopped(lab.last) == set()


def test_who_was_never_suspended_is_not_moved() -> None:
    lab = lab_of("a", 2)
    _, filler, _ = lab.running("1/2"), lab.running("1/2"), lab.running("1/2")
    lab.end(filler, DONE)
    lab.now += LONG_S
    assert lab.submit(1).state is WAITS
    assert stopped(lab.last) == set()


def test_who_was_moved_is_left_alone_for_minutes() -> None:
    lab = lab_of("a", 2)
    halves(lab)
    waiting = lab.submit(1)
    lab.settle()
    lab.end(waiting, DONE)
    third = lab.running("1/2")
    other = lab.submit(1)
    assert (third.state, other.state) == (RUNS, WAITS)
    assert stopped(lab.last) == set()


def test_nobody_is_moved_to_a_gpu_that_somebody_else_uses() -> None:
    lab = lab_of("a", 2)
    halves(lab)
    for gpu in ("a0", "a1"):
        lab.tell(e.ForeignUseChanged(NodeId("a"), GpuId(gpu), (ForeignProcess(7, "eve", "python", 1),)))
    assert lab.submit(1).state is WAITS
    assert stopped(lab.last) == set()


def test_who_can_read_its_checkpoint_on_one_node_only_stays_there() -> None:
    lab = Lab("fifo", nodes="ab", gpus=2)
    jobs = [lab.running(1) for _ in range(4)]
    for job in jobs:
        suspend_once(lab, job)
    for job in [next(job for job in jobs if min(gpus_of(job))[0] == node) for node in "ab"]:
        lab.end(job, DONE)
    lab.now += LONG_S
    assert lab.submit(2).state is WAITS
    assert stopped(lab.last) == set()


def test_in_the_setting_of_the_paper_fitgpp_moves_nobody() -> None:
    lab = lab_of("a", 2, "fitgpp", min_run_s="0")
    halves(lab)
    assert lab.submit(1).state is WAITS
    assert stopped(lab.last) == set()


def test_room_for_a_share_with_much_memory_is_made_in_the_same_way() -> None:
    gib = 2**30
    lab = lab_of("a", 2)
    first, filler, second = (lab.running("1/4", gpu_mem_bytes=size * gib) for size in (14, 22, 14))
    for job in (first, second):
        suspend_once(lab, job)
    lab.end(filler, DONE)
    lab.now += LONG_S
    waiting = lab.submit("1/4", gpu_mem_bytes=30 * gib)
    lab.settle()
    assert waiting.state is RUNS
    assert gpus_of(first) == gpus_of(second)
