"""Jobs leave a drained node in time, however many they are."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.model.types import NodeId
from ebbtide_core.nodes.draining import LEAVE_AT_ONCE

from tests.core.lab import Lab, stopped, wake_times


@pytest.fixture
def lab() -> Lab:
    return Lab(gpus=2)


def test_of_very_many_on_a_drained_node_some_leave_at_a_time(lab: Lab) -> None:
    jobs = [lab.running(0) for _ in range(2 * LEAVE_AT_ONCE + 1)]
    told = [lab.cluster.handle(e.NodeDrained(node=NodeId("a"), deadline=lab.now), lab.now)]
    while any(time <= lab.now for time in wake_times(told[-1])):
        told.append(lab.cluster.handle(e.SchedulingDue(), lab.now))
    assert [len(stopped(commands)) for commands in told if stopped(commands)] == [LEAVE_AT_ONCE, LEAVE_AT_ONCE, 1]
    assert all(job.live is not None and job.live.stop is not None for job in jobs)


def test_who_is_to_leave_a_drained_node_leaves_whatever_else_happens_at_that_very_time(lab: Lab) -> None:
    job, later = lab.running(grace_s=10.0), lab.submit(begin_at=lab.now + 1000.0)
    lab.tell(e.NodeDrained(node=NodeId("a"), deadline=lab.now + 110.0))
    assert later.admission is not None
    lab.cluster.handle(e.HoldRequested(later.id), lab.now + 101.0)  # before the pass that was asked for
    assert stopped(lab.cluster.handle(e.SchedulingDue(), lab.now + 101.0)) == {job.id}
