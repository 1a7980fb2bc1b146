"""What is said of a job that left when it was asked to: saved, not saved, or that nobody knows."""

import dataclasses
from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.model.notice_rules import Moment
from ebbtide_core.model.types import (
    Checkpointed,
    CheckpointFacts,
    Clue,
    ExitFacts,
    JobState,
    NodeId,
    ProgressFacts,
    SignalTarget,
)
from ebbtide_core.views.narrate import narrate
from ebbtide_core.views.notices import moment_of

from tests.core.job.test_gang import Gangs
from tests.core.lab import Lab, stepped_aside

FAILED = ExitFacts(exit_code=1, stop_requested=True, delivered=True, caught=True, checkpointed=Checkpointed.NO)
PLAIN = dataclasses.replace(FAILED, exit_code=0, checkpointed=Checkpointed.UNKNOWN)
NO_HANDLER = dataclasses.replace(FAILED, exit_code=0, signal=15, caught=False)


def left(
    exit: ExitFacts, *, kept: int | None = None, step: int | None = None, age_s: float = 60.0, **spec: Any
) -> tuple[Lab, Job]:
    """A job that has reached `step`, after a checkpoint of step `kept`, and left like this when it was asked to."""
    lab = Lab(gpus=1)
    job = lab.running(**spec)
    lab.now += age_s
    if kept is not None:
        lab.tell(e.CheckpointPublished(job.id, 1, CheckpointFacts(kept, 1, "/c", True)))
    lab.tell(e.SuspendRequested(job.id))
    progress = None if step is None else ProgressFacts(step)
    lab.tell(e.AttemptExited(job.id, 1, exit, progress=progress, freed=True))
    return lab, job


def said(lab: Lab) -> list[e.WorkUnsaved]:
    return [event for _, event in lab.journal if isinstance(event, e.WorkUnsaved)]


def test_a_job_that_fails_when_it_is_asked_is_told_with_the_steps_that_will_be_repeated() -> None:
    """As on a full disk; before, it was "SUSPENDED (ended with exit code 1 in its grace period)", and no more."""
    lab, job = left(FAILED, kept=110, step=340)
    [event] = said(lab)
    assert (event.checkpointed, event.lost) == (Checkpointed.NO, "steps 110-340 will be repeated")
    suspension = job.suspensions[0]
    assert (suspension.kept_step, suspension.left_step, suspension.lost) == (110, 340, event.lost)
    assert suspension.hint == event.hint == "it failed with exit code 1: the end of its log may say why"
    assert narrate(event) == f"attempt 1 has left; not saved: steps 110-340 will be repeated ({event.hint})"


def test_who_wants_to_hear_of_it_does_so_only_if_work_was_lost_for_certain() -> None:
    for exit, moment in ((FAILED, Moment.UNSAVED), (PLAIN, None)):
        lab, job = left(exit)
        found = moment_of(job, said(lab)[0], lab.now)
        assert (None if found is None else found[0]) is moment


@pytest.mark.parametrize(
    ("exit", "kept", "step", "lost"),
    [
        (FAILED, 110, 110, "what it did after step 110 will be repeated"),
        (FAILED, 110, None, "what it did after step 110 will be repeated"),
        (FAILED, None, 340, "what it did since it last saved by itself will be repeated"),
        (PLAIN, 110, 340, "steps 110-340 may be repeated"),
        (PLAIN, None, 340, ""),
        (stepped_aside(checkpointed=Checkpointed.YES, killed=True), 330, 340, "steps 330-340 will be repeated"),
    ],
    ids=str,
)
def test_no_more_is_claimed_than_is_known(exit: ExitFacts, kept: int | None, step: int | None, lost: str) -> None:
    lab, _ = left(exit, kept=kept, step=step)
    assert [event.lost for event in said(lab)] == [lost]


@pytest.mark.parametrize(
    ("exit", "cause"),
    [
        (stepped_aside(checkpointed=Checkpointed.YES), "saved"),
        (ExitFacts(stop_requested=True, checkpointed=Checkpointed.NO), "completed"),
    ],
    ids=["saved", "completed"],
)
def test_nothing_is_said_of_who_saved_or_was_done(exit: ExitFacts, cause: str) -> None:
    lab, _ = left(exit, kept=340, step=340)
    assert said(lab) == [], cause


def test_nothing_is_said_of_who_never_ran_or_was_given_up() -> None:
    lab = Lab(gpus=2)
    early, given_up = lab.submit(), lab.running()
    lab.tell(e.SuspendRequested(early.id))
    lab.end(early, FAILED)
    lab.tell(e.CancelRequested(given_up.id))
    lab.end(given_up, FAILED)
    assert (said(lab), early.state, given_up.state) == ([], JobState.SUSPENDED, JobState.CANCELLED)


@pytest.mark.parametrize(
    ("exit", "spec", "hint"),
    [
        (NO_HANDLER, {}, "nothing of it catches SIGTERM: ask should_suspend() of 'import ebbtide', or catch it"),
        (dataclasses.replace(NO_HANDLER, clues=(Clue.CATCHES_USR1,)), {}, "submit it with --signal USR1"),
        (dataclasses.replace(FAILED, clues=(Clue.WORKERS_SIGNALLED,)), {}, "leave out --signal-target"),
        (dataclasses.replace(FAILED, clues=(Clue.NOT_ASKED,), killed=True), {}, "--signal-target all asks all"),
        (
            dataclasses.replace(FAILED, clues=(Clue.NOT_ASKED,), killed=True),
            {"signal_target": SignalTarget.LEADER},
            "submit it without --signal-target",
        ),
        (dataclasses.replace(FAILED, clues=(Clue.LAUNCHER,)), {}, "--launch ddp, or ask should_suspend()"),
        (dataclasses.replace(PLAIN, clues=(Clue.LAUNCHER,)), {}, "EBB_CHECKPOINT_DIR"),
        (dataclasses.replace(FAILED, killed=True), {"grace_s": 7.0}, "its grace period of 7 s: --grace gives it more"),
        (dataclasses.replace(FAILED, exit_code=85, acknowledged=True), {}, "without a function that saves"),
        (
            PLAIN,
            {},
            "only what a job saves in EBB_CHECKPOINT_DIR, or with 'import ebbtide', is known",
        ),
        (ExitFacts(lost=True, stop_requested=True), {}, "how it ended is not known"),
    ],
    ids=str,
)
def test_the_hint_fits_the_evidence(exit: ExitFacts, spec: dict[str, Any], hint: str) -> None:
    lab, job = left(exit, **spec)
    assert hint in said(lab)[0].hint
    assert job.suspensions[0].hint == said(lab)[0].hint


@pytest.mark.parametrize("exit", [NO_HANDLER, FAILED], ids=["no handler yet", "fails"])
def test_who_is_asked_while_it_still_loads_what_it_needs_is_not_blamed(exit: ExitFacts) -> None:
    lab, _ = left(exit, age_s=2.5)
    assert "s after its start, and may not have come to where it saves" in said(lab)[0].hint
    lab, _ = left(exit, age_s=2.5, step=3)
    assert "after its start" not in said(lab)[0].hint


def test_what_any_node_of_an_attempt_on_several_has_seen_counts() -> None:
    lab = Gangs()
    job = lab.gang()
    lab.tell(e.SuspendRequested(job.id))
    for node, clue in (("a", Clue.LAUNCHER), ("b", Clue.CATCHES_USR1)):
        exit = dataclasses.replace(NO_HANDLER, clues=(clue,))
        lab.tell(e.AttemptExited(job.id, 1, exit, freed=True, node=NodeId(node)))
    assert "--signal USR1" in job.suspensions[0].hint
