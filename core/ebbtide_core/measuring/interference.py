"""Finds jobs that disturb each other on a shared GPU by their speeds, and separates them.

The relative speed of a job is its speed divided by its speed alone there with the same share; it is between 0 and 1.
Each of n jobs that only take turns has 1/n, so that the sum is 1; the sum is more if the jobs fill each other's gaps.
If the sum is below `ENOUGH`, the jobs would all be done sooner one after the other. Then the newcomer leaves, or, among
several, the least urgent job. That job moves if there is room for it elsewhere. If not, it is suspended, and stays out
of the queue, where it would hold up others, until there is room. The jobs' scripts are kept apart for a day.

Nothing happens as long as the speed alone of one of the jobs is unknown, or one of them has reported fewer than
`ebbtide_core.job.meter.TOGETHER` windows since the last of them came. A job submitted with ``--suspend none`` stays.
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
"""Least sum of the relative speeds on one GPU that is accepted: 1 if jobs take turns, less a tolerance."""


def _found(state: ClusterState, job: Job, event: e.InterferenceFound, now: float) -> None:
    """Keep ``job``, which is about to leave, apart from the jobs that share its GPU, for `APART_S`."""
    for id in event.others:
        if (other := state.jobs.get(id)) is not None:
            state.add_anti_affinity(job, other, now + APART_S)
    state.displaced[job.id] = False


def separated(state: ClusterState, job: Job) -> Iterator[Event]:
    """Yield what follows if ``job``, which has just reported, and the jobs on its GPU slow each other down too much."""
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
    """Return the relative speeds of ``job`` and of all jobs on its GPU; empty if one of them is unknown."""
    meter = job.attempts[-1].meter
    if meter is None or not meter.neighbours or _is_disturbed(state, job):
        return {}
    everybody = meter.neighbours | {rates.attempt_ref(job)}
    found: dict[JobId, float] = {}
    for each in everybody:
        other = state.jobs.get(each.job)
        if other is None or not other.running or rates.attempt_ref(other) != each:
            return {}
        theirs = other.attempts[-1].meter
        if theirs is None or theirs.neighbours != everybody - {each}:
            return {}
        alone = rates.speed_alone(state, other)
        if theirs.together.count < TOGETHER or not alone:
            return {}
        found[each.job] = theirs.together.steps_per_s / alone
    return found


def _is_disturbed(state: ClusterState, job: Job) -> bool:
    """Return whether a process of no job computes on the job's GPU: that process may be what slows the jobs down."""
    [piece] = job.attempts[-1].allocation.nodes
    return not state.nodes[piece.node].foreign.keys().isdisjoint(gpu.gpu for gpu in piece.gpus)


def _expendable(job: Job) -> tuple[bool, int, float, int]:
    """Return a key whose maximum leaves: best-effort jobs first, then less urgent ones, then those that came last."""
    return (job.spec.job_class is JobClass.BEST_EFFORT, job.priority, job.attempts[-1].placed, job.sequence)


def _sent_away(state: ClusterState, job: Job, others: tuple[JobId, ...], total: float) -> Iterator[Event]:
    attempt, room = job.attempts[-1], None
    if job.spec.suspend is not SuspendMode.SWAP:  # a swapped job could come back to the same GPU only
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
    """Put a job suspended for interference into the queue while there is room for it, and take it out otherwise."""
    for id, was_away in list(state.displaced.items()):
        job = state.jobs.get(id)
        if job is None or job.end is not None:
            del state.displaced[id]
            continue
        books = state.pools[job.pool].books
        is_away = job.waiting and job.planned is None and Trial(books).find(job, job.gpus_min) is None
        if is_away is not was_away:
            state.displaced[id] = is_away
            state.refresh(job, now)
        if is_away and id not in state.blocked_by_bookings:  # bookings keep it out even of an empty cluster
            job.reason = f"suspended until there is room apart from {kept_from(job, books) or 'others'}"


def _say(event: e.InterferenceFound) -> str:
    others, speeds = ", ".join(event.others), " + ".join(f"{speed:.2f}" for speed in event.speeds)
    return f"disturbed beside job {others} on GPU {event.gpu}: {speeds} of their speeds alone"


RULES: Final = (Rule(e.InterferenceFound, apply=about_job(_found), say=_say),)
