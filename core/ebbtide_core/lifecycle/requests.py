"""Applies users' requests about a job: hold, release, suspend, resume, resize, a new priority, a drill, or a cancel."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.events.words import by, until_then
from ebbtide_core.job.facets import End
from ebbtide_core.job.job import ITS_TURN, Job
from ebbtide_core.lifecycle import ending, refusing
from ebbtide_core.lifecycle.refusing import of_unfinished
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.spec.resources import check_gpu_range
from ebbtide_core.model.spec.scheduling import check_standing
from ebbtide_core.model.spec_error import SpecError
from ebbtide_core.model.types import HeldBy, JobState, StopCause, SuspendMode, gpus
from ebbtide_core.nodes import node_health, strays
from ebbtide_core.planning.draft import count_range
from ebbtide_core.reconcile import stop
from ebbtide_core.resources.infeasible import infeasible_refusal
from ebbtide_core.rule import Rule, about_job, change_nothing
from ebbtide_core.state import ClusterState

# --- hold and release, suspend and resume ---


def _hold(state: ClusterState, job: Job, event: e.HoldRequested | e.SuspendRequested, now: float) -> None:
    job.held_by = HeldBy.USER
    if job.claiming:
        state.unplan(job)
    if job.live is None or job.off_gpu:
        job.reason = "suspended by user" if job.state is JobState.SUSPENDED else "held by user"


def _suspend(state: ClusterState, event: e.SuspendRequested) -> Iterator[Event]:
    if (job := state.jobs[event.job]).running:
        yield stop(job, StopCause.SUSPENDED, "suspended by user")


def _release(state: ClusterState, job: Job, event: e.ReleaseRequested | e.ResumeRequested, now: float) -> None:
    if job.held_by is not None:  # a job in the queue must keep its move_failure: the queue groups jobs by it
        job.saved = replace(job.saved, move_failure="")
    job.held_by = None
    own = job.eligibility
    if (own.excluded or own.excluded_gpus) and isinstance(event, e.ReleaseRequested):
        node_health.readmit(state, job)
    job.suspending.fruitless_in_row = 0
    job.retries = replace(job.retries, requeues_in_row=0)
    job.next = replace(job.next, not_before=0.0)
    if job.live is None or job.off_gpu:
        job.reason = ITS_TURN


def _held_by_system(state: ClusterState, job: Job, event: e.JobHeld, now: float) -> None:
    job.held_by, job.reason = event.by, event.reason
    if job.claiming:
        state.unplan(job)


# --- another size ---


def _refuse_resize(state: ClusterState, job: Job, event: e.ResizeRequested) -> Refusal | None:
    if (refusal := refusing.stop_of_live(state, job, event)) is not None:
        return refusal
    try:
        check_gpu_range(event.gpus_min, event.gpus_max, job.spec.nodes)
    except SpecError as error:
        return Refusal(RefusalKind.INVALID, str(error))
    if (refusal := _over_limits(job, event.gpus_min)) is not None:
        return refusal
    if (event.gpus_min == 0) != (job.gpus_min == 0):
        return Refusal(RefusalKind.INVALID, "--gpus: a job cannot change between GPUs and no GPUs")
    if job.spec.suspend is SuspendMode.SWAP:
        return Refusal(RefusalKind.CONFLICT, f"job {job.id} was submitted with --suspend swap: it keeps its size")
    return infeasible_refusal(state.pools[job.next.pool or job.pool], job.spec, event.gpus_min)


def _over_limits(job: Job, gpus_min: int) -> Refusal | None:
    """Return a refusal if ``gpus_min`` parts are more than the job's array or its user's quota leaves it."""
    admission = job.admission
    if admission is None:
        return None
    for cap, whose in zip(admission.caps, (f"array {admission.group.array}", f"the quota of {job.user}"), strict=False):
        others = cap.parts - admission.cost if admission.admitted else 0
        if cap.max_parts is not None and others + gpus_min > cap.max_parts:
            left = gpus(max(0, cap.max_parts - others))
            what = f"{gpus(gpus_min)} is more than the {left} left of the {gpus(cap.max_parts)} of {whose}"
            return Refusal(RefusalKind.LIMIT, f"--gpus: {what}")
    return None


def _resize(state: ClusterState, job: Job, event: e.ResizeRequested, now: float) -> None:
    job.gpus_min, job.gpus_max, job.range_changed = event.gpus_min, event.gpus_max, True
    if job.admission is not None:
        job.admission.ask(event.gpus_max)
    if job.claiming:
        state.unplan(job)


# --- another place in the queue ---


def _refuse_change(state: ClusterState, job: Job, event: e.JobChanged) -> Refusal | None:
    try:
        check_standing(event.priority, event.weight)
    except SpecError as error:
        return Refusal(RefusalKind.INVALID, str(error))
    return None


def _is_a_change(state: ClusterState, event: e.JobChanged) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and (job.priority, job.weight) != (event.priority, event.weight)


def _change(state: ClusterState, job: Job, event: e.JobChanged, now: float) -> None:
    job.priority, job.weight = event.priority, event.weight


def _say_change(event: e.JobChanged) -> str:
    changes = (("priority", event.old_priority, event.priority), ("weight", event.old_weight, event.weight))
    words = [f"{what} {old:g} → {new:g}" for what, old, new in changes if old != new]
    return f"{', '.join(words) or 'nothing changed'}{by(event.user)}"


# --- drills ---


def _refuse_drill(state: ClusterState, job: Job, event: e.DrillRequested) -> Refusal | None:
    if job.state is not JobState.RUNNING:
        return Refusal(RefusalKind.CONFLICT, f"job {job.id} is {job.state.value}: only one that runs can be drilled")
    if job.held_by is not None:  # a held job would keep its room, and its hold would keep it from coming back
        return Refusal(RefusalKind.CONFLICT, f"job {job.id} is held: release it first, so that it can come back")
    if not job.preemptible:
        return Refusal(RefusalKind.CONFLICT, f"job {job.id} was submitted with --suspend none: it is never asked")
    return None


def _drill(state: ClusterState, event: e.DrillRequested) -> Iterator[Event]:
    """Stop the job, and claim its room for it, so that it comes back by itself."""
    if (job := state.jobs[event.job]).running:
        allocation = job.attempts[-1].allocation
        yield stop(job, StopCause.DRILLED, "drill: stepping aside, to come back at once")
        yield e.RoomClaimed(job.id, allocation, "drill: stepping aside, to come back at once")


# --- the end ---


def _cancel(state: ClusterState, job: Job, event: e.CancelRequested, now: float) -> None:
    if job.live is None:
        ending.end_job(state, job, End(JobState.CANCELLED, now, job.exit_code), "cancelled by user")


def _stop_cancelled(state: ClusterState, event: e.CancelRequested) -> Iterator[Event]:
    job = state.jobs[event.job]
    live = job.live
    if live is None:
        return
    grace_s = 0.0 if event.now else job.spec.grace_s
    if live.stop is None or live.stop.cause is not StopCause.CANCELLED or event.now:
        yield stop(job, StopCause.CANCELLED, "cancelled by user", grace_s=grace_s)


RULES: Final = (
    Rule(
        e.HoldRequested,
        refuse=of_unfinished(refusing.nothing),
        apply=about_job(_hold),
        say=lambda event: f"held by user{until_then(event.waited)}",
    ),
    Rule(
        e.ReleaseRequested,
        refuse=of_unfinished(strays.refuse_start),
        apply=about_job(_release),
        say=lambda event: "released by user",
    ),
    Rule(
        e.SuspendRequested,
        refuse=of_unfinished(refusing.stop_of_live),
        apply=about_job(_hold),
        decide=_suspend,
        say=lambda event: f"user asked to suspend it{until_then(event.waited)}",
    ),
    Rule(
        e.ResumeRequested,
        refuse=of_unfinished(strays.refuse_start),
        apply=about_job(_release),
        say=lambda event: "user asked to resume it",
    ),
    Rule(e.JobHeld, apply=about_job(_held_by_system), say=lambda event: event.reason),
    Rule(
        e.ResizeRequested,
        refuse=of_unfinished(_refuse_resize),
        apply=about_job(_resize),
        say=lambda event: f"user asked for {count_range(event.gpus_min, event.gpus_max)}",
    ),
    Rule(
        e.JobChanged,
        refuse=of_unfinished(_refuse_change),
        news=_is_a_change,
        apply=about_job(_change),
        say=_say_change,
    ),
    Rule(
        e.DrillRequested,
        refuse=of_unfinished(_refuse_drill),
        apply=about_job(change_nothing),
        decide=_drill,
        say=lambda event: "user asked for a drill: to step aside and come back at once",
    ),
    Rule(
        e.CancelRequested,
        refuse=of_unfinished(refusing.nothing),
        apply=about_job(_cancel),
        decide=_stop_cancelled,
        say=lambda event: f"user asked to cancel it{' at once' if event.now else ''}{until_then(event.waited)}",
    ),
)
