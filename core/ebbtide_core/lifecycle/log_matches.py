"""Decides what follows when a log rule matches a job's output (see `ebbtide_core.model.log_rules`)."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core.events import Event, GpusExcluded, JobHeld, LogMatched, NodeExcluded
from ebbtide_core.events.words import on
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.outcome import Ending, Outcome
from ebbtide_core.model.log_rules import LogAction
from ebbtide_core.model.types import WHOLE, GpuId, HeldBy
from ebbtide_core.resources.checkpoint_location import reads_checkpoint
from ebbtide_core.resources.eligibility import why_not_here
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState

MOST_MATCHES: Final = 256
"""Matches that are remembered of one attempt at most; more than all rules on all its nodes should need."""
_ELSEWHERE: Final = {LogAction.EXCLUDE_GPU: "GPU", LogAction.EXCLUDE_NODE: "node"}


def _is_news(state: ClusterState, event: LogMatched) -> bool:
    """Return whether this match is new: a node reports each rule once, and again when it reports all that it knows."""
    newest = state.newest(event.job, event.attempt)
    if newest is None or newest.end is not None or len(newest.matches) >= MOST_MATCHES:
        return False
    return all((known.node, known.match.pattern) != (event.node, event.match.pattern) for known in newest.matches)


def _matched(state: ClusterState, job: Job, event: LogMatched, now: float) -> None:
    job.attempts[-1].matches += (event,)


def _decide(state: ClusterState, event: LogMatched) -> Iterator[Event]:
    """Exclude the GPU, or the node, for the job's next attempts if the rule says so."""
    why = f"its log says {event.match.line!r}"
    match event.match.action:
        case LogAction.EXCLUDE_NODE:
            yield NodeExcluded(event.job, event.node, why)
        case LogAction.EXCLUDE_GPU:
            held = _gpus_there(state.jobs[event.job].attempts[-1], event)
            named = tuple([gpu for gpu in held if gpu in event.match.gpus]) or held
            if named:
                yield GpusExcluded(event.job, event.node, named, why)


def _gpus_there(attempt: Attempt, event: LogMatched) -> tuple[GpuId, ...]:
    return tuple([gpu.gpu for piece in attempt.allocation if piece.node == event.node for gpu in piece.gpus])


def _gpus_excluded(state: ClusterState, job: Job, event: GpusExcluded, now: float) -> None:
    if job.claiming:
        state.unplan(job)
    state.leave_queue(job)
    job.eligibility = job.eligibility.without_gpus(event.gpus)


def hold_if_nowhere(state: ClusterState, job: Job) -> Iterator[Event]:
    """Hold a job without a GPU left to run on, so that no job waits behind it; a release opens all GPUs to it again."""
    if (
        not (job.eligibility.excluded or job.eligibility.excluded_gpus)
        or job.end is not None
        or job.held_by is not None
        or _has_other(state, job)
    ):
        return
    named = ", ".join(sorted([*job.eligibility.excluded, *job.eligibility.excluded_gpus]))
    yield JobHeld(job.id, HeldBy.SYSTEM, f"held: it can only run on {named}, and its log showed a fault there")


def _has_other(state: ClusterState, job: Job) -> bool:
    books = state.pools[job.pool].books
    nodes = [
        node
        for node in books.nodes.values()
        if not why_not_here(job, books, node) and reads_checkpoint(job, node, books)
    ]
    left = [len(node.gpus.keys() - job.eligibility.excluded_gpus) for node in nodes]
    most = sum(left) if job.spec.most_nodes > 1 else max(left, default=0)
    return bool(nodes) and most * WHOLE >= job.gpus_min


def read_end(matches: Collection[LogMatched], outcome: Outcome) -> Outcome:
    """Return what the end of an attempt means given its output: its failure may be final, or no fault of its own."""
    if outcome.ending is not Ending.FAILED or outcome.final:
        return outcome
    for found in matches:
        if (what := _ELSEWHERE.get(found.match.action)) is not None:
            reason = f"interrupted: {outcome.reason}: {found.match.line!r}; it resumes on another {what}"
            return Outcome(Ending.INTERRUPTED, reason, clean=False)
    for found in matches:
        if found.match.action is LogAction.NO_RETRY:
            return replace(outcome, reason=f"{outcome.reason}: {found.match.line!r}, not to be tried again", final=True)
    return outcome


RULES: Final = (
    Rule(
        LogMatched,
        news=_is_news,
        apply=about_job(_matched),
        decide=_decide,
        say=lambda event: (
            f"attempt {event.attempt} printed {event.match.line!r} ({event.match.action.value}){on(event.node)}"
        ),
    ),
    Rule(
        GpusExcluded,
        apply=about_job(_gpus_excluded),
        say=lambda event: f"not to run on GPU {', '.join(event.gpus)} again{on(event.node)}: {event.reason}",
    ),
)
