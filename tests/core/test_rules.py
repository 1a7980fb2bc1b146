"""Each event has one rule, and a type checker sees its functions together with that event."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

from ebbtide_core.dispatch import ALL
from ebbtide_core.events import EVENT_TYPES

PAIR = """
from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState

def news(state: ClusterState, event: e.JobHeld) -> bool:
    return True

def hold(state: ClusterState, job: Job, event: e.JobHeld, now: float) -> None:
    job.reason = event.reason

RULES = (
    Rule(e.JobHeld, news=news, apply=about_job(hold), say=lambda event: event.reason),
    Rule(e.RungReached, news=news, say=lambda event: "a rung"),
    Rule(e.RungReached, apply=about_job(hold), say=lambda event: "a rung"),
    Rule(e.RungReached, say=lambda event: event.reason),
    Rule(e.RungReached),
)
"""
"""The first rule fits its event, and each of the others has one function that does not, or lacks its sentence."""


def test_every_event_has_exactly_one_rule() -> None:
    assert Counter(rule.event for rule in ALL) == Counter(EVENT_TYPES.values())


def test_a_function_for_another_event_is_a_type_error(tmp_path: Path) -> None:
    file = tmp_path / "pair.py"
    file.write_text(PAIR)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", f"--cache-dir={tmp_path}", str(file)]
    found = subprocess.run(mypy, capture_output=True, text=True, check=False).stdout
    wrong = PAIR.splitlines().index("RULES = (") + 3
    assert [int(line.split(":")[1]) for line in found.splitlines()] == [wrong, wrong + 1, wrong + 2, wrong + 3], found
