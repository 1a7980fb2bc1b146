"""Applies the ends of attempts, and decides what becomes of their jobs."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.commands import Command, Forget
from ebbtide_core.estimates import restart_costs
from ebbtide_core.events import Event
from ebbtide_core.events.words import on
from ebbtide_core.job import gang
from ebbtide_core.job.facets import AttemptEnd, End
from ebbtide_core.job.job import Attempt, Job, StopOrder
from ebbtide_core.job.outcome import Ending, Outcome, after_stop, describe_exit, is_redone, read_exit, read_fate
from ebbtide_core.lifecycle import halving_tasks, log_matches, swaps, unsaved_work
from ebbtide_core.measuring import gpu_memory, rates
from ebbtide_core.model import limits
from ebbtide_core.model.types import Checkpointed, ExitFacts, HeldBy, JobState, RefusalCause, StopCause
from ebbtide_core.nodes import failing_nodes, launch_backoff, node_health
from ebbtide_core.reconcile import stop
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState


def _may_end(state: ClusterState, event: e.AttemptExited | e.AttemptRefused) -> bool:
    attempt = state.newest(event.job, event.attempt)
    if attempt is None or attempt.end is not None:
        return False
    if not event.node or not gang.has_ended(attempt, event.node):
        return True
    return gang.is_to_follow(attempt, event.node) and bool(state.nodes[event.node].dead)


def _exited(state: ClusterState, job: Job, event: e.AttemptExited, now: float) -> None:
    attempt = job.attempts[-1]
    if event.progress is not None:
        job.measured = job.measured.after(event.progress, now)
    if event.node:
        gang.note_end(attempt, event, now)
        _end_gang_if_over(state, job, attempt, now)
    else:
        _end_attempt(state, job, attempt, event.exit, event.freed, now)


def _end_gang_if_over(state: ClusterState, job: Job, attempt: Attempt, now: float) -> None:
    if not gang.is_over(attempt):
        if gang.leader_ended_well(attempt):
            state.set_deadline(job, now + limits.GANG_FOLLOW_S)
    elif (refused := gang.refusal(attempt)) is not None:
        _end_refused(state, job, attempt, refused, gang.is_free(attempt), now)
    else:
        _end_attempt(state, job, attempt, gang.exit_of(attempt), gang.is_free(attempt), now)


def _end_attempt(state: ClusterState, job: Job, attempt: Attempt, exit: ExitFacts, freed: bool, now: float) -> None:
    """End an attempt that has no process left on any node; ``exit`` says how it ended."""
    if attempt.off_gpu and job.claiming:
        state.unplan(job)  # a swapped-out attempt claimed the only room for it; the next attempt may get other room
    if freed:
        _free(state, job, attempt, now)
    elif attempt.stop is None:
        state.unplan(job)
    if job.spec.asha is not None:
        halving_tasks.attempt_ended(state, job)
    order = attempt.stop
    cause, why = (None, "") if order is None or order.cause is StopCause.BROKEN else (order.cause, order.reason)
    outcome = read_exit(exit, job.spec, cause, why)
    fate = read_fate(exit, outcome.ending, published=attempt.published)
    if exit.out_of_memory or exit.gpu_mem_peak_bytes is not None:
        outcome = gpu_memory.read_end(job, attempt, exit, outcome)
    if attempt.matches:
        outcome = log_matches.read_end(attempt.matches, outcome)
    redone_since = None
    if attempt.first_started is not None and is_redone(fate, exit) and not _is_last(job, outcome):
        redone_since = attempt.placed if attempt.saved_at is None else attempt.saved_at
    _count_run(state, job, attempt, redone_since, now)
    attempt.end = AttemptEnd(now, exit, outcome.reason, now if freed else None, fate, redone_since)
    if state.failing or outcome.ending is Ending.FAILED:
        failing_nodes.note(state, job, attempt, outcome.ending, now)
    if job.held_by is not HeldBy.SYSTEM:  # a job that the system holds shows why until a user releases it
        job.reason = outcome.reason
    _finish_suspension(job, attempt, exit, now)
    _follow(state, job, attempt, exit, outcome, now)


def _is_last(job: Job, outcome: Outcome) -> bool:
    """Return whether no attempt of the job follows one that ended so."""
    match outcome.ending:
        case Ending.COMPLETED | Ending.CANCELLED | Ending.TIMED_OUT | Ending.EXPELLED:
            return True
        case Ending.FAILED:
            return outcome.final or job.retries.failures >= job.spec.retries
        case _:
            return False


def _count_run(state: ClusterState, job: Job, attempt: Attempt, redone_since: float | None, now: float) -> None:
    """Add the attempt's running time and work; what came after the request to stop, or is to be redone, is no work."""
    until, ran_s, work_s = attempt.stop.requested if attempt.stop is not None else now, 0.0, 0.0
    if redone_since is not None:
        until = min(until, redone_since)
        work_s = 0.0 if attempt.swap is None else -attempt.swap.unsaved_work_s
        checkpoint = job.saved.checkpoint
        job.measured = job.measured.back_at(None if checkpoint is None else checkpoint.step)
    if attempt.started is not None:
        ran_s, work_s = now - attempt.started, work_s + max(0.0, until - attempt.started) * state.speed(attempt)
    job.times = job.times.after_run(max(0.0, ran_s), work_s)


def _finish_suspension(job: Job, attempt: Attempt, exit: ExitFacts, now: float) -> None:
    if exit.swap_failure and job.suspensions:
        swaps.add_note(job.suspensions[-1], exit.swap_failure)
    if attempt.stop is None or not job.suspensions or job.suspensions[-1].exited is not None:
        return
    suspension = job.suspensions[-1]
    suspension.exited, suspension.checkpointed = now, exit.checkpointed
    suspension.checkpoint_s = exit.checkpoint_s or None
    suspension.left_step = job.measured.progress.step if job.measured.progress is not None else None
    if job.saved.checkpoint is not None and job.saved.checkpoint.verified:
        suspension.kept_step = job.saved.checkpoint.step
    restart_costs.note_save(job, attempt, exit)
    if suspension.checkpointed is Checkpointed.YES and attempt.published and job.saved.checkpoint is not None:
        suspension.checkpoint_bytes = job.saved.checkpoint.bytes


def _follow(state: ClusterState, job: Job, attempt: Attempt, exit: ExitFacts, outcome: Outcome, now: float) -> None:
    match outcome.ending:
        case Ending.COMPLETED:
            state.history.add(job)
            end_job(state, job, End(JobState.COMPLETED, now, exit.code), outcome.reason)
        case Ending.CANCELLED:
            end_job(state, job, End(JobState.CANCELLED, now, exit.code), outcome.reason)
        case Ending.TIMED_OUT | Ending.EXPELLED:
            end_job(state, job, End(JobState.FAILED, now, exit.code), outcome.reason)
        case Ending.FAILED if _is_last(job, outcome):
            end_job(state, job, End(JobState.FAILED, now, exit.code), outcome.reason)
        case Ending.FAILED:
            retries = job.retries
            job.retries = replace(retries, restarts=retries.restarts + 1, failures=retries.failures + 1)
            job.next = replace(job.next, resumes=False)
            _back_off(job, job.retries.failures, now)
        case Ending.REQUEUED:
            in_row = 0 if attempt.published else job.retries.requeues_in_row + 1
            job.retries = replace(job.retries, restarts=job.retries.restarts + 1, requeues_in_row=in_row)
            job.next = job.next.resuming()
            _back_off(job, job.retries.requeues_in_row, now)
        case Ending.INTERRUPTED:
            job.retries = replace(job.retries, restarts=job.retries.restarts + 1)
            job.next = job.next.returning()
            _count_fruitless(job, attempt, exit, outcome)
        case Ending.SUSPENDED:
            _count_fruitless(job, attempt, exit, outcome)


def _back_off(job: Job, times: int, now: float) -> None:
    job.next = replace(job.next, at_head=True, not_before=now + launch_backoff.pause_s(times))


def _count_fruitless(job: Job, attempt: Attempt, exit: ExitFacts, outcome: Outcome) -> None:
    saved = attempt.published or exit.checkpointed is Checkpointed.YES
    job.suspending.fruitless_in_row = 0 if saved or outcome.clean else job.suspending.fruitless_in_row + 1
    job.next = job.next.resuming()


def end_job(state: ClusterState, job: Job, end: End, reason: str) -> None:
    job.end, job.reason, job.held_by = end, reason, None
    state.pools[job.pool].came_back.forget(job.id)
    if job.gpu_memory.peak_bytes:
        gpu_memory.remember(state, job, end.state)
    if job.spec.asha is not None:
        halving_tasks.task_ended(state, job)
    state.unplan(job)


def _may_be_freed(state: ClusterState, event: e.AttemptFreed) -> bool:
    attempt = state.newest(event.job, event.attempt)
    if attempt is None or attempt.freed is not None:
        return False
    if not event.node:
        return attempt.end is not None
    return gang.has_ended(attempt, event.node) and not gang.has_freed(attempt, event.node)


def _freed(state: ClusterState, job: Job, event: e.AttemptFreed, now: float) -> None:
    attempt = job.attempts[-1]
    if event.node:
        gang.of(attempt).members[event.node].freed = True
    if attempt.end is not None and (not event.node or gang.is_free(attempt)):
        _free(state, job, attempt, now)
        attempt.end = replace(attempt.end, freed=now)
    for piece in attempt.allocation:
        node = state.nodes[piece.node]
        for gpu in set(event.dirty_gpus) & node.gpus.keys():
            node.set_quarantine(gpu, f"job {job.id} ended, but {event.why_dirty(gpu)}")
            state.refresh_node(node)


def _free(state: ClusterState, job: Job, attempt: Attempt, now: float) -> None:
    """Free in the books what the newest attempt held, which is proven free."""
    if not attempt.off_gpu:
        state.vacate(job)
    if attempt.swap is not None:
        swaps.free_kept(state, job, attempt.swap)
    if job.suspensions and job.suspensions[-1].gpu_free is None:
        job.suspensions[-1].gpu_free = now


def _refused(state: ClusterState, job: Job, event: e.AttemptRefused, now: float) -> None:
    attempt = job.attempts[-1]
    if event.node:
        gang.note_end(attempt, event, now)
        _end_gang_if_over(state, job, attempt, now)
    else:
        _end_refused(state, job, attempt, event, True, now)


def _end_refused(
    state: ClusterState, job: Job, attempt: Attempt, refusal: e.AttemptRefused, freed: bool, now: float
) -> None:
    """End an attempt that has no process left because a node refused to start it, or its part of it."""
    if freed:
        _free(state, job, attempt, now)
    elif attempt.stop is None:
        state.unplan(job)
    attempt.end = AttemptEnd(now, None, f"not started: {refusal.reason}", freed=now if freed else None)
    if job.spec.asha is not None:
        halving_tasks.attempt_ended(state, job)
    order = attempt.stop
    if order is not None and (order.cause.final or refusal.cause is RefusalCause.STOPPED):
        _follow_stop(state, job, order, now)
        return
    job.reason = refusal.reason
    match refusal.cause:
        case RefusalCause.BAD_JOB:
            end_job(state, job, End(JobState.FAILED, now, job.exit_code), refusal.reason)
        case RefusalCause.NO_CHECKPOINT:
            job.held_by = HeldBy.SYSTEM
        case RefusalCause.NOT_MOVED:
            job.saved, job.next = replace(job.saved, move_failure=refusal.reason), job.next.returning()
            launch_backoff.note(job, refusal, now)
        case RefusalCause.NO_PATH | RefusalCause.NO_ACCOUNT | RefusalCause.NO_STDIN:
            job.next = job.next.returning()
        case RefusalCause.NODE:
            job.retries = replace(job.retries, requeues_in_row=job.retries.requeues_in_row + 1)
            _back_off(job, job.retries.requeues_in_row, now)
            launch_backoff.note(job, refusal, now)


def _follow_stop(state: ClusterState, job: Job, order: StopOrder, now: float) -> None:
    """Let a job whose attempt was asked to stop before it ran wait, or end, as the request says; no launch failed."""
    outcome = after_stop(order.cause, order.reason)
    if outcome is not None:
        ended = JobState.CANCELLED if outcome.ending is Ending.CANCELLED else JobState.FAILED
        end_job(state, job, End(ended, now, job.exit_code), outcome.reason)
        return
    job.next = job.next.returning()
    if job.held_by is not HeldBy.SYSTEM:
        job.reason = order.reason


# --- what follows ---


def _after_refusal(state: ClusterState, event: e.AttemptRefused) -> Iterator[Event]:
    yield from node_health.exclude_refusing(state, event)
    yield from _after_end(state, event)


def _after_end(state: ClusterState, event: e.AttemptExited | e.AttemptRefused) -> Iterable[Event]:
    """Yield what follows from the end of an attempt, or of its part on one node.

    A member that broke up a gang ends it on all nodes. After too many suspensions that saved nothing the job is held.
    """
    job = state.jobs[event.job]
    attempt = job.attempts[-1]
    if attempt.gang is not None and attempt.gang.broken_by is not None and job.running:
        return (stop(job, StopCause.BROKEN, gang.why_broken(attempt), grace_s=limits.GANG_GRACE_S),)
    if attempt.end is None:
        return ()
    events = (*unsaved_work.find(job, attempt), *(rates.final_records(state, job) if attempt.meter is not None else ()))
    if job.gpu_memory.alone_after and (change := gpu_memory.after_end(state, job, attempt)) is not None:
        return (*events, change)
    if attempt.matches:
        events = (*events, *log_matches.hold_if_nowhere(state, job))
    if state.failing:
        events = (*events, *failing_nodes.drained(state, attempt))
    return (*events, *_hold_if_fruitless(job)) if isinstance(event, e.AttemptExited) else events


def _hold_if_fruitless(job: Job) -> Iterable[Event]:
    if job.end is not None or job.suspending.fruitless_in_row < limits.MAX_FRUITLESS_SUSPENSIONS:
        return ()
    reason = f"held: ended {job.suspending.fruitless_in_row} times in a row without saving ({job.reason})"
    return (e.JobHeld(job.id, HeldBy.SYSTEM, reason),)


def _forget(state: ClusterState, event: e.AttemptExited | e.AttemptFreed | e.AttemptRefused) -> Iterable[Command]:
    attempt = state.jobs[event.job].attempts[event.attempt - 1]
    if attempt.freed is None:
        return ()
    return (Forget(attempt.allocation.node_ids, event.job, event.attempt),)


def _forget_again(state: ClusterState, event: e.AttemptExited | e.AttemptFreed | e.AttemptRefused) -> Iterable[Command]:
    """Let a node that reports the end of an attempt once more forget it: it has not received that command."""
    job = state.jobs.get(event.job)
    if job is None or not 0 < event.attempt <= len(job.attempts):
        return ()
    if isinstance(event, e.AttemptExited) and not event.freed:
        return ()
    return _forget(state, event)


# --- in words ---


def _say_exited(event: e.AttemptExited) -> str:
    free = "; what it held is free" if event.freed else ""
    exit = event.exit
    why = f" ({exit.mps_failure})" if exit.mps_failure else ", out of GPU memory" if exit.out_of_memory else ""
    return f"attempt {event.attempt} ended{on(event.node)}: {describe_exit(exit)}{why}{free}"


def _say_freed(event: e.AttemptFreed) -> str:
    dirty = "".join([f"; not {gpu}: {event.why_dirty(gpu)}" for gpu in event.dirty_gpus])
    return f"what attempt {event.attempt} held{on(event.node)} is free{dirty}"


RULES: Final = (
    Rule(
        e.AttemptExited,
        news=_may_end,
        again=_forget_again,
        apply=about_job(_exited),
        command=_forget,
        decide=_after_end,
        say=_say_exited,
    ),
    Rule(
        e.AttemptFreed,
        news=_may_be_freed,
        again=_forget_again,
        apply=about_job(_freed),
        command=_forget,
        say=_say_freed,
    ),
    Rule(
        e.AttemptRefused,
        news=_may_end,
        again=_forget_again,
        apply=about_job(_refused),
        command=_forget,
        decide=_after_refusal,
        say=lambda event: f"attempt {event.attempt} was not started{on(event.node)}: {event.reason}",
    ),
)
