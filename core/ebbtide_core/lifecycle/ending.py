"""How attempts end, and what becomes of their jobs then: a part of `ebbtide_core.transitions.fold`."""

from dataclasses import replace

from ebbtide_core import events as e
from ebbtide_core.estimates import restart_costs
from ebbtide_core.job import gang
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.outcome import Ending, Outcome, read_exit
from ebbtide_core.lifecycle import log_matches, successive_halving, swaps
from ebbtide_core.measuring import gpu_memory
from ebbtide_core.model import limits
from ebbtide_core.model.types import Checkpointed, ExitFacts, HeldBy, JobState, RefusalCause, StopCause
from ebbtide_core.nodes import failing_nodes, launch_backoff
from ebbtide_core.state import ClusterState


def exited(state: ClusterState, job: Job, event: e.AttemptExited, now: float) -> None:
    attempt = job.attempts[-1]
    if event.progress is not None:
        job.progress, job.progress_at = event.progress, now
    if event.node:
        gang.note_end(attempt, event, now)
        _end_gang_if_over(state, job, attempt, now)
    else:
        _end_attempt(state, job, attempt, event.exit, event.freed, now)


def _end_gang_if_over(state: ClusterState, job: Job, attempt: Attempt, now: float) -> None:
    """Read the end of an attempt on several nodes once all of them have ended."""
    if not gang.is_over(attempt):
        if gang.leader_ended_well(attempt):
            state.set_deadline(job, now + limits.GANG_FOLLOW_S)
    elif (refused := gang.refusal(attempt)) is not None:
        _end_refused(state, job, attempt, refused, gang.is_free(attempt), now)
    else:
        _end_attempt(state, job, attempt, gang.exit_of(attempt), gang.is_free(attempt), now)


def _end_attempt(state: ClusterState, job: Job, attempt: Attempt, exit: ExitFacts, freed: bool, now: float) -> None:
    """No process of the attempt is left anywhere, and ``exit`` says how it ended."""
    if attempt.off_gpu and job.claiming:
        state.unplan(job)  # it claimed the only room that it could have; from now on there may be other
    if freed:
        _free(state, job, attempt, now)
    elif attempt.stop is None:
        state.unplan(job)
    attempt.exited, attempt.exit = now, exit
    job.own_room = None
    if job.spec.asha is not None:
        successive_halving.left(state, job)
    if attempt.started is not None:
        _count_run(state, job, attempt, exit, now)
    order = attempt.stop
    cause, why = (None, "") if order is None or order.cause is StopCause.BROKEN else (order.cause, order.reason)
    outcome = read_exit(exit, job.spec, cause, why)
    if exit.out_of_memory or exit.gpu_mem_peak_bytes is not None:
        outcome = gpu_memory.read_end(job, attempt, exit, outcome)
    if attempt.matches:
        outcome = log_matches.read_end(attempt.matches, outcome)
    attempt.outcome = outcome.reason
    if state.failing or outcome.ending is Ending.FAILED:
        failing_nodes.note(state, job, attempt, outcome.ending, now)
    if job.held_by is not HeldBy.SYSTEM:  # what the system holds says why until somebody releases it
        job.reason = outcome.reason
    _finish_suspension(job, attempt, exit, now)
    _follow(state, job, attempt, outcome, now)


def _count_run(state: ClusterState, job: Job, attempt: Attempt, exit: ExitFacts, now: float) -> None:
    """Add up time and work; what was done after the request to stop, or was not saved, does not count as work."""
    assert attempt.started is not None
    job.ran_s += max(0.0, now - attempt.started)
    stopped = attempt.stop.requested if attempt.stop is not None else now
    if attempt.stop is None or exit.checkpointed is not Checkpointed.NO:
        job.work_s += max(0.0, stopped - attempt.started) * state.speed(attempt)


def _finish_suspension(job: Job, attempt: Attempt, exit: ExitFacts, now: float) -> None:
    if exit.swap_failure and job.suspensions:
        swaps.add_note(job.suspensions[-1], exit.swap_failure)
    if attempt.stop is None or not job.suspensions or job.suspensions[-1].exited is not None:
        return
    suspension = job.suspensions[-1]
    suspension.exited, suspension.checkpointed = now, exit.checkpointed
    suspension.checkpoint_s = exit.checkpoint_s or None
    suspension.left_step = job.progress.step if job.progress is not None else None
    if job.checkpoint is not None and job.checkpoint.verified:
        suspension.kept_step = job.checkpoint.step
    restart_costs.note_save(job, attempt, exit)
    if suspension.checkpointed is Checkpointed.YES and attempt.published and job.checkpoint is not None:
        suspension.checkpoint_bytes = job.checkpoint.bytes


def _follow(state: ClusterState, job: Job, attempt: Attempt, outcome: Outcome, now: float) -> None:
    """What an attempt's outcome means for its job."""
    exit = attempt.exit
    assert exit is not None
    job.exit_code = None if exit.lost else (128 + exit.signal if exit.signal else exit.exit_code)
    match outcome.ending:
        case Ending.COMPLETED:
            state.history.add(job)
            end_job(state, job, JobState.COMPLETED, outcome.reason, now)
        case Ending.CANCELLED:
            end_job(state, job, JobState.CANCELLED, outcome.reason, now)
        case Ending.TIMED_OUT | Ending.EXPELLED:
            end_job(state, job, JobState.FAILED, outcome.reason, now)
        case Ending.FAILED if outcome.final or job.failures >= job.spec.retries:
            end_job(state, job, JobState.FAILED, outcome.reason, now)
        case Ending.FAILED:
            job.failures += 1
            job.restarts += 1
            job.suspended = False
            _back_off(job, job.failures, now)
        case Ending.REQUEUED:
            job.restarts += 1
            job.suspended = True
            job.requeues_in_row = 0 if attempt.published else job.requeues_in_row + 1
            _back_off(job, job.requeues_in_row, now)
        case Ending.INTERRUPTED:
            job.restarts += 1
            job.returns = True
            _count_fruitless(job, attempt, outcome)
        case Ending.SUSPENDED:
            _count_fruitless(job, attempt, outcome)


def _back_off(job: Job, times: int, now: float) -> None:
    job.returns = True
    job.not_before = now + min(limits.REQUEUE_BACKOFF_S * 2.0 ** max(0, times - 1), limits.MAX_REQUEUE_BACKOFF_S)


def _count_fruitless(job: Job, attempt: Attempt, outcome: Outcome) -> None:
    saved = attempt.published or (attempt.exit is not None and attempt.exit.checkpointed is Checkpointed.YES)
    job.fruitless_suspensions = 0 if saved or outcome.clean else job.fruitless_suspensions + 1
    job.suspended = True


def end_job(state: ClusterState, job: Job, ending: JobState, reason: str, now: float) -> None:
    job.ending, job.ended, job.reason, job.held_by = ending, now, reason, None
    if came_back := state.pools[job.pool].came_back:
        came_back.pop(job.id, None)
    if job.gpu_mem_peak_bytes:
        gpu_memory.remember(state, job, ending)
    if job.spec.asha is not None:
        successive_halving.ended(state, job)
    state.unplan(job)


def freed(state: ClusterState, job: Job, event: e.AttemptFreed, now: float) -> None:
    attempt = job.attempts[-1]
    if event.node:
        attempt.members[event.node].freed = True
    if not event.node or (attempt.exited is not None and gang.is_free(attempt)):
        _free(state, job, attempt, now)
    for piece in attempt.allocation:
        node = state.nodes[piece.node]
        for gpu in set(event.dirty_gpus) & node.gpus.keys():
            reason = node.quarantine[gpu] = f"job {job.id} ended, but {event.why_dirty(gpu)}"
            node.gpus[gpu] = replace(node.gpus[gpu], healthy=False, unhealthy_reason=reason)
            state.refresh_node(node)


def _free(state: ClusterState, job: Job, attempt: Attempt, now: float) -> None:
    """What the newest attempt held is proven free."""
    if not attempt.off_gpu:
        state.vacate(job)
    if attempt.kept is not None:
        swaps.let_go(state, job, attempt)
    attempt.freed = now
    if job.suspensions and job.suspensions[-1].gpu_free is None:
        job.suspensions[-1].gpu_free = now


def refused(state: ClusterState, job: Job, event: e.AttemptRefused, now: float) -> None:
    attempt = job.attempts[-1]
    if event.node:
        gang.note_end(attempt, event, now)
        _end_gang_if_over(state, job, attempt, now)
    else:
        _end_refused(state, job, attempt, event, True, now)


def _end_refused(
    state: ClusterState, job: Job, attempt: Attempt, refusal: e.AttemptRefused, freed: bool, now: float
) -> None:
    """No process of the attempt is left anywhere, because it was not started, or not on all of its nodes."""
    if freed:
        _free(state, job, attempt, now)
    elif attempt.stop is None:
        state.unplan(job)
    attempt.exited, job.own_room = now, None
    if job.spec.asha is not None:
        successive_halving.left(state, job)
    attempt.outcome = f"not started: {refusal.reason}"
    if attempt.stop is not None and attempt.stop.cause.final:
        end_job(state, job, JobState.CANCELLED, "cancelled by user", now)
        return
    job.reason = refusal.reason
    match refusal.cause:
        case RefusalCause.BAD_JOB:
            end_job(state, job, JobState.FAILED, refusal.reason, now)
        case RefusalCause.NO_CHECKPOINT:
            job.held_by = HeldBy.SYSTEM
        case RefusalCause.NOT_MOVED:
            job.move_failure, job.returns = refusal.reason, True
            launch_backoff.note(job, refusal, now)
        case RefusalCause.NO_PATH | RefusalCause.NO_ACCOUNT:
            job.returns = True
        case RefusalCause.NODE:
            job.requeues_in_row += 1
            _back_off(job, job.requeues_in_row, now)
            launch_backoff.note(job, refusal, now)
