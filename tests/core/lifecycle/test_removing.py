"""Nodes and jobs that somebody removes: only what is over, and what nobody needs any more."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.model.types import JobId, JobState, NodeId

from tests.core.lab import DONE, Lab, gpus_of, registration
from tests.core.nodes.test_silence import SHARED, dead, lose, running_on

A = NodeId("a")
REMOVED = e.NodeRemoved(A, "ann")


@pytest.fixture
def lab() -> Lab:
    """Two nodes with one GPU each that see the same checkpoints."""
    lab = Lab(nodes="")
    for name in "ab":
        lab.tell(registration(name, 1, **SHARED))
    return lab


def refused(lab: Lab, event: e.Event) -> str:
    refusal = lab.cluster.refusal(event)
    return "" if refusal is None else refusal.message


class TestNodes:
    def test_one_that_is_lost_and_has_nothing_is_known_no_more_until_it_registers_again(self, lab: Lab) -> None:
        lose(lab, "a")
        assert refused(lab, REMOVED) == ""
        lab.tell(REMOVED)
        assert list(lab.cluster.state.nodes) == ["b"]
        assert refused(lab, REMOVED) == "node a does not exist"
        lab.tell(e.NodeLost(A, 40.0))  # it is late
        first = lab.submit(1)
        second = lab.submit(1)
        assert gpus_of(first) == {"b0"}
        assert second.state is JobState.PENDING
        lab.tell(registration("a", 1, **SHARED))
        assert gpus_of(second) == {"a0"}

    def test_one_that_is_connected_or_may_be_back_in_a_moment_stays(self, lab: Lab) -> None:
        assert refused(lab, REMOVED) == "node a is connected: stop its agent first"
        lab.tell(e.NodeDisconnected(A))
        assert refused(lab, REMOVED) == "node a may be back in a moment: it is not lost yet"

    def test_one_where_something_may_run_stays_until_it_is_confirmed_dead(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        lose(lab, "a")
        assert refused(lab, REMOVED).startswith(f"node a may still run job {job.id}: 'ebb node confirm-dead a'")
        lab.tell(REMOVED)  # said all the same, it is no news
        assert A in lab.cluster.state.nodes
        lab.tell(dead(A))
        assert refused(lab, REMOVED) == ""
        lab.tell(REMOVED)
        assert gpus_of(job) == {"b0"}


class TestJobs:
    def test_one_that_is_finished_is_known_no_more(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        assert refused(lab, e.JobRemoved(job.id)) == f"job {job.id} is RUNNING: only a finished one can be removed"
        lab.tell(e.AttemptExited(job.id, 1, DONE, freed=True))
        lab.tell(e.JobRemoved(job.id, "ann"))
        assert lab.cluster.job(job.id) is None
        assert refused(lab, e.JobRemoved(job.id)) == f"job {job.id} was removed"

    def test_one_whose_gpus_are_not_proven_free_stays(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        lab.tell(e.AttemptExited(job.id, 1, DONE))
        assert "not proven that its GPUs are free" in refused(lab, e.JobRemoved(job.id))
        lab.tell(e.AttemptFreed(job.id, 1))
        assert refused(lab, e.JobRemoved(job.id)) == ""

    def test_what_a_node_still_has_of_it_is_forgotten_there(self, lab: Lab) -> None:
        job = running_on(lab, "a")
        lab.tell(e.AttemptExited(job.id, 1, DONE, freed=True))
        lab.tell(e.JobRemoved(job.id))
        assert lab.cluster.state.removed == {JobId(job.id)}
