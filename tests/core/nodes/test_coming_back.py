"""A node that registers again: what it has goes on, what it lost is over, and only what never arrived is repeated."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.commands import Launch, Stop
from ebbtide_core.model.types import GpuId, JobState, NodeId

from tests.core.lab import Lab, registration, stopped


@pytest.fixture
def lab() -> Lab:
    return Lab(gpus=1)


def ordered(lab: Lab) -> list[tuple[str, int]]:
    """The attempts that the last step ordered to start."""
    return [(command.job, command.attempt) for command in lab.last if isinstance(command, Launch)]


def test_an_attempt_that_was_lost_is_not_ordered_again_but_followed_by_the_next(lab: Lab) -> None:
    job = lab.running()
    lab.tell(registration("a", 1, boot_id="boot-2"))
    assert ordered(lab) == [(job.id, 2)]


def test_an_order_that_never_arrived_is_repeated(lab: Lab) -> None:
    job = lab.submit()
    lab.tell(registration("a", 1))
    assert ordered(lab) == [(job.id, 1)]


def test_an_attempt_that_was_stopped_before_its_order_arrived_never_starts(lab: Lab) -> None:
    job = lab.submit()
    lab.tell(e.CancelRequested(job.id))
    lab.tell(registration("a", 1))
    assert (ordered(lab), job.state) == ([], JobState.CANCELLED)
    assert not [command for command in lab.last if isinstance(command, Stop)]


def test_a_stop_is_repeated_to_a_node_that_has_the_attempt(lab: Lab) -> None:
    job = lab.running()
    lab.tell(e.SuspendRequested(job.id))
    lab.tell(registration("a", 1, known=lab.known(job)))
    assert (ordered(lab), stopped(lab.last)) == ([], {job.id})


def test_what_is_said_of_an_unknown_node_is_no_news(lab: Lab) -> None:
    before = len(lab.journal)
    lab.tell(e.NodeLost(NodeId("z"), 20.0))
    lab.tell(e.GpuHealthChanged(NodeId("z"), GpuId("z0"), False))
    lab.tell(e.NodeDisconnected(NodeId("z")))
    assert len(lab.journal) == before


def test_a_report_about_an_attempt_0_is_no_news(lab: Lab) -> None:
    job = lab.submit(hold=True)
    lab.tell(e.AttemptFreed(job.id, 0))
    assert lab.last == []
