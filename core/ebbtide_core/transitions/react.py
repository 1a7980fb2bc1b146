"""What follows from an event at once: further facts that the core decides on, and commands to the world."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.commands import Command, Forget, Launch, Resume, Stop
from ebbtide_core.events import Event
from ebbtide_core.job import gang
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.lifecycle import (
    log_matches,
    lost_gpus,
    pool_membership,
    requeuing,
    successive_halving,
    unsaved_work,
    unused_sessions,
)
from ebbtide_core.lifecycle.swaps import is_swapped_for
from ebbtide_core.measuring import gpu_memory, interference, rates
from ebbtide_core.model import limits
from ebbtide_core.model.types import WHOLE, AttemptRef, ExitFacts, HeldBy, NodeId, StopCause
from ebbtide_core.nodes import failing_nodes, silence, strays
from ebbtide_core.nodes import node_health as nodes
from ebbtide_core.reconcile import stop
from ebbtide_core.resources import checkpoint_location
from ebbtide_core.state import ClusterState

# --- decisions ---


def _suspend(state: ClusterState, event: e.SuspendRequested) -> Iterator[Event]:
    if (job := state.jobs[event.job]).running:
        yield stop(job, StopCause.SUSPENDED, "suspended by user")


def _drill(state: ClusterState, event: e.DrillRequested) -> Iterator[Event]:
    """Whoever is drilled keeps its room, and comes back by itself."""
    if (job := state.jobs[event.job]).running:
        allocation = job.attempts[-1].allocation
        yield stop(job, StopCause.DRILLED, "drill: stepping aside, to come back at once")
        yield e.RoomClaimed(job.id, allocation, "drill: stepping aside, to come back at once")


def _progressed(state: ClusterState, event: e.ProgressReported) -> Iterator[Event]:
    job = state.jobs[event.job]
    yield from _work_resumed(job, event)
    if job.spec.asha is not None:
        yield from successive_halving.at_rung(state, event)
    if (meter := job.attempts[-1].meter) is not None and meter.fresh:
        yield from rates.news(state, job)
        yield from interference.taken_apart(state, job)


def _work_resumed(job: Job, event: e.ProgressReported) -> Iterable[Event]:
    if not job.suspensions or not job.running:
        return ()
    last = job.suspensions[-1]
    if last.resumed is None or last.working is not None:
        return ()
    start = job.attempts[-1].start if not job.attempts[-1].swaps else None
    return (e.WorkResumed(job.id, event.attempt, event.progress.step if start is None else start.step),)


def _after_refusal(state: ClusterState, event: e.AttemptRefused) -> Iterator[Event]:
    yield from nodes.lacks(state, event)
    yield from _after_end(state, event)


def _after_end(state: ClusterState, event: e.AttemptExited | e.AttemptRefused) -> Iterable[Event]:
    """Whoever breaks up a gang ends it on all of its nodes. One end in vain too many, and the job is held."""
    job = state.jobs[event.job]
    attempt = job.attempts[-1]
    if attempt.broken_by is not None and job.running:
        return (stop(job, StopCause.BROKEN, gang.why_broken(attempt), grace_s=limits.GANG_GRACE_S),)
    if attempt.exited is None:
        return ()
    told = (*unsaved_work.tell(job, attempt), *(rates.last_words(state, job) if attempt.meter is not None else ()))
    if job.alone_after and (change := gpu_memory.after_end(state, job, attempt)) is not None:
        return (*told, change)
    if attempt.matches:
        told = (*told, *log_matches.hold_if_nowhere(state, job))
    if state.failing:
        told = (*told, *failing_nodes.drained(state, attempt))
    return (*told, *_hold_if_fruitless(job)) if isinstance(event, e.AttemptExited) else told


def _hold_if_fruitless(job: Job) -> Iterable[Event]:
    if job.ending is not None or job.fruitless_suspensions < limits.MAX_FRUITLESS_SUSPENSIONS:
        return ()
    reason = f"held: ended {job.fruitless_suspensions} times in a row without saving ({job.reason})"
    return (e.JobHeld(job.id, HeldBy.SYSTEM, reason),)


def _overran(state: ClusterState, event: e.MemoryOverran) -> Iterator[Event]:
    """Whoever uses more than it was given is the one who leaves; it goes on with more, if it can be suspended."""
    job, why = state.jobs[event.job], gpu_memory.why_overran(event)
    if not job.preemptible:
        yield stop(job, StopCause.EXPELLED, why)
        return
    change = gpu_memory.after_overrun(state, job, event)
    yield change
    goes_on = "a GPU of its own" if change.gpus_min >= WHOLE else gpu_memory.gib(change.mem_bytes)
    yield stop(job, StopCause.OVERRAN, f"{why}; it goes on with {goes_on}")


def _unused(state: ClusterState, event: e.SessionUnused) -> Iterator[Event]:
    """Nobody has used it for as long as it may be unused."""
    job = state.jobs[event.job]
    if event.since and event.left_s <= 0 and job.running:
        yield stop(job, StopCause.UNUSED, f"unused for {unused_sessions.duration(job.spec.idle_limit_s or 0.0)}")


def _cancel(state: ClusterState, event: e.CancelRequested) -> Iterator[Event]:
    job = state.jobs[event.job]
    live = job.live
    if live is None:
        return
    grace_s = 0.0 if event.now else job.spec.grace_s
    if live.stop is None or live.stop.cause is not StopCause.CANCELLED or event.now:
        yield stop(job, StopCause.CANCELLED, "cancelled by user", grace_s=grace_s)


def _after_registration(state: ClusterState, event: e.NodeRegistered) -> Iterator[Event]:
    """Attempts that the node no longer has are over: it looked for their processes, or it was rebooted."""
    node = state.nodes[event.node]
    for job in state.jobs_on(node):
        attempt = job.attempts[-1]
        if AttemptRef(job.id, attempt.number) in event.known:
            continue
        if _never_arrived(attempt, node.id):
            continue  # its launch is repeated
        part = node.id if attempt.members else e.EVERY_NODE
        if not gang.has_ended(attempt, node.id):
            yield e.AttemptExited(job.id, attempt.number, ExitFacts(lost=True), freed=True, node=part)
        elif not gang.has_freed(attempt, node.id):
            yield e.AttemptFreed(job.id, attempt.number, node=part)
    yield from lost_gpus.stop_missing(state, event)
    yield from silence.believe_if_heard(state)


DECISIONS: Final[dict[type[Event], Callable[[ClusterState, Any], Iterable[Event]]]] = {
    e.SuspendRequested: _suspend,
    e.DrillRequested: _drill,
    e.JobMoved: pool_membership.step_aside,
    e.RequeueRequested: requeuing.step_aside,
    e.ProgressReported: _progressed,
    e.RungReached: successive_halving.pause_or_go_on,
    e.MemoryOverran: _overran,
    e.SessionUnused: _unused,
    e.CancelRequested: _cancel,
    e.AttemptExited: _after_end,
    e.AttemptRefused: _after_refusal,
    e.NodeRegistered: _after_registration,
    e.GpuHealthChanged: lost_gpus.stop_on,
    e.LogMatched: log_matches.decide,
    e.NodeLost: silence.doubt,
    e.NodeConfirmedDead: silence.end_there,
    e.StrayFound: strays.hold,
}
"""Facts that follow from an event, once it was applied."""


# --- commands ---


def _launch(state: ClusterState, event: e.AttemptPlaced) -> tuple[Command]:
    """Of several nodes the first comes first: it chooses where the ranks meet."""
    return (_launch_on(state, event.allocation.node_ids[:1], state.jobs[event.job]),)


def _launch_others(state: ClusterState, event: e.AttemptStarted) -> Iterable[Command]:
    if not event.node:  # it is spoken of as a whole
        return ()
    job = state.jobs[event.job]
    nodes = job.attempts[-1].allocation.node_ids
    if event.node != nodes[0] or not job.running:
        return ()
    return (_launch_on(state, nodes[1:], job),)


def _launch_on(state: ClusterState, nodes: tuple[NodeId, ...], job: Job) -> Launch:
    attempt, spec = job.attempts[-1], job.spec
    if (job.gpus_min, job.gpus_max) != (spec.gpus_min, spec.gpus_max):
        # The user has changed the range since: the node is told what the attempt really has.
        spec = replace(spec, gpus_min=job.gpus_min, gpus_max=job.gpus_max)
    first, needed = attempt.allocation.node_ids[0], job.checkpoint is not None
    address = state.nodes[first].facts.address if attempt.members else ""
    source = checkpoint_location.source(job, first, state.nodes) if job.checkpoint_root_id and first in nodes else None
    meeting = address, attempt.port
    return Launch(nodes, job.id, attempt.number, spec, attempt.allocation, needed, *meeting, source, job.user)


def _stop(state: ClusterState, event: e.StopRequested) -> tuple[Command]:
    job = state.jobs[event.job]
    attempt = job.attempts[event.attempt - 1]
    return (_stop_on(attempt.nodes, job, attempt, event.cause, event.grace_s),)


def _stop_on(nodes: tuple[NodeId, ...], job: Job, attempt: Attempt, cause: StopCause, grace_s: float) -> Stop:
    swaps = attempt.swaps if is_swapped_for(job, cause) else None
    return Stop(
        nodes, job.id, attempt.number, grace_s, swaps, goes_on=not cause.final and cause is not StopCause.QUIESCED
    )


def _resume(state: ClusterState, event: e.ReturnRequested) -> tuple[Command]:
    attempt = state.jobs[event.job].attempts[-1]
    return (Resume(attempt.allocation.node_ids, event.job, event.attempt, attempt.swaps),)


def _forget(state: ClusterState, event: e.AttemptExited | e.AttemptFreed | e.AttemptRefused) -> Iterable[Command]:
    attempt = state.jobs[event.job].attempts[event.attempt - 1]
    if attempt.freed is None:
        return ()
    return (Forget(attempt.allocation.node_ids, event.job, event.attempt),)


def _reminders(state: ClusterState, event: e.NodeRegistered) -> Iterator[Command]:
    """Repeat every order that the node may not have received."""
    for job in state.jobs_on(state.nodes[event.node]):
        attempt = job.attempts[-1]
        if AttemptRef(job.id, attempt.number) not in event.known:
            if _never_arrived(attempt, event.node):
                yield _launch_on(state, (event.node,), job)
        elif not gang.has_ended(attempt, event.node):
            yield from _repeated(job, attempt, event.node)
    for ref in event.known:
        if _is_over(state, ref) and ref not in state.nodes[event.node].strays:
            yield Forget((event.node,), ref.job, ref.attempt)
    yield from strays.reminders(state.nodes[event.node])


def _repeated(job: Job, attempt: Attempt, node: NodeId) -> Iterator[Command]:
    """What an attempt that lives on ``node`` was last asked to do, if it has not done so."""
    if attempt.stop is not None:
        if not (attempt.off_gpu and is_swapped_for(job, attempt.stop.cause)):
            yield _stop_on((node,), job, attempt, attempt.stop.cause, attempt.stop.grace_s)
    elif attempt.returning is not None:
        yield Resume((node,), job.id, attempt.number, attempt.swaps)


def _never_arrived(attempt: Attempt, node: NodeId) -> bool:
    """Whether the order to start an attempt that ``node`` does not have may never have reached it. Else it is over."""
    if attempt.stop is not None or attempt.swaps:
        return False
    return not gang.has_started(attempt, node) and not gang.has_ended(attempt, node)


def _is_over(state: ClusterState, ref: AttemptRef) -> bool:
    """Whether our books hold the end of the attempt. An attempt that they do not know is never touched."""
    if ref.job in state.removed:
        return True
    job = state.jobs.get(ref.job)
    if job is None or not 0 < ref.attempt <= len(job.attempts):
        return False
    attempt: Attempt = job.attempts[ref.attempt - 1]
    return attempt.freed is not None


COMMANDS: Final[dict[type[Event], Callable[[ClusterState, Any], Iterable[Command]]]] = {
    e.AttemptPlaced: _launch,
    e.AttemptStarted: _launch_others,
    e.StopRequested: _stop,
    e.ReturnRequested: _resume,
    e.AttemptExited: _forget,
    e.AttemptFreed: _forget,
    e.AttemptRefused: _forget,
    e.NodeRegistered: _reminders,
    e.StrayFound: strays.end_if_over,
    e.StrayGone: strays.forget,
    e.StrayEndRequested: strays.end,
}
"""What the world is asked to do because of an event, once it was applied."""
