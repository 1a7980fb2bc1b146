"""Shuts the cluster down: every running job is asked to stop, some at a time, with other work in between."""

from collections import deque
from collections.abc import Iterator
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.model.types import StopCause
from ebbtide_core.reconcile import stop
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState

ASKED_AT_ONCE: Final = 100
"""Jobs that are asked to stop in one batch; the others follow at once."""


def _quiesced(state: ClusterState, event: e.Quiesced, now: float) -> None:
    """Stop placing jobs, and list the jobs on nodes, which are to leave in order of submission."""
    state.quiesced = True
    there = {id for node in state.nodes.values() for id in node.attempts}
    jobs = sorted((state.jobs[id] for id in there), key=lambda job: job.sequence)
    state.leaving = deque((job, event.kill) for job in jobs)


def _unquiesced(state: ClusterState, event: e.Unquiesced, now: float) -> None:
    state.quiesced = False
    state.leaving.clear()


def ask_some(state: ClusterState) -> Iterator[Event]:
    """Decide: stop the next jobs in the list; kill them if that was requested."""
    for _ in range(min(ASKED_AT_ONCE, len(state.leaving))):
        job, kill = state.leaving.popleft()
        if not (job.running or job.off_gpu or (kill and job.live is not None)):
            continue
        grace_s = 0.0 if kill else job.spec.grace_s
        before = job.live.stop if job.live is not None else None
        if before is not None and before.cause.final:  # it is to end for good already: shorten its grace period only
            yield stop(job, before.cause, before.reason, before.for_job, grace_s)
        else:
            yield stop(job, StopCause.QUIESCED, "the cluster is going down", grace_s=grace_s)


RULES: Final = (
    Rule(
        e.Quiesced,
        apply=_quiesced,
        say=lambda event: "the cluster is going down: every attempt is asked to stop",
    ),
    Rule(e.Unquiesced, apply=_unquiesced, say=lambda event: "jobs may start again"),
)
