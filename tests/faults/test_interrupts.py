"""A few of the interrupts of `python -m tests.faults.interrupts`, and many where there is time."""

import random

import pytest

from tests.faults.interrupts import stress

PATIENCE_S = 30.0


def test_verbs_that_are_interrupted_at_any_moment_end() -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    found = stress(8, seed, ("ls", "wait", "top"), patience_s=PATIENCE_S)
    assert found.failures == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "busy", [pytest.param(False, id="alone", marks=pytest.mark.alone), pytest.param(True, id="beside busy cores")]
)
def test_every_verb_ends_soon_after_any_of_a_thousand_interrupts(busy: bool) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    found = stress(1000, seed, busy=busy, patience_s=PATIENCE_S if busy else 0.0)
    assert found.failures == []
