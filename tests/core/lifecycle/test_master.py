"""A master that takes over waits for the nodes before it places anything."""

from ebbtide_core import events as e
from ebbtide_core.model.types import JobState

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
