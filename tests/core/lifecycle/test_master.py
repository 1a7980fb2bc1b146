"""A master that takes over waits for the nodes before it places anything."""

from ebbtide_core import events as e
from ebbtide_core.model.types import JobState, NodeId
from ebbtide_core.nodes import silence

from tests.core.lab import Lab, registration


def test_nothing_is_placed_before_the_nodes_with_attempts_were_heard_again() -> None:
    lab = Lab(nodes="ab", gpus=1)
    job = lab.running()
    lab.tell(e.MasterStarted(2))
    lab.tell(registration("b", 1))
    waiting = lab.submit()
    assert waiting.state is JobState.PENDING
    lab.tell(registration("a", 1, known=lab.known(job)))
    assert waiting.state is JobState.STARTING


def test_after_the_recovery_grace_the_others_go_on() -> None:
    lab = Lab(nodes="ab", gpus=1)
    lab.running()
    lab.tell(e.MasterStarted(2))
    lab.tell(registration("b", 1))
    waiting = lab.submit()
    lab.wait(31)
    assert waiting.state is JobState.STARTING


def test_idle_nodes_are_awaited_as_well_unless_they_were_lost() -> None:
    lab = Lab(nodes="abc", gpus=1)
    lab.running()
    lab.tell(e.NodeLost(NodeId("c"), 20.0))
    lab.tell(e.MasterStarted(2))
    assert (silence.to_await(lab.cluster.state), lab.cluster.state.awaited) == (["a", "b"], {"a"})


def test_of_many_nodes_that_do_not_come_back_the_first_to_be_lost_tells_of_all() -> None:
    lab = Lab(nodes="abcde", gpus=1)
    lab.wait(1e6)
    lab.tell(e.MasterStarted(2))
    lab.wait(30)
    for node in silence.to_await(lab.cluster.state):
        lab.tell(e.NodeLost(node, 30.0))
    [doubt] = [event for _, event in lab.journal if isinstance(event, e.SilenceDoubted)]
    assert doubt.nodes == tuple("abcde")
