"""What follows from an event at once: further facts that the core decides on, and commands to the world."""

from collections.abc import Iterator
from dataclasses import replace

from ebbtide_core import events as e
from ebbtide_core import limits
from ebbtide_core.commands import Command, Forget, Launch, Stop
from ebbtide_core.events import Event
from ebbtide_core.job import Attempt, Job
from ebbtide_core.model import AttemptRef, ExitFacts, HeldBy, StopCause
from ebbtide_core.reconcile import stop
from ebbtide_core.state import ClusterState


def decisions(state: ClusterState, event: Event) -> Iterator[Event]:
    """Facts that follow from ``event``, which was applied."""
    match event:
        case e.SuspendRequested(job=id):
            if (job := state.jobs[id]).running:
                yield stop(job, StopCause.SUSPENDED, "suspended by user")
        case e.CancelRequested(job=id, now=now):
            yield from _cancel(state.jobs[id], now)
        case e.Quiesced(kill=kill):
            for job in list(state.unfinished.values()):
                if job.running or (kill and job.live is not None):
                    grace_s = 0.0 if kill else job.spec.grace_s
                    yield stop(job, StopCause.QUIESCED, "the cluster is going down", grace_s=grace_s)
        case e.AttemptExited(job=id):
            job = state.jobs[id]
            if job.ending is None and job.fruitless_suspensions >= limits.MAX_FRUITLESS_SUSPENSIONS:
                reason = f"held: ended {job.fruitless_suspensions} times in a row without saving ({job.reason})"
                yield e.JobHeld(id, HeldBy.SYSTEM, reason)
        case e.NodeRegistered():
            yield from _after_registration(state, event)
        case _:
            pass


def commands(state: ClusterState, event: Event) -> Iterator[Command]:
    """What the world is asked to do because of ``event``, which was applied."""
    match event:
        case e.AttemptPlaced(job=id):
            yield from _launches(state.jobs[id])
        case e.StopRequested(job=id, attempt=number, grace_s=grace_s):
            for node in state.jobs[id].attempts[number - 1].allocation.node_ids:
                yield Stop(node, id, number, grace_s)
        case e.AttemptFreed(job=id, attempt=number) | e.AttemptRefused(job=id, attempt=number):
            for node in state.jobs[id].attempts[number - 1].allocation.node_ids:
                yield Forget(node, id, number)
        case e.NodeRegistered():
            yield from _reminders(state, event)
        case _:
            pass


def _cancel(job: Job, now: bool) -> Iterator[Event]:
    live = job.live
    if live is None:
        return
    grace_s = 0.0 if now else job.spec.grace_s
    if live.stop is None or live.stop.cause is not StopCause.CANCELLED or now:
        yield stop(job, StopCause.CANCELLED, "cancelled by user", grace_s=grace_s)


def _launches(job: Job) -> Iterator[Launch]:
    attempt = job.attempts[-1]
    needs_checkpoint = job.checkpoint is not None
    # The user may have changed the range since: the node is told what the attempt really has.
    spec = replace(job.spec, gpus_min=job.gpus_min, gpus_max=job.gpus_max)
    for piece in attempt.allocation:
        yield Launch(piece.node, job.id, attempt.number, spec, piece, attempt.allocation, needs_checkpoint)


def _after_registration(state: ClusterState, event: e.NodeRegistered) -> Iterator[Event]:
    """Attempts that the node no longer has are over: it looked for their processes, or it was rebooted."""
    node = state.books.nodes[event.node]
    for job in state.jobs_on(node):
        attempt = job.attempts[-1]
        if AttemptRef(job.id, attempt.number) in event.known:
            continue
        if _never_arrived(attempt):
            continue  # its launch is repeated
        if attempt.exited is None:
            yield e.AttemptExited(job.id, attempt.number, ExitFacts(lost=True))
        yield e.AttemptFreed(job.id, attempt.number)


def _reminders(state: ClusterState, event: e.NodeRegistered) -> Iterator[Command]:
    """Repeat every order that the node may not have received."""
    for job in state.jobs_on(state.books.nodes[event.node]):
        attempt = job.attempts[-1]
        if AttemptRef(job.id, attempt.number) not in event.known:
            if _never_arrived(attempt):
                yield from (launch for launch in _launches(job) if launch.node == event.node)
        elif attempt.exited is None and attempt.stop is not None:
            yield Stop(event.node, job.id, attempt.number, attempt.stop.grace_s)
    for ref in event.known:
        if _is_over(state, ref):
            yield Forget(event.node, ref.job, ref.attempt)


def _never_arrived(attempt: Attempt) -> bool:
    """Whether the order to start an attempt that its node does not have may never have reached it. Else it is over."""
    return attempt.exited is None and attempt.started is None and attempt.stop is None


def _is_over(state: ClusterState, ref: AttemptRef) -> bool:
    """Whether our books hold the end of the attempt. An attempt that they do not know is never touched."""
    job = state.jobs.get(ref.job)
    if job is None or not 0 < ref.attempt <= len(job.attempts):
        return False
    attempt: Attempt = job.attempts[ref.attempt - 1]
    return attempt.freed is not None
