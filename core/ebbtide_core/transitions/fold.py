"""What each event changes: the state is the fold of these over the journal. No decisions are made here.

What changes nothing is kept out by `ebbtide_core.transitions.fences`.
"""

from collections.abc import Callable
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.estimates import restart_costs
from ebbtide_core.events import Event
from ebbtide_core.job import edited_scripts, gang
from ebbtide_core.job.job import ITS_TURN, Attempt, Job, StopOrder, Suspension
from ebbtide_core.lifecycle import (
    ending,
    forgetting,
    idling,
    log_matches,
    pool_membership,
    removing,
    requeuing,
    successive_halving,
    swaps,
    unsaved_work,
    unused_sessions,
)
from ebbtide_core.measuring import gpu_memory, interference, rates
from ebbtide_core.model import limits
from ebbtide_core.model.constraints import NO_NEEDS
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.types import HeldBy, JobState, StopCause, SuspendMode
from ebbtide_core.nodes import booking_placement, draining, foreign_use, node_health, quiescing, silence, strays
from ebbtide_core.state import ClusterState


def apply(state: ClusterState, event: Event, now: float) -> None:
    """Change ``state`` by ``event``, which is news."""
    handler = HANDLERS.get(type(event))
    if handler is not None:
        handler(state, event, now)


# --- the master's own life ---


def _master_started(state: ClusterState, event: e.MasterStarted, now: float) -> None:
    state.epoch = event.epoch
    state.recovery_ends = now + limits.RECOVERY_GRACE_S
    state.awaited = {id for id, node in state.nodes.items() if node.attempts}
    state.leasing.clear()  # what the master before this one acknowledged is not known
    for node in state.nodes.values():
        node.connected = False
        state.refresh_node(node)


def _journal_restored(state: ClusterState, event: e.JournalRestored, now: float) -> None:
    state.submissions += event.skipped
    silence.await_all(state)


# --- wishes ---


def _job_submitted(state: ClusterState, event: e.JobSubmitted, now: float) -> None:
    spec = event.spec
    job = Job(event.job, spec, event.user, now, state.submissions, spec.gpus_min, spec.gpus_max)
    job.proved, job.pool = state.trusting, spec.pool or DEFAULT_POOL
    job.choosy = spec.needs is not NO_NEEDS and spec.needs != NO_NEEDS
    job.priority, job.weight, job.gpu_mem_bytes = spec.priority, spec.weight, spec.gpu_mem_bytes
    job.held_by = HeldBy.USER if event.hold else None
    job.reason = "held by user" if event.hold else ITS_TURN
    job.story.append((now, event))
    state.add_job(job)
    if (task := event.task) is not None or spec.after or spec.begin_at or state.gates.limit_users:
        state.enter_gates(job, task)
    if event.again_of is not None:
        job.again_of = event.again_of
    if spec.asha is not None:
        successive_halving.entered(state, job)
    if event.operation_id:
        state.operations[event.operation_id] = job.id if task is None else task.array
        if event.request:
            state.requests[event.operation_id] = event.request
    state.refresh(job, now)


def _hold(state: ClusterState, job: Job, event: e.HoldRequested | e.SuspendRequested, now: float) -> None:
    job.held_by = HeldBy.USER
    if job.claiming:
        state.unplan(job)
    if job.live is None or job.off_gpu:
        job.reason = "suspended by user" if job.state is JobState.SUSPENDED else "held by user"


def _release(state: ClusterState, job: Job, event: e.ReleaseRequested | e.ResumeRequested, now: float) -> None:
    if job.held_by is not None:  # else it may be in the queue, which groups by this
        job.move_failure = ""
    job.held_by = None
    if (job.excluded or job.excluded_gpus) and isinstance(event, e.ReleaseRequested):
        node_health.readmit(state, job)
    job.fruitless_suspensions = job.requeues_in_row = 0
    job.not_before = 0.0
    if job.live is None or job.off_gpu:
        job.reason = ITS_TURN


def _resize(state: ClusterState, job: Job, event: e.ResizeRequested, now: float) -> None:
    job.gpus_min, job.gpus_max, job.range_changed = event.gpus_min, event.gpus_max, True
    if job.ticket is not None:
        job.ticket.ask(event.gpus_max)
    if job.claiming:
        state.unplan(job)


def _change(state: ClusterState, job: Job, event: e.JobChanged, now: float) -> None:
    job.priority, job.weight = event.priority, event.weight


def _drill(state: ClusterState, job: Job, event: e.DrillRequested, now: float) -> None:
    """Nothing but its story; what follows are facts of their own."""


def _job_held(state: ClusterState, job: Job, event: e.JobHeld, now: float) -> None:
    job.held_by, job.reason = event.by, event.reason
    if job.claiming:
        state.unplan(job)


def _cancel(state: ClusterState, job: Job, event: e.CancelRequested, now: float) -> None:
    if job.live is None:
        ending.end_job(state, job, JobState.CANCELLED, "cancelled by user", now)


def _job_retired(state: ClusterState, event: e.JobRetired, now: float) -> None:
    state.left_out.discard(event.job)
    state.gates.forget(state.jobs.pop(event.job))


def _job_removed(state: ClusterState, event: e.JobRemoved, now: float) -> None:
    task = state.jobs[event.job].task
    state.left_out.discard(event.job)
    state.gates.forget(state.jobs.pop(event.job))
    state.removed.add(event.job)
    if task is not None and not state.gates.arrays[task.array].tasks:
        state.removed.add(task.array)


def _dependency_failed(state: ClusterState, job: Job, event: e.DependencyFailed, now: float) -> None:
    if job.live is None:
        ending.end_job(state, job, JobState.CANCELLED, event.reason, now)


def _task_stopped(state: ClusterState, job: Job, event: e.TaskStopped, now: float) -> None:
    job.exit_code = 0
    ending.end_job(state, job, JobState.COMPLETED, event.reason, now)


# --- decisions ---


def _attempt_placed(state: ClusterState, job: Job, event: e.AttemptPlaced, now: float) -> None:
    if job.attempts and job.attempts[-1].allocation.share != event.allocation.share:
        job.resizes += 1
    allocation, kept = event.allocation, None
    if job.spec.suspend is SuspendMode.SWAP:
        allocation, kept = swaps.parts_of(allocation)
        job.own_room = allocation
    job.attempts.append(Attempt(event.attempt, allocation, now, event.reserved_s, event.sticky, kept=kept))
    if state.rates.curves:
        job.attempts[-1].speedup = state.curve(job)
    if len(allocation.nodes) > 1:
        gang.gather(job.attempts[-1])
    job.reason = event.reason
    state.place(job, allocation)
    if kept is not None:
        state.pools[job.pool].books.keep(job.id, kept)


def _stop_requested(state: ClusterState, job: Job, event: e.StopRequested, now: float) -> None:
    attempt = job.attempts[event.attempt - 1]
    first = attempt.stop is None
    attempt.stop = StopOrder(event.cause, event.grace_s, now, event.reason, event.for_job)
    job.reason = event.reason
    if first:
        state.unplan(job)
        _count_stop(job, event.cause)
    elif event.cause.final and job.claiming:
        state.unplan(job)
    if first and not event.cause.final and event.cause is not StopCause.BROKEN:
        job.suspensions.append(Suspension(now, event.reason, attempt.allocation.gpu_ids))


def _count_stop(job: Job, cause: StopCause) -> None:
    match cause:
        case StopCause.PREEMPTED:
            job.preemptions += 1
            job.returns = True
        case StopCause.RESIZED | StopCause.QUIESCED | StopCause.DRILLED | StopCause.INTERFERENCE | StopCause.DRAINED:
            job.returns = True
        case _:
            pass


def _room_claimed(state: ClusterState, job: Job, event: e.RoomClaimed, now: float) -> None:
    job.reason = event.reason
    state.promise(job, event.allocation)


def _claim_dropped(state: ClusterState, job: Job, event: e.ClaimDropped, now: float) -> None:
    state.unplan(job)
    job.reason = event.reason


# --- reports ---


def _attempt_started(state: ClusterState, job: Job, event: e.AttemptStarted, now: float) -> None:
    attempt = job.attempts[-1]
    placed = attempt.placed if attempt.returning is None else attempt.returning
    if attempt.swapped is not None:
        swaps.is_back(state, job, attempt)
    job.move_failure = ""
    job.launches_in_vain.clear()
    job.vain_in_row = 0
    attempt.edited = event.edited or attempt.edited
    if event.leased:
        attempt.leased += (event.node or attempt.allocation.node_ids[0],)
    job.checkpoint_root_id = state.nodes[attempt.allocation.nodes[0].node].facts.checkpoint_root_id
    if not event.node:  # it is spoken of as a whole
        attempt.pid, attempt.resumed_step, attempt.sharing = event.pid, event.resumed_step, event.sharing
        if attempt.members:
            attempt.members.clear()
    elif not gang.note_start(attempt, event):
        return
    attempt.started = now
    attempt.first_started = now if attempt.first_started is None else attempt.first_started
    job.reason = edited_scripts.running(attempt.edited) if attempt.stop is None else job.reason
    if job.suspensions and job.suspensions[-1].resumed is None and job.suspensions[-1].exited is not None:
        restart_costs.resumed(job, attempt, placed, now)
        state.pools[job.pool].came_back[job.id] = job
    for until_s in (job.spec.time_limit_s, attempt.reserved_s):
        if until_s is not None:
            state.set_deadline(job, now + max(0.0, until_s - job.ran_s))


def _first_step_made(state: ClusterState, job: Job, event: e.FirstStepMade, now: float) -> None:
    job.attempts[-1].start = event.start


_Handler = Callable[[ClusterState, Any, float], None]


def _about_job(handler: Callable[[ClusterState, Job, Any, float], None], durable: bool) -> _Handler:
    """Wrap ``handler`` so that the job's story, state and place in the queue follow."""

    def handle(state: ClusterState, event: Any, now: float) -> None:
        job = state.jobs.get(event.job)
        if job is None:
            return
        if durable:
            story = job.story
            story.append((now, event))
            if len(story) > limits.STORY_LENGTH:
                del story[0]
        handler(state, job, event, now)
        state.refresh(job, now)

    return handle


_JOB_HANDLERS: Final[dict[type[Event], Callable[[ClusterState, Job, Any, float], None]]] = {
    e.SuspendRequested: _hold,
    e.HoldRequested: _hold,
    e.ResumeRequested: _release,
    e.ReleaseRequested: _release,
    e.ResizeRequested: _resize,
    e.JobChanged: _change,
    e.JobMoved: pool_membership.moved,
    e.CancelRequested: _cancel,
    e.JobHeld: _job_held,
    e.AttemptPlaced: _attempt_placed,
    e.ReturnRequested: swaps.return_requested,
    e.StopRequested: _stop_requested,
    e.WorkResumed: restart_costs.work_resumed,
    e.WorkUnsaved: unsaved_work.noted,
    e.DrillRequested: _drill,
    e.RequeueRequested: _drill,
    e.JobRequeued: requeuing.requeued,
    e.DependencyFailed: _dependency_failed,
    e.RungReached: successive_halving.rung_reached,
    e.TaskPromoted: successive_halving.promoted,
    e.TaskStopped: _task_stopped,
    e.RoomClaimed: _room_claimed,
    e.ClaimDropped: _claim_dropped,
    e.AttemptStarted: _attempt_started,
    e.FirstStepMade: _first_step_made,
    e.ProgressReported: rates.progressed,
    e.RateMeasured: rates.measured,
    e.InterferenceFound: interference.interference_found,
    e.CheckpointPublished: rates.saved,
    e.AttemptSwapped: swaps.swapped,
    e.MemoryOverran: gpu_memory.overran,
    e.SessionUnused: unused_sessions.noted,
    e.GpuMemoryChanged: gpu_memory.changed,
    e.NodeExcluded: node_health.excluded,
    e.AttemptExited: ending.exited,
    e.AttemptFreed: ending.freed,
    e.AttemptRefused: ending.refused,
    e.JobIdle: idling.noted,
    e.JobBusy: idling.cleared,
    e.LogMatched: log_matches.matched,
    e.GpusExcluded: log_matches.gpus_excluded,
}

HANDLERS: Final[dict[type[Event], _Handler]] = {
    e.MasterStarted: _master_started,
    e.Quiesced: quiescing.quiesced,
    e.Unquiesced: quiescing.unquiesced,
    e.JournalRestored: _journal_restored,
    **forgetting.HANDLERS,
    e.JobSubmitted: _job_submitted,
    e.NodeRegistered: node_health.registered,
    e.NodeDisconnected: node_health.disconnected,
    e.NodeLost: node_health.lost,
    e.GpuHealthChanged: node_health.gpu_health_changed,
    e.NodeDrained: draining.drained,
    e.NodeResumed: draining.resumed,
    e.ForeignUseChanged: foreign_use.changed,
    e.NodeConfirmedDead: silence.confirmed_dead,
    e.NodeRemoved: removing.node_removed,
    e.SilenceDoubted: silence.doubted,
    e.SilenceBelieved: silence.believed,
    e.StrayFound: strays.found,
    e.StrayGone: strays.gone,
    e.StrayEndRequested: strays.end_requested,
    e.AttemptOrphaned: strays.orphaned,
    e.JobRetired: _job_retired,
    e.JobRemoved: _job_removed,
    e.BookingMade: booking_placement.made,
    e.BookingMoved: booking_placement.moved,
    e.BookingCancelled: booking_placement.cancelled,
    e.ArrayChanged: requeuing.array_changed,
    **{kind: _about_job(handler, kind.durable) for kind, handler in _JOB_HANDLERS.items()},
}
