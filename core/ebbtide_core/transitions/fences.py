"""What is no news: reports may come twice, late, or about an attempt that is over."""

from collections.abc import Callable
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.job import gang
from ebbtide_core.job.job import Attempt
from ebbtide_core.lifecycle import idling, log_matches, pool_membership, removing, unused_sessions
from ebbtide_core.lifecycle.successive_halving import sweep_of
from ebbtide_core.model.types import WHOLE
from ebbtide_core.nodes import foreign_use, silence, strays
from ebbtide_core.state import ClusterState


def _current(state: ClusterState, event: Any) -> Attempt | None:
    """The attempt that a report is about, if it is its job's newest."""
    job = state.jobs.get(event.job)
    if job is None or not job.attempts:
        return None
    newest = job.attempts[-1]
    return newest if newest.number == event.attempt else None


def _may_start(state: ClusterState, event: e.AttemptStarted) -> bool:
    attempt = _current(state, event)
    if attempt is None or attempt.started is not None or attempt.exited is not None:
        return False
    if attempt.off_gpu or attempt.swaps != event.swaps:
        return False
    if not event.node:
        return True
    member = attempt.members.get(event.node)
    return member is not None and not member.started and member.ended is None


def _may_be_swapped(state: ClusterState, event: e.AttemptSwapped) -> bool:
    attempt = _current(state, event)
    if attempt is None or attempt.exited is not None or attempt.kept is None:
        return False
    return event.swaps > attempt.swaps


def _may_end(state: ClusterState, event: e.AttemptExited | e.AttemptRefused) -> bool:
    attempt = _current(state, event)
    if attempt is None or attempt.exited is not None:
        return False
    return not event.node or not gang.has_ended(attempt, event.node)


def _may_be_freed(state: ClusterState, event: e.AttemptFreed) -> bool:
    attempt = _current(state, event)
    if attempt is None or attempt.freed is not None:
        return False
    if not event.node:
        return attempt.exited is not None
    return gang.has_ended(attempt, event.node) and not gang.has_freed(attempt, event.node)


def _is_new_checkpoint(state: ClusterState, event: e.CheckpointPublished) -> bool:
    return _current(state, event) is not None and state.jobs[event.job].checkpoint != event.checkpoint


def _is_first_overrun(state: ClusterState, event: e.MemoryOverran) -> bool:
    """Whoever has the whole GPU cannot take anything from others; whoever is to stop has heard of it."""
    attempt = _current(state, event)
    if attempt is None or attempt.overran or attempt.stop is not None or attempt.exited is not None:
        return False
    return attempt.allocation.share < WHOLE and event.gpu in attempt.allocation.gpu_ids


def _may_need_other_memory(state: ClusterState, event: e.GpuMemoryChanged) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and job.ending is None


def _is_first_step(state: ClusterState, event: e.FirstStepMade) -> bool:
    attempt = _current(state, event)
    return attempt is not None and attempt.start is None


def _is_live(state: ClusterState, event: e.ProgressReported) -> bool:
    """What an attempt that has ended had come to is known of its end; a report that was on its way is older."""
    attempt = _current(state, event)
    return attempt is not None and attempt.exited is None


def _is_drained(state: ClusterState, event: e.NodeResumed) -> bool:
    node = state.nodes.get(event.node)
    return node is not None and node.drain is not None


def _may_be_excluded(state: ClusterState, event: e.NodeExcluded) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and job.ending is None and event.node not in job.excluded


def _node_is_known(state: ClusterState, event: e.NodeLost | e.GpuHealthChanged | e.NodeDrained) -> bool:
    return event.node in state.nodes


def _is_over(state: ClusterState, event: e.JobRetired | e.JobRemoved) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and job.ending is not None and job.holding is None


def _is_a_change(state: ClusterState, event: e.JobChanged) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and (job.priority, job.weight) != (event.priority, event.weight)


def _may_be_given_up(state: ClusterState, event: e.DependencyFailed) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and job.ending is None


def _is_next_rung(state: ClusterState, event: e.RungReached) -> bool:
    job = state.jobs.get(event.job)
    sweep = None if job is None else sweep_of(state, job)
    return sweep is not None and sweep.next_rung(event.job) == event.steps


def _waits_at_rung(state: ClusterState, event: e.TaskPromoted | e.TaskStopped) -> bool:
    job = state.jobs.get(event.job)
    sweep = None if job is None or job.ending is not None else sweep_of(state, job)
    return sweep is not None and sweep.tasks[event.job].waits


def _is_another_limit(state: ClusterState, event: e.ArrayChanged) -> bool:
    array = state.gates.arrays.get(event.job)
    limits = (event.max_concurrent, event.max_slots)
    return array is not None and (array.max_concurrent, array.max_slots) != limits


FENCES: Final[dict[type[Event], Callable[[ClusterState, Any], bool]]] = {
    e.AttemptStarted: _may_start,
    e.AttemptSwapped: _may_be_swapped,
    e.AttemptExited: _may_end,
    e.AttemptRefused: _may_end,
    e.AttemptFreed: _may_be_freed,
    e.CheckpointPublished: _is_new_checkpoint,
    e.FirstStepMade: _is_first_step,
    e.MemoryOverran: _is_first_overrun,
    e.GpuMemoryChanged: _may_need_other_memory,
    e.SessionUnused: unused_sessions.is_news,
    e.ProgressReported: _is_live,
    e.NodeLost: _node_is_known,
    e.GpuHealthChanged: _node_is_known,
    e.NodeDrained: _node_is_known,
    e.NodeResumed: _is_drained,
    e.NodeExcluded: _may_be_excluded,
    e.ForeignUseChanged: foreign_use.is_news,
    e.NodeConfirmedDead: silence.is_news,
    e.NodeRemoved: removing.may_be_removed,
    e.StrayFound: strays.is_new,
    e.StrayGone: strays.is_known,
    e.StrayEndRequested: strays.is_known,
    e.AttemptOrphaned: strays.is_orphaned,
    e.JobRetired: _is_over,
    e.JobRemoved: _is_over,
    e.JobChanged: _is_a_change,
    e.JobIdle: idling.may_be_noted,
    e.JobBusy: idling.may_be_cleared,
    e.LogMatched: log_matches.is_news,
    e.JobMoved: pool_membership.is_move,
    e.DependencyFailed: _may_be_given_up,
    e.ArrayChanged: _is_another_limit,
    e.RungReached: _is_next_rung,
    e.TaskPromoted: _waits_at_rung,
    e.TaskStopped: _waits_at_rung,
}
"""Whether an event that a handler is not ready for at any time is news now."""
