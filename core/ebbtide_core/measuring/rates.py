"""Keeps the speeds of jobs in the cluster's state: what is measured, what is recorded, and what is shown.

The journal holds neither progress reports nor the meter of an attempt. It holds the meter's result as an event of its
own, recorded when it is first solid, when it has changed, and perhaps when the attempt ends.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.estimates.work import script_of
from ebbtide_core.events import Event
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.meter import NO_NEIGHBOURS, SOLID, AttemptMeter, MeasuredRate, Neighbours, Setting, Windows
from ebbtide_core.model.types import WHOLE, AttemptRef
from ebbtide_core.planning.draft import count_text
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState

CHANGED: Final = 0.1
"""Share of the recorded speed by which an estimate has to differ to be recorded again."""
BETTER: Final = 2
"""Factor: at the end of an attempt, this many times the recorded windows are worth another record."""
MOST_RECORDS: Final = 16
"""Records that one attempt gets at most while it runs."""


# --- what reports change ---


def progressed(state: ClusterState, job: Job, event: e.ProgressReported, now: float) -> None:
    """Note how far the job is, and measure its speed."""
    job.measured = job.measured.after(event.progress, now)
    attempt = job.attempts[-1]
    if attempt.stop is not None or attempt.started is None:
        return
    if attempt.meter is None or attempt.meter.since != attempt.started:
        attempt.meter = AttemptMeter(attempt.started)
    attempt.meter.note(event.progress.step, now, neighbours(state, job))


def saved(state: ClusterState, job: Job, event: e.CheckpointPublished, now: float) -> None:
    """Note the checkpoint that the job has published; the time that saving took counts for no step."""
    attempt = job.attempts[-1]
    job.saved, attempt.saved_at = replace(job.saved, checkpoint=event.checkpoint), now
    if attempt.swap is not None:
        attempt.swap.unsaved_work_s = 0.0
    if attempt.meter is not None:
        attempt.meter.interrupt()


def _measured(state: ClusterState, job: Job, event: e.RateMeasured, now: float) -> None:
    """Note what the meter of an attempt has found, for the job and its script."""
    setting = Setting(event.share, event.nodes, event.model, event.alone)
    rate = MeasuredRate(event.steps_per_s, event.samples)
    job.measured = replace(job.measured, rates={**job.measured.rates, setting: rate})
    if script := script_of(job):
        state.rates.add(script, job.id, setting, rate)


def attempt_ref(job: Job) -> AttemptRef:
    """Return the reference of the newest attempt of ``job``."""
    return AttemptRef(job.id, len(job.attempts))


def neighbours(state: ClusterState, job: Job) -> Neighbours:
    """Return the other attempts on the GPUs of the newest attempt of ``job``; whole GPUs are never shared."""
    allocation = job.attempts[-1].allocation
    if allocation.share % WHOLE == 0:
        return NO_NEIGHBOURS
    own, [piece] = set(allocation.gpu_ids), allocation.nodes
    here = [other for other in state.jobs_on(state.nodes[piece.node]) if other is not job and not other.off_gpu]
    others = [other for other in here if not own.isdisjoint(other.attempts[-1].allocation.gpu_ids)]
    return frozenset(map(attempt_ref, others))


# --- what follows ---


def new_records(state: ClusterState, job: Job) -> Iterator[Event]:
    """Yield what is worth recording about a running attempt after a report that ended a window."""
    attempt = job.attempts[-1]
    meter = attempt.meter
    if meter is None or meter.recorded >= MOST_RECORDS:
        return
    for alone, windows in ((True, meter.alone), (False, meter.shared)):
        known = job.measured.rates.get(setting_of(state, attempt, alone))
        if _is_news(known, windows):
            meter.recorded += 1
            yield _record(state, job, attempt, alone, windows)


def final_records(state: ClusterState, job: Job) -> Iterator[Event]:
    """Yield what was measured of an attempt that has ended, if it differs from the record or rests on far more
    windows."""
    attempt = job.attempts[-1]
    meter, attempt.meter = attempt.meter, None
    if meter is None:
        return
    meter.interrupt()
    for alone, windows in ((True, meter.alone), (False, meter.shared)):
        known = job.measured.rates.get(setting_of(state, attempt, alone))
        if _is_news(known, windows) or (known is not None and windows.count >= BETTER * known.samples):
            yield _record(state, job, attempt, alone, windows)


def _is_news(known: MeasuredRate | None, windows: Windows) -> bool:
    if windows.count < SOLID:
        return False
    return known is None or abs(windows.steps_per_s - known.steps_per_s) > CHANGED * known.steps_per_s


def _record(state: ClusterState, job: Job, attempt: Attempt, alone: bool, windows: Windows) -> Event:
    setting = setting_of(state, attempt, alone)
    return e.RateMeasured(
        job.id, attempt.number, setting.share, setting.nodes, alone, windows.steps_per_s, windows.count, setting.model
    )


# --- what is known ---


def setting_of(state: ClusterState, attempt: Attempt, alone: bool) -> Setting:
    """Return what the attempt runs on: share, number of nodes and GPU model, and whether it is ``alone`` there."""
    allocation = attempt.allocation
    first = allocation.nodes[0]
    facts = state.nodes[first.node].gpus.get(first.gpus[0].gpu) if first.gpus else None
    return Setting(allocation.share, len(allocation.nodes), facts.model if facts is not None else "", alone)


def speed_now(job: Job) -> float | None:
    """Return the steps per second of ``job`` beside the jobs that share its GPU now; None if it does not run, or
    unknown."""
    if not job.running or (meter := job.attempts[-1].meter) is None:
        return None
    return meter.together.steps_per_s if meter.together.count else None


def speed_alone(state: ClusterState, job: Job) -> float | None:
    """Return the steps per second of ``job`` alone on its GPU with its share, by itself or its script; None if
    unknown."""
    attempt = job.attempts[-1]
    if attempt.meter is not None and attempt.meter.alone.count >= SOLID:
        return attempt.meter.alone.steps_per_s
    setting, script = setting_of(state, attempt, True), script_of(job)
    if (known := job.measured.rates.get(setting)) is not None:
        return known.steps_per_s
    return state.rates.typical(script, setting) if script else None


def _say(event: e.RateMeasured) -> str:
    beside, s = "alone" if event.alone else "beside others", "" if event.samples == 1 else "s"
    speed = f"{event.steps_per_s:.4g} steps/s on {count_text(event.share)}, {beside}"
    return f"attempt {event.attempt} makes {speed} ({event.samples} window{s})"


RULES: Final = (Rule(e.RateMeasured, apply=about_job(_measured), say=_say),)
