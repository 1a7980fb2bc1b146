"""Every waiting period of a second or more is explained in `ebb story`."""

from collections import Counter

import pytest

from tests.e2e.day.evidence import Evidence
from tests.e2e.day.stories import waits

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]  # a day takes two minutes
WORTH_SAYING_S = 1.0
ENDED = ("stepped aside", "failed with", "ended by", "killed", "exit code")
"""How an attempt ended is no reason to wait for the next, unless a delay is told with it."""


def explains(why: str) -> bool:
    """Whether ``why`` says for what a job waited."""
    return bool(why) and ("tried again" in why or not any(words in why for words in ENDED))


def test_ebb_story_prints_what_the_master_tells(day: Evidence) -> None:
    assert day.printed == {id: [entry.text for entry in day.stories[id]] for id in day.printed}


def test_every_waiting_period_is_explained(day: Evidence) -> None:
    reasons: Counter[str] = Counter()
    unexplained = []
    for id in day.jobs:
        for wait in waits(day.stories[id]):
            if wait.seconds < WORTH_SAYING_S:
                continue
            reasons["".join("n" if letter.isdigit() else letter for letter in wait.why)] += 1
            if not explains(wait.why):
                when = f"{day.clock(wait.begins.at)} to {day.clock(wait.ends.at)}"
                about = f"job {id} of {day.jobs[id]['user']} ({day.plans[id].kind})"
                unexplained.append(f"{about} waited from {when}, {wait.begins.kind} to {wait.ends.kind}: {wait.why!r}")
    print(f"{sum(reasons.values())} waits of {WORTH_SAYING_S:g} s or more:")
    for reason, times in reasons.most_common():
        print(f"  {times:3} {reason}")
    assert not unexplained, "\n".join(unexplained)
