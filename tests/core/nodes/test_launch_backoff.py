"""Failing costs time: launches that fail wait longer and longer, and then the node is left out."""

import itertools

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.commands import Launch, WakeAt
from ebbtide_core.model import limits
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, JobId, NodeId, RefusalCause
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.explain import explain
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.lab import registration
from tests.drawing import share_of

JOB = JobId("1")
SUBMITTED = e.JobSubmitted(JOB, JobSpec(command=("x",), workdir="/", gpus_min=WHOLE, gpus_max=WHOLE), "eve")
WHY = "it cannot be done"
CAUSES = (RefusalCause.NODE, RefusalCause.NOT_MOVED)


class World:
    """Nodes on which every launch fails at once, and time."""

    def __init__(self, nodes: int) -> None:
        self.cluster = Cluster(create_policy("fitgpp", {}))
        self.now = 1000.0
        self.launched: list[tuple[float, NodeId]] = []
        self.wakes: list[float] = []
        for number in range(nodes):
            self.tell(registration(f"n{number}"), cause=None)

    def tell(self, event: e.Event, cause: RefusalCause | None) -> None:
        events = [event]
        while events:
            out = self.cluster.handle(events.pop(0), self.now)
            if not events:
                out += self.cluster.handle(e.SchedulingDue(), self.now)
            for command in out:
                if isinstance(command, WakeAt):
                    self.wakes.append(command.time)
                if isinstance(command, Launch):
                    self.launched.append((self.now, command.nodes[0]))
                    if cause is not None:
                        events.append(e.AttemptRefused(JOB, command.attempt, cause, WHY))

    def run(self, until: float, causes: "itertools.cycle[RefusalCause]") -> None:
        for _ in range(100_000):
            due = [time for time in self.wakes if time <= until]
            if not due:
                return
            self.now = max(self.now, min(due))
            self.wakes = [time for time in self.wakes if time > self.now]
            self.tell(e.SchedulingDue(), next(causes))
        raise AssertionError("it goes on for ever")


@given(nodes=st.integers(1, 5), causes=st.lists(st.sampled_from(CAUSES), min_size=1, max_size=6))
@settings(max_examples=share_of(60), deadline=None)
def test_however_launches_fail_there_are_only_so_many_in_a_time(nodes: int, causes: list[RefusalCause]) -> None:
    world, order = World(nodes), itertools.cycle(causes)
    world.tell(SUBMITTED, next(order))
    world.run(1000.0 + 3600.0, order)
    assert 3 <= len(world.launched) <= 80
    times = [time for time, _ in world.launched]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    least = [0.0, *(min(2.0**number, 60.0) for number in range(len(pauses)))]
    assert all(pause >= few for pause, few in zip(pauses, least, strict=False))
    for node in {node for _, node in world.launched}:
        here = [time for time, at in world.launched if at == node]
        assert all(later - first >= limits.LEFT_OUT_S for first, later in itertools.pairwise(here[2:]))


def failed(times: int, nodes: int = 1) -> World:
    world, causes = World(nodes), itertools.cycle(CAUSES)
    world.tell(SUBMITTED, CAUSES[1])
    while len(world.launched) < times:
        world.run(min(world.wakes), causes)
    return world


def test_explain_says_that_a_node_is_left_out_and_why() -> None:
    world = failed(3)
    job = world.cluster.state.jobs[JOB]
    [view] = explain(world.cluster.state, job, world.now).nodes
    assert view.obstacle == "left out for 300 s, after 3 launches in a row that failed: it cannot be done"


def test_the_reason_says_when_it_is_tried_again() -> None:
    world = failed(2, nodes=1)
    reason = world.cluster.state.jobs[JOB].reason
    assert reason.endswith("(2 launches failed in a row: the next after 1 s)") or "left out" in reason


def test_another_node_is_tried_then_and_the_first_once_it_registers_again() -> None:
    world = failed(4, nodes=2)
    (_, first), *_, (_, last) = world.launched
    assert last != first
    world.now += 1.0
    world.cluster.handle(registration(first), world.now)
    assert first not in world.cluster.state.jobs[JOB].eligibility.excluded


def test_a_start_that_succeeds_is_the_end_of_it() -> None:
    world = World(1)
    world.tell(SUBMITTED, None)
    world.cluster.handle(e.AttemptRefused(JOB, 1, RefusalCause.NODE, WHY), world.now)
    world.now += 60.0
    world.tell(e.SchedulingDue(), None)
    assert len(world.launched) == 2
    world.cluster.handle(e.AttemptStarted(JOB, 2, 100), world.now)
    assert not world.cluster.state.jobs[JOB].retries.launches_in_vain


def test_a_node_registers_after_a_job_that_did_without_it_is_retired() -> None:
    world = World(1)
    world.tell(SUBMITTED, RefusalCause.NODE)
    world.run(1010.0, itertools.cycle([RefusalCause.NODE]))
    assert world.cluster.state.left_out == {JOB}
    world.tell(e.CancelRequested(JOB), cause=None)
    world.tell(e.JobRetired(JOB), cause=None)
    world.tell(registration("n0"), cause=None)
    assert not world.cluster.state.left_out
