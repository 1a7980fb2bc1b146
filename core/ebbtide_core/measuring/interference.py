"""Jobs that share a GPU and disturb each other: found by their speeds, and taken apart.

The speed of each, relative to its speed alone there with the same share, is between 0 and 1. Of n jobs that only take
turns, each gets 1/n, so that the sum is 1; it is more if they fill each other's gaps. Below `ENOUGH` they would all be
done sooner one after the other: then the newcomer leaves, or of several the one that is least urgent. It moves if there
is room for it elsewhere. If not, it is suspended; it stands in no queue then, where it would hold up others, until
there is. Their scripts are kept apart for a day.

Nothing happens as long as the speed alone of anybody there is not known, or somebody has not reported for
`ebbtide_core.job.meter.TOGETHER` windows since the last of them came. Who was submitted with ``--suspend none`` stays.
"""

from collections.abc import Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.job.job import Job
from ebbtide_core.job.meter import TOGETHER
from ebbtide_core.measuring import rates
from ebbtide_core.model.types import JobClass, JobId, StopCause, SuspendMode
from ebbtide_core.reconcile import stop
from ebbtide_core.resources.anti_affinity import APART_S, kept_from
from ebbtide_core.resources.placing import Trial
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState

ENOUGH: Final = 0.9
"""What the relative speeds of those who share a GPU should add up to: 1 if they took turns, but nothing is exact."""


def _found(state: ClusterState, job: Job, event: e.InterferenceFound, now: float) -> None:
    """``job`` is to leave those with whom it shares a GPU, and is kept apart from them for a time."""
    for id in event.others:
        if (other := state.jobs.get(id)) is not None:
            state.add_anti_affinity(job, other, now + APART_S)
    state.aside[job.id] = False


def separated(state: ClusterState, job: Job) -> Iterator[Event]:
    """What follows if those who share a GPU with ``job``, which has just reported, get on too badly together."""
    speeds = _relative_speeds(state, job)
    if not speeds or sum(speeds.values()) >= ENOUGH:
        return
    movable = [job for id in speeds if (job := state.jobs[id]).preemptible and job.held_by is None]
    if not movable:
        return
    leaver = max(movable, key=_expendable)
    others = tuple(sorted(id for id in speeds if id != leaver.id))
    attempt = leaver.attempts[-1]
    [gpu] = attempt.allocation.gpu_ids
    in_order = tuple(speeds[id] for id in (leaver.id, *others))
    yield e.InterferenceFound(leaver.id, attempt.number, gpu, others, in_order)
    yield from _sent_away(state, leaver, others, sum(in_order))


def _relative_speeds(state: ClusterState, job: Job) -> dict[JobId, float]:
    """The speeds of ``job`` and of all beside it, relative to what they are alone; empty if one is not known."""
    meter = job.attempts[-1].meter
    if meter is None or not meter.company or _is_disturbed(state, job):
        return {}
    everybody = meter.company | {rates.ref(job)}
    found: dict[JobId, float] = {}
    for each in everybody:
        other = state.jobs.get(each.job)
        if other is None or not other.running or rates.ref(other) != each:
            return {}
        theirs = other.attempts[-1].meter
        if theirs is None or theirs.company != everybody - {each}:
            return {}
        alone = rates.solo(state, other)
        if theirs.together.count < TOGETHER or not alone:
            return {}
        found[each.job] = theirs.together.steps_per_s / alone
    return found


def _is_disturbed(state: ClusterState, job: Job) -> bool:
    """Whether a process of no job computes on its GPU: that may be what slows everybody down there."""
    [piece] = job.attempts[-1].allocation.nodes
    return not state.nodes[piece.node].foreign.keys().isdisjoint(gpu.gpu for gpu in piece.gpus)


def _expendable(job: Job) -> tuple[bool, int, float, int]:
    """The greatest leaves: trial-and-error jobs last, then the more urgent ones, then those that came first."""
    return (job.spec.job_class is JobClass.BEST_EFFORT, job.priority, job.attempts[-1].placed, job.sequence)


def _sent_away(state: ClusterState, job: Job, others: tuple[JobId, ...], total: float) -> Iterator[Event]:
    attempt, room = job.attempts[-1], None
    if job.spec.suspend is not SuspendMode.SWAP:  # it could come back to the same GPU only
        trial = Trial(state.pools[job.pool].books)
        trial.give(attempt.allocation)
        room = trial.find(job, attempt.allocation.share, free_now=True)
    why = f"{_beside(others)} it got on worse than in turns: all together at {total:.2g} of the speed of one alone"
    reason = f"suspended until there is room elsewhere: {why}" if room is None else f"moved: {why}"
    yield stop(job, StopCause.INTERFERENCE, reason)
    if room is not None:
        yield e.RoomClaimed(job.id, room, reason)


def _beside(others: tuple[JobId, ...]) -> str:
    return f"beside job{'s' if len(others) > 1 else ''} {', '.join(others)}"


def review(state: ClusterState, now: float) -> None:
    """Have those who were suspended stand in the queue while there is room for them, and only then."""
    for id, was_away in list(state.aside.items()):
        job = state.jobs.get(id)
        if job is None or job.ending is not None:
            del state.aside[id]
            continue
        books = state.pools[job.pool].books
        is_away = job.waiting and job.planned is None and Trial(books).find(job, job.gpus_min) is None
        if is_away is not was_away:
            state.aside[id] = is_away
            state.refresh(job, now)
        if is_away:
            job.reason = f"suspended until there is room apart from {kept_from(job, books) or 'others'}"


def _say(event: e.InterferenceFound) -> str:
    others, speeds = ", ".join(event.others), " + ".join(f"{speed:.2f}" for speed in event.speeds)
    return f"disturbed beside job {others} on GPU {event.gpu}: {speeds} of their speeds alone"


RULES: Final = (Rule(e.InterferenceFound, apply=about_job(_found), say=_say),)
