"""Every acknowledged job came to its scripted end, and nothing was computed twice that need not be."""

from itertools import pairwise

import pytest

from tests.e2e.day.evidence import Evidence, Facts
from tests.e2e.day.playing import KINDS

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(600)]  # a day takes two minutes


def test_every_job_that_was_acknowledged_came_to_its_scripted_end(day: Evidence) -> None:
    assert set(day.ids) >= set(day.script.ends)
    assert set(day.plans) == set(day.jobs), "jobs that nobody submitted, or that are gone"
    wrong = []
    for id, job in day.jobs.items():
        if job["state"] != scripted_end(day, id):
            wrong.append(f"job {id} of {job['user']} ({day.plans[id].key}) is {job['state']}: {job['reason']}")
    assert not wrong, "\n".join(wrong)


def scripted_end(day: Evidence, id: str) -> str:
    """As planned; but a session does not begin anew once it has lost its GPU (docs/how-to/interactive.md)."""
    plan = day.plans[id]
    lost = any(entry.fact.get("cause") == "lost_gpu" for entry in day.stories[id] if entry.kind == "StopRequested")
    return "FAILED" if lost and plan.kind in KINDS else plan.end


def test_no_two_attempts_computed_at_the_same_time_or_on_the_same_gpu(day: Evidence) -> None:
    found = [(id, line) for id, lines in day.witnesses.items() for line in lines if line["what"] == "overlap"]
    assert not found


def test_all_steps_were_made_and_none_twice_but_after_the_last_checkpoint(day: Evidence) -> None:
    for id, lines in day.witnesses.items():
        check_progress(id, lines)
        plan = day.plans[id]
        if plan.end == "COMPLETED":
            made = {line["step"] for line in lines if line["what"] == "step"}
            assert made == set(range(plan.steps)), f"job {id} is COMPLETED without {set(range(plan.steps)) - made}"


def check_progress(id: str, lines: list[Facts]) -> None:
    """Each attempt goes on from the newest checkpoint or later, step by step, and is over when the next begins."""
    begins = [line for line in lines if line["what"] == "begin"]
    assert [line["attempt"] for line in begins] == sorted({line["attempt"] for line in begins}), f"job {id}"
    for earlier, later in pairwise(lines):
        assert earlier["attempt"] <= later["attempt"], f"job {id}: attempt {earlier['attempt']} goes on beside {later}"
    saved, next_step = 0, 0
    for line in lines:
        if line["what"] == "begin":
            assert line["step"] >= saved, f"job {id} had step {saved} on disk, attempt {line['attempt']}: {line}"
            next_step = line["step"]
        elif line["what"] == "saved":
            saved = max(saved, line["step"])
        elif line["what"] == "step":
            assert line["step"] == next_step, f"job {id}: step {next_step} was to be next: {line}"
            next_step += 1
