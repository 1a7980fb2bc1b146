"""Applies successive halving to the cluster: notes the results of tasks, pauses tasks at rungs, and promotes them.

`ebbtide_core.model.asha` decides. A task that has to wait at a rung is suspended and held by the system: it saves a
checkpoint and leaves its GPUs to other jobs. Its user may release it all the same; then it goes on, and its results
still count.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.job.facets import End
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle import ending
from ebbtide_core.lifecycle.halving_tasks import halving_of
from ebbtide_core.model import limits
from ebbtide_core.model.asha import RungPlace, SuccessiveHalving, result_of
from ebbtide_core.model.types import HeldBy, JobId, JobState, StopCause
from ebbtide_core.nodes import strays
from ebbtide_core.reconcile import stop
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState

# --- facts ---


def _is_next_rung(state: ClusterState, event: e.RungReached) -> bool:
    job = state.jobs.get(event.job)
    halving = None if job is None else halving_of(state, job)
    return halving is not None and halving.next_rung(event.job) == event.steps


def _rung_reached(state: ClusterState, job: Job, event: e.RungReached, now: float) -> None:
    if (halving := halving_of(state, job)) is not None and job.lineage.task is not None:
        halving.reach(job.id, event.value)
        job.measured = replace(job.measured, rungs={**job.measured.rungs, event.steps: event.value})
        state.halvings_changed.add(job.lineage.task.array)


def _waits_at_rung(state: ClusterState, event: e.TaskPromoted | e.TaskStopped) -> bool:
    job = state.jobs.get(event.job)
    halving = None if job is None or job.end is not None else halving_of(state, job)
    return halving is not None and halving.tasks[event.job].waits


def _promoted(state: ClusterState, job: Job, event: e.TaskPromoted, now: float) -> None:
    """Promote a task; if it is held for another reason than the rung, it stays held."""
    if (halving := halving_of(state, job)) is not None:
        halving.promote(job.id)
    if _is_paused(job):
        job.held_by, job.next = None, job.next.returning()
        job.reason = event.reason


def _is_paused(job: Job) -> bool:
    """Return whether the task is held at a rung, and not because it did not save or left its GPUs idle."""
    order = job.attempts[-1].stop if job.attempts else None
    useless = order is not None and order.cause is StopCause.IDLE
    fruitless = job.suspending.fruitless_in_row >= limits.MAX_FRUITLESS_SUSPENSIONS
    return job.held_by is HeldBy.SYSTEM and not fruitless and not useless


def _stopped(state: ClusterState, job: Job, event: e.TaskStopped, now: float) -> None:
    ending.end_job(state, job, End(JobState.COMPLETED, now, 0), event.reason)


# --- decisions ---


def at_rung(state: ClusterState, event: e.ProgressReported) -> Iterator[Event]:
    """Yield the task's result at its next rung, once a report at or beyond that rung has the metric."""
    job = state.jobs[event.job]
    halving = halving_of(state, job)
    if halving is None or not job.running or job.held_by is HeldBy.SYSTEM:
        return
    steps = halving.next_rung(job.id)
    known, value = result_of(event.progress, halving.asha.metric)
    if known and steps is not None and event.progress.step >= steps:
        yield e.RungReached(job.id, event.attempt, steps, value)


def _pause_or_go_on(state: ClusterState, event: e.RungReached) -> Iterator[Event]:
    """Promote a task that reaches a rung and is among the best there already; else pause it.

    A task that its user holds leaves its GPUs at the rung, too, and stays held by the user.
    """
    job = state.jobs[event.job]
    halving = halving_of(state, job)
    if halving is None or not job.running:
        return
    if job.id in halving.promotable():
        yield e.TaskPromoted(job.id, _goes_on(halving, job.id))
        return
    place = halving.place(job.id)
    reason = f"paused at {_standing(halving, job.id, place)} so far, and {place.best} of them go on"
    yield stop(job, StopCause.SUSPENDED, reason)
    if job.held_by is not HeldBy.USER:
        yield e.JobHeld(job.id, HeldBy.SYSTEM, reason)


def review(state: ClusterState) -> Iterator[Event]:
    """Yield which tasks are promoted and which are stopped, given the new results. Each decision may lead to others.

    A task of which an attempt that the journal does not know may still run is promoted once that is gone.
    """
    later = set[JobId]()
    while state.halvings_changed:
        array = min(state.halvings_changed)
        state.halvings_changed.discard(array)
        if (halving := state.halvings.get(array)) is None:
            continue
        for id in halving.promotable():
            if strays.unknown_of(state, id) is None:
                yield e.TaskPromoted(id, _goes_on(halving, id))
            else:
                later.add(array)
        for id in halving.hopeless():
            job = state.jobs[id]
            if job.held_by is HeldBy.SYSTEM and job.live is None:
                yield e.TaskStopped(id, f"stopped early at {_standing(halving, id, halving.place(id))}")
    state.halvings_changed |= later


def _goes_on(halving: SuccessiveHalving, id: JobId) -> str:
    return f"goes on from {_standing(halving, id, halving.place(id))}"


def _standing(halving: SuccessiveHalving, id: JobId, place: RungPlace) -> str:
    """Return ``100 steps: loss 0.5 is number 3 of 5``."""
    value = halving.tasks[id].results[place.rung]
    shown = "no number" if value is None else f"{value:.4g}"
    return f"{halving.rungs[place.rung]} steps: {halving.asha.metric} {shown} is number {place.rank} of {place.of}"


# --- in words ---


def _say_rung(event: e.RungReached) -> str:
    value = "no number" if event.value is None else f"{event.value:.6g}"
    return f"reached the rung at {event.steps} steps with {value}"


RULES: Final = (
    Rule(
        e.RungReached,
        news=_is_next_rung,
        apply=about_job(_rung_reached),
        decide=_pause_or_go_on,
        say=_say_rung,
    ),
    Rule(e.TaskPromoted, news=_waits_at_rung, apply=about_job(_promoted), say=lambda event: event.reason),
    Rule(e.TaskStopped, news=_waits_at_rung, apply=about_job(_stopped), say=lambda event: event.reason),
)
