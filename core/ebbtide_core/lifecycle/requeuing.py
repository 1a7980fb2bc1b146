"""Sends jobs back to the queue, changes the limits of arrays, and cancels jobs that can never start."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.events.words import by
from ebbtide_core.job.facets import End
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle import ending, refusing
from ebbtide_core.lifecycle.refusing import of_unfinished
from ebbtide_core.model.array_checks import check_limits
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.spec_error import SpecError
from ebbtide_core.model.types import JobState, StopCause, gpus
from ebbtide_core.reconcile import stop
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState

# --- back to the queue ---


def _refuse(state: ClusterState, job: Job, event: e.RequeueRequested) -> Refusal | None:
    if not job.running:
        return Refusal(RefusalKind.CONFLICT, f"job {job.id} is {job.state.value}: it has no GPUs to give up")
    return refusing.stop_of_live(state, job, event)


def _note(state: ClusterState, job: Job, event: e.RequeueRequested, now: float) -> None:
    if event.operation_id:
        state.operations[event.operation_id], state.requests[event.operation_id] = job.id, event.request


def _step_aside(state: ClusterState, event: e.RequeueRequested) -> Iterator[Event]:
    if (job := state.jobs[event.job]).running:
        yield stop(job, StopCause.REQUEUED, "requeued by user")


def _requeued(state: ClusterState, job: Job, event: e.JobRequeued, now: float) -> None:
    job.lineage = replace(job.lineage, again_as=event.again_as)


# --- jobs that can never start ---


def given_up(state: ClusterState) -> Iterator[Event]:
    """Yield the decisions to cancel the jobs that can never start, then the jobs that depend on them, and so on."""
    doomed = state.gates.doomed
    while doomed:
        id = next(iter(doomed))
        yield e.DependencyFailed(id, doomed.pop(id))


def _may_be_given_up(state: ClusterState, event: e.DependencyFailed) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and job.end is None


def _give_up(state: ClusterState, job: Job, event: e.DependencyFailed, now: float) -> None:
    if job.live is None:
        ending.end_job(state, job, End(JobState.CANCELLED, now, job.exit_code), event.reason)


# --- the limits of arrays ---


def _refuse_limits(state: ClusterState, event: e.ArrayChanged) -> Refusal | None:
    if event.job not in state.gates.arrays:
        return Refusal(RefusalKind.UNKNOWN, f"array {event.job} does not exist")
    try:
        check_limits(event.max_concurrent, event.max_slots)
    except SpecError as error:
        return Refusal(RefusalKind.INVALID, str(error))
    tasks = state.gates.arrays[event.job].tasks.values()
    needed = max((job.gpus_min for job in tasks if not job.state.finished), default=0)
    if event.max_slots and needed > event.max_slots:
        message = f"--max-slots: {gpus(event.max_slots)} are less than the {gpus(needed)} of one task"
        return Refusal(RefusalKind.INVALID, message)
    return None


def _is_another_limit(state: ClusterState, event: e.ArrayChanged) -> bool:
    array = state.gates.arrays.get(event.job)
    limits = (event.max_concurrent, event.max_slots)
    return array is not None and (array.max_concurrent, array.max_slots) != limits


def _change_limits(state: ClusterState, event: e.ArrayChanged, now: float) -> None:
    state.change_array(event.job, event.max_concurrent, event.max_slots, now)


def _say_limits(event: e.ArrayChanged) -> str:
    old, new = gpus(event.old_slots), gpus(event.max_slots)
    changes = (("jobs", event.old_concurrent, event.max_concurrent), ("GPUs", old, new))
    words = [
        f"{what} at a time {before or 'all'} → {after or 'all'}" for what, before, after in changes if before != after
    ]
    return f"{', '.join(words) or 'nothing changed'}{by(event.user)}"


RULES: Final = (
    Rule(
        e.RequeueRequested,
        refuse=of_unfinished(_refuse),
        apply=about_job(_note),
        decide=_step_aside,
        say=lambda event: "user asked for it to go back to the queue",
    ),
    Rule(e.JobRequeued, apply=about_job(_requeued), say=lambda event: f"submitted again, as job {event.again_as}"),
    Rule(
        e.DependencyFailed,
        news=_may_be_given_up,
        apply=about_job(_give_up),
        say=lambda event: event.reason,
    ),
    Rule(
        e.ArrayChanged,
        refuse=_refuse_limits,
        news=_is_another_limit,
        apply=_change_limits,
        say=_say_limits,
    ),
)
