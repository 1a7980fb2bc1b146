"""The line of those who wait, and whom a pass leaves out of it."""

import hypothesis.strategies as st
import pytest
from ebbtide_core import events as e
from ebbtide_core.admission.queues import DemandQueue, Queue, by_arrival
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, NodeId
from ebbtide_core.planning.draft import Draft
from hypothesis import given

from tests.core.lab import Lab

QUEUES = {"plain": Queue, "by demand": DemandQueue}
SIZES = st.integers(1, 4)


def waiting(sizes: list[int]) -> list[Job]:
    """Jobs that wait, one after the other, for so many GPUs each."""
    lab = Lab()
    return [lab.submit(gpus=size) for size in sizes]


def offered(queue: Queue, left_out: set[int]) -> list[Job]:
    """Whose turn it was in a pass that leaves out those of these sizes."""
    turns, seen = queue.turns(), []
    for job in turns:
        seen.append(job)
        if job.gpus_min in left_out:
            turns.skip_demand()
    return seen


def expected(jobs: list[Job], left_out: set[int]) -> list[Job]:
    """All of them, but of those of these sizes the first only."""
    first = {job.gpus_min: job for job in reversed(jobs)}
    return [job for job in jobs if job.gpus_min not in left_out or first[job.gpus_min] is job]


@pytest.mark.parametrize("kind", QUEUES)
@given(sizes=st.lists(SIZES, max_size=15), data=st.data())
def test_who_is_left_out_takes_along_all_that_are_alike(kind: str, sizes: list[int], data: st.DataObject) -> None:
    jobs, queue = waiting(sizes), QUEUES[kind](by_arrival)
    inside: list[Job] = []
    for _ in range(3):  # of the passes, and jobs come and go between them
        for job in data.draw(st.lists(st.sampled_from(jobs), unique_by=lambda job: job.id) if jobs else st.just([])):
            (queue.remove if job in inside else queue.add)(by_arrival(job), job)
            (inside.remove if job in inside else inside.append)(job)
        inside.sort(key=lambda job: job.sequence)
        sizes_left_out = {WHOLE * size for size in data.draw(st.sets(SIZES))}
        assert offered(queue, sizes_left_out) == expected(inside, sizes_left_out)


@pytest.mark.replaces
@pytest.mark.parametrize("policy", ["fitgpp", "fifo", "hybrid"])
def test_of_those_whom_no_node_in_service_can_run_one_of_a_kind_is_tried(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(policy, nodes="ab")
    for node in "ab":
        lab.tell(e.NodeDrained(node=NodeId(node)))
    for size in (1, 2) * 10:
        lab.submit(gpus=size)
    tried: list[str] = []
    wait = Draft.wait

    def counted(draft: Draft, job: Job) -> None:
        tried.append(job.id)
        wait(draft, job)

    monkeypatch.setattr(Draft, "wait", counted)
    lab.cluster.handle(e.SchedulingDue(), lab.now + 1.0)
    assert tried == ["1", "2"]
