"""Sets aside attempts that a node has and the books do not, with the GPUs that these attempts hold.

An attempt that the journal never knew, as after a journal was restored, is ended only by a user; its job waits, so that
no second copy starts. An attempt that counts as over, because its node was confirmed dead or its lease had ended, is
ended when it comes back with its node.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.commands import Command, Forget, Stop
from ebbtide_core.events import Event
from ebbtide_core.events.fencing import StrayKind
from ebbtide_core.events.words import by
from ebbtide_core.job.facets import AttemptEnd
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.model import limits
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.refusals import Refusal, RefusalKind
from ebbtide_core.model.types import (
    WHOLE,
    Allocation,
    AttemptRef,
    ExitFacts,
    GpuId,
    GpuSlice,
    HeldBy,
    JobId,
    NodeAllocation,
    NodeId,
)
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.node_usage import Stray
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState


@frozen(kw_only=True)
class AttemptReport:
    """What a node reports of one attempt, which is ``over`` once nothing of it runs and its GPUs are free or dirty."""

    node: NodeId
    job: JobId
    attempt: int
    gpus: tuple[GpuId, ...] = ()
    over: bool = False
    orphan: bool = False
    dirty_gpus: tuple[GpuId, ...] = ()
    dirty_reasons: tuple[str, ...] = ()

    @property
    def ref(self) -> AttemptRef:
        """The reference of the attempt."""
        return AttemptRef(self.job, self.attempt)


def after_report(state: ClusterState, report: AttemptReport) -> Iterator[Event]:
    """Yield what follows from the report; nothing for attempts that are where the books have them, as most are."""
    node, job = state.nodes[report.node], state.jobs.get(report.job)
    attempt = job.attempts[report.attempt - 1] if job is not None and 0 < report.attempt <= len(job.attempts) else None
    if node.strays and report.ref in node.strays:
        if report.over:
            yield _gone(node.strays[report.ref], report)
        return
    kind = StrayKind.OVER if report.job in state.removed else _kind(attempt, node.id)
    if kind is None:
        if report.orphan and attempt is not None and not attempt.orphaned:
            yield e.AttemptOrphaned(node.id, report.job, report.attempt)
        return
    if not report.over or (attempt is None and job is not None):
        yield from _overtaken(state, job, report)
        gpus = () if report.over else report.gpus
        yield e.StrayFound(
            node=node.id,
            job=report.job,
            attempt=report.attempt,
            kind=kind,
            gpus=gpus,
            over=report.over,
            orphan=report.orphan,
        )


def _gone(stray: Stray, report: AttemptReport) -> Event:
    return e.StrayGone(
        node=report.node,
        job=report.job,
        attempt=report.attempt,
        asked=stray.is_to_end,
        dirty_gpus=report.dirty_gpus,
        dirty_reasons=report.dirty_reasons,
    )


def _kind(attempt: Attempt | None, node: NodeId) -> StrayKind | None:
    """Return why the attempt is a stray; None if it is not."""
    if attempt is None or node not in attempt.allocation.node_ids:
        return StrayKind.UNKNOWN
    member = None if attempt.gang is None else attempt.gang.members.get(node)
    is_free = attempt.freed is not None or (member is not None and member.freed)
    return StrayKind.OVER if is_free else None


def _overtaken(state: ClusterState, job: Job | None, report: AttemptReport) -> Iterator[Event]:
    """End the books' newest attempt if a newer one started: the older one was over then, whatever the journal says."""
    older = _not_free(job)
    if job is None or older is None or report.attempt <= older.number:
        return
    if any(node != report.node and state.nodes[node].reachable for node in older.allocation.node_ids):
        return  # both may run: a user has to look
    if report.orphan and report.node in older.allocation.node_ids:
        return  # the node knows only processes, and reports the older attempt itself
    if older.end is not None:
        yield e.AttemptFreed(job.id, older.number)
    else:
        why = f"attempt {report.attempt} of it, which this journal does not know, is on node {report.node}"
        yield e.AttemptExited(job.id, older.number, ExitFacts(lost=True, lost_because=why), freed=True)


def _not_free(job: Job | None) -> Attempt | None:
    """Return the newest attempt if something of it may be left."""
    newest = job.attempt if job is not None else None
    return newest if newest is not None and newest.freed is None else None


# --- fences ---


def _is_new(state: ClusterState, event: e.StrayFound) -> bool:
    node = state.nodes.get(event.node)
    return node is not None and AttemptRef(event.job, event.attempt) not in node.strays


def _is_known(state: ClusterState, event: e.StrayGone | e.StrayEndRequested) -> bool:
    node = state.nodes.get(event.node)
    return node is not None and AttemptRef(event.job, event.attempt) in node.strays


def _is_orphaned(state: ClusterState, event: e.AttemptOrphaned) -> bool:
    """Return whether the event is news about the job's newest attempt."""
    job = state.jobs.get(event.job)
    live = job.live if job is not None else None
    return live is not None and live.number == event.attempt and not live.orphaned


# --- the fold ---


def _found(state: ClusterState, event: e.StrayFound, now: float) -> None:
    node, job = state.nodes[event.node], state.jobs.get(event.job)
    if not event.over:
        node.strays[AttemptRef(event.job, event.attempt)] = Stray(event.kind, event.gpus, event.orphan)
        state.refresh_node(node)
    if job is None:
        state.skip_id(event.job)
    elif 0 < event.attempt - len(job.attempts) <= limits.MAX_UNKNOWN_ATTEMPTS and _not_free(job) is None:
        _count_up(state, job, node, event, now)


def _count_up(state: ClusterState, job: Job, node: Node, event: e.StrayFound, now: float) -> None:
    """Use up the attempt numbers up to the stray's, so that no checkpoint of it is overwritten or taken for older."""
    slices = tuple(GpuSlice(gpu, WHOLE, node.gpus[gpu].mem_bytes) for gpu in event.gpus if gpu in node.gpus)
    allocation = Allocation((NodeAllocation(node.id, slices),))
    state.leave_queue(job)
    for number in range(len(job.attempts) + 1, event.attempt + 1):
        end = AttemptEnd(now, exit=None, outcome="not in this journal", freed=now)
        job.attempts.append(Attempt(number, allocation, now, end=end))
    if not job.saved.root_id:
        job.saved = replace(job.saved, root_id=node.facts.checkpoint_root_id)
    state.refresh(job, now)


def _hold(state: ClusterState, event: e.StrayFound) -> Iterator[Event]:
    """Hold a job with an attempt that the journal does not know, until a user decides."""
    job = state.jobs.get(event.job)
    if job is None or job.end is not None or job.held_by is HeldBy.SYSTEM or event.kind is not StrayKind.UNKNOWN:
        return
    if job.live is None:
        runs = "was" if event.over else "runs"
        why = f"attempt {event.attempt} of it {runs} on node {event.node}, and this journal does not know it"
        yield e.JobHeld(job.id, HeldBy.SYSTEM, f"held: {why}")


def _remove(state: ClusterState, event: e.StrayGone, now: float) -> None:
    node = state.nodes[event.node]
    del node.strays[AttemptRef(event.job, event.attempt)]
    for gpu in set(event.dirty_gpus) & node.gpus.keys():
        known = dict(zip(event.dirty_gpus, event.dirty_reasons, strict=False))
        node.set_quarantine(gpu, f"job {event.job} ended, but {known.get(gpu) or 'its memory was not released'}")
    state.refresh_node(node)
    state.pool_of(node).freed_nodes.add(node.id)


def _note_end(state: ClusterState, event: e.StrayEndRequested, now: float) -> None:
    state.nodes[event.node].strays[AttemptRef(event.job, event.attempt)].grace_s = event.grace_s


def _orphaned(state: ClusterState, event: e.AttemptOrphaned, now: float) -> None:
    job = state.jobs[event.job]
    job.attempts[-1].orphaned = True
    job.story.append((now, event))


# --- what the world is asked to do ---


def _end_if_over(state: ClusterState, event: e.StrayFound) -> Iterator[Command]:
    """Stop a stray that counts as over at once: another attempt may have begun where it left off."""
    if event.kind is StrayKind.OVER and not event.over:
        yield Stop((event.node,), event.job, event.attempt, 0.0)


def reminders(node: Node) -> Iterator[Command]:
    """Yield the orders to end strays again, because the node may not have received them."""
    for ref, stray in node.strays.items():
        if stray.is_to_end:
            yield Stop((node.id,), ref.job, ref.attempt, stray.grace_s or 0.0)


def _end(state: ClusterState, event: e.StrayEndRequested) -> Iterator[Command]:
    yield Stop((event.node,), event.job, event.attempt, event.grace_s)


def _forget(state: ClusterState, event: e.StrayGone) -> Iterator[Command]:
    """Have the node forget a stray that was to end; what another stray left may still be of use."""
    if event.asked:
        yield Forget((event.node,), event.job, event.attempt)


# --- refusals ---


def _refuse_end(state: ClusterState, event: e.StrayEndRequested) -> Refusal | None:
    if event.node not in state.nodes:
        return Refusal(RefusalKind.UNKNOWN, f"node {event.node} does not exist")
    if _is_known(state, event):
        return None
    what = f"{event.job}.{event.attempt}"
    return Refusal(RefusalKind.CONFLICT, f"{what} is not set aside on node {event.node}: 'ebb cancel' is for jobs")


def refuse_start(state: ClusterState, job: Job, event: e.ReleaseRequested | e.ResumeRequested) -> Refusal | None:
    """Return why ``job`` cannot go on: an attempt that the journal does not know may still run. None if it can."""
    if job.live is not None or (found := unknown_of(state, job.id)) is None:
        return None
    node, attempt = found
    what = f"attempt {attempt} of job {job.id} is on node {node}, set aside"
    return Refusal(RefusalKind.CONFLICT, f"{what}: 'ebb node end-stray {node} {job.id}.{attempt}'")


def unknown_of(state: ClusterState, job: JobId) -> tuple[NodeId, int] | None:
    """Return a node and an attempt of ``job`` there that the journal does not know; None if there is none."""
    for node in state.nodes.values():
        for ref, stray in node.strays.items():
            if ref.job == job and stray.kind is StrayKind.UNKNOWN:
                return node.id, ref.attempt
    return None


# --- in words ---


def _say_found(event: e.StrayFound) -> str:
    if event.over:
        return f"attempt {event.attempt} was on node {event.node}, and this journal does not know it"
    known = "this journal does not know it" if event.kind is StrayKind.UNKNOWN else "it counts as over"
    fate = "set aside" if event.kind is StrayKind.UNKNOWN else "it is ended"
    orphan = ", whose agent lost all that it knew of it" if event.orphan else ""
    return f"attempt {event.attempt} is on node {event.node}{orphan}, and {known}: {fate}"


def _say_end(event: e.StrayEndRequested) -> str:
    what = f"attempt {event.attempt}, set aside on node {event.node},"
    return f"{what} is to end within {event.grace_s:g} s{by(event.user)}"


def _say_orphaned(event: e.AttemptOrphaned) -> str:
    what = f"attempt {event.attempt} has processes on node {event.node}, and its directory there is gone"
    return f"{what}: how it will end cannot be known"


RULES: Final = (
    Rule(e.StrayFound, news=_is_new, apply=_found, command=_end_if_over, decide=_hold, say=_say_found),
    Rule(
        e.StrayGone,
        news=_is_known,
        apply=_remove,
        command=_forget,
        say=lambda event: f"nothing is left on node {event.node} of attempt {event.attempt}, which was set aside",
    ),
    Rule(
        e.StrayEndRequested,
        refuse=_refuse_end,
        news=_is_known,
        apply=_note_end,
        command=_end,
        say=_say_end,
    ),
    Rule(e.AttemptOrphaned, news=_is_orphaned, apply=_orphaned, say=_say_orphaned),
)
