"""Takes in a node that registers, and repeats the commands that it may not have received."""

from collections.abc import Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.commands import Command, Forget, Resume
from ebbtide_core.events import Event
from ebbtide_core.events.words import count_gpus
from ebbtide_core.job import gang
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.swap_causes import is_swapped_for
from ebbtide_core.lifecycle import lost_gpus
from ebbtide_core.lifecycle.attempts import launch_on, stop_on
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.types import AttemptRef, ExitFacts, NodeId
from ebbtide_core.nodes import loan_ends, node_health, silence, strays
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState


def _end_missing(state: ClusterState, event: e.NodeRegistered) -> Iterator[Event]:
    """End the attempts that the node no longer has: it looked for their processes, or it was rebooted."""
    node = state.nodes[event.node]
    for job in state.jobs_on(node):
        attempt = job.attempts[-1]
        if AttemptRef(job.id, attempt.number) in event.known:
            continue
        if _never_arrived(attempt, node.id):
            continue  # `_reminders` repeats its launch
        part = node.id if attempt.gang is not None else e.EVERY_NODE
        if not gang.has_ended(attempt, node.id):
            yield e.AttemptExited(job.id, attempt.number, ExitFacts(lost=True), freed=True, node=part)
        elif not gang.has_freed(attempt, node.id):
            yield e.AttemptFreed(job.id, attempt.number, node=part)
    yield from lost_gpus.stop_missing(state, event)
    yield from silence.believe_if_heard(state)


def _reminders(state: ClusterState, event: e.NodeRegistered) -> Iterator[Command]:
    """Repeat every command that the node may not have received."""
    for job in state.jobs_on(state.nodes[event.node]):
        attempt = job.attempts[-1]
        if AttemptRef(job.id, attempt.number) not in event.known:
            if _never_arrived(attempt, event.node):
                yield launch_on(state, (event.node,), job)
        elif not gang.has_ended(attempt, event.node):
            yield from _repeated(job, attempt, event.node)
    for ref in event.known:
        if _is_over(state, ref) and ref not in state.nodes[event.node].strays:
            yield Forget((event.node,), ref.job, ref.attempt)
    yield from strays.reminders(state.nodes[event.node])
    if state.nodes[event.node].loan != event.loan:
        yield loan_ends.announce_end(state.nodes[event.node])


def _repeated(job: Job, attempt: Attempt, node: NodeId) -> Iterator[Command]:
    """Repeat the last command for a live attempt on ``node``, if the attempt has not carried it out."""
    if attempt.stop is not None:
        if not (attempt.off_gpu and is_swapped_for(job, attempt.stop.cause)):
            yield stop_on((node,), job, attempt, attempt.stop.cause, attempt.stop.grace_s)
    elif attempt.swap is not None and attempt.swap.returning_since is not None:
        yield Resume((node,), job.id, attempt.number, attempt.swap.count)


def _never_arrived(attempt: Attempt, node: NodeId) -> bool:
    """Return whether the launch of an attempt that ``node`` does not have may never have arrived; else it is over."""
    if attempt.stop is not None or attempt.swaps:
        return False
    return not gang.has_started(attempt, node) and not gang.has_ended(attempt, node)


def _is_over(state: ClusterState, ref: AttemptRef) -> bool:
    """Return whether the books have the end of the attempt; an attempt that they do not know is never touched."""
    if ref.job in state.removed:
        return True
    job = state.jobs.get(ref.job)
    if job is None or not 0 < ref.attempt <= len(job.attempts):
        return False
    attempt: Attempt = job.attempts[ref.attempt - 1]
    return attempt.freed is not None


def _say(event: e.NodeRegistered) -> str:
    pool = "" if event.pool == DEFAULT_POOL else f" in pool {event.pool}"
    labels = ", ".join(f"{key}={value}" for key, value in sorted(event.labels.items()))
    taints = f", tainted {', '.join(event.taints)}" if event.taints else ""
    marks = f"{f', {labels}' if labels else ''}{taints}"
    return f"registered{pool} with {count_gpus(len(event.gpus))}, {event.cpus:g} CPUs{marks}"


RULES: Final = (
    Rule(e.NodeRegistered, apply=node_health.registered, command=_reminders, decide=_end_missing, say=_say),
)
