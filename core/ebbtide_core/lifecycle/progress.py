"""Applies a running job's reports of its work: its first step, its progress, and its checkpoints."""

from collections.abc import Iterable, Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.estimates import restart_costs
from ebbtide_core.events import Event
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle import successive_halving
from ebbtide_core.measuring import interference, rates
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState


def _is_first_step(state: ClusterState, event: e.FirstStepMade) -> bool:
    attempt = state.newest(event.job, event.attempt)
    return attempt is not None and attempt.start is None


def _first_step_made(state: ClusterState, job: Job, event: e.FirstStepMade, now: float) -> None:
    attempt, start = job.attempts[-1], event.start
    attempt.start = start
    until_step_s = start.import_s + (start.load_s or 0.0) + start.step_s  # since the attempt started
    work_s = job.times.work_s + until_step_s * state.speed(attempt)
    job.measured = job.measured.begun_at(start.step, work_s)


def _say_first_step(event: e.FirstStepMade) -> str:
    warm = ", held ready before" if event.start.warm else ""
    seconds = event.start.import_s + (event.start.load_s or 0.0) + event.start.step_s
    return f"attempt {event.attempt} made its first step after {seconds:.1f} s{warm}"


def _is_live(state: ClusterState, event: e.ProgressReported) -> bool:
    """Return whether the attempt is live: the end of an attempt has newer progress than a report that comes later."""
    attempt = state.newest(event.job, event.attempt)
    return attempt is not None and attempt.end is None


def _progressed(state: ClusterState, event: e.ProgressReported) -> Iterator[Event]:
    job = state.jobs[event.job]
    yield from _work_resumed(job, event)
    if job.spec.asha is not None:
        yield from successive_halving.at_rung(state, event)
    if (meter := job.attempts[-1].meter) is not None and meter.fresh:
        yield from rates.new_records(state, job)
        yield from interference.separated(state, job)


def _work_resumed(job: Job, event: e.ProgressReported) -> Iterable[Event]:
    if not job.suspensions or not job.running:
        return ()
    last = job.suspensions[-1]
    if last.resumed is None or last.working is not None:
        return ()
    start = job.attempts[-1].start if not job.attempts[-1].swaps else None
    return (e.WorkResumed(job.id, event.attempt, event.progress.step if start is None else start.step),)


def _is_new_checkpoint(state: ClusterState, event: e.CheckpointPublished) -> bool:
    return (
        state.newest(event.job, event.attempt) is not None
        and state.jobs[event.job].saved.checkpoint != event.checkpoint
    )


def _say_checkpoint(event: e.CheckpointPublished) -> str:
    step = "" if event.checkpoint.step is None else f" of step {event.checkpoint.step}"
    return f"checkpoint{step} published ({event.checkpoint.bytes} bytes)"


RULES: Final = (
    Rule(e.FirstStepMade, news=_is_first_step, apply=about_job(_first_step_made), say=_say_first_step),
    Rule(
        e.ProgressReported,
        news=_is_live,
        apply=about_job(rates.progressed),
        decide=_progressed,
        say=lambda event: f"at step {event.progress.step}",
    ),
    Rule(
        e.WorkResumed,
        apply=about_job(restart_costs.work_resumed),
        say=lambda event: f"attempt {event.attempt} is at work again: step {event.step}",
    ),
    Rule(e.CheckpointPublished, news=_is_new_checkpoint, apply=about_job(rates.saved), say=_say_checkpoint),
)
