"""EASY backfill: a later job may start now if that does not delay the head, the first job that has to wait.

This is the rule of Lifka's EASY scheduler (1995). The head's *shadow time* is when enough running jobs have left, each
at its latest possible time, for the head to start. The room that it will have then is set aside for it. A later job may
start if it leaves by the shadow time, or does not use that room. Only the head is protected; jobs that wait behind it
may be passed.

Room is found by `Trial`, per GPU and node, not as a sum. If it is unknown when there will be room for the head, no job
passes it. An estimate does not bound how long a job runs; only its time limit, its reservation or its declared work
does.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import merge
from itertools import chain
from typing import Final

from ebbtide_core.admission.queues import DemandQueue, Queue, demand_of
from ebbtide_core.estimates.rounding import rounded_up_s
from ebbtide_core.job.job import Job
from ebbtide_core.model import limits
from ebbtide_core.model.types import WHOLE, Allocation, GpuSlice, JobId, NodeAllocation
from ebbtide_core.planning.defragment import defragment
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import admit_by_shrinking, grow
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.eligibility import holds_up
from ebbtide_core.resources.expected_releases import ExpectedRelease, ExpectedReleases, LastReason, first_room, held_s
from ebbtide_core.resources.gpu_selection import memory_of
from ebbtide_core.resources.node_usage import NodeUse
from ebbtide_core.resources.placing import Trial
from ebbtide_core.snapshot import Snapshot

GivesWay = Callable[[Job, Job], bool]
"""Whether a job (the first argument) will wait behind the head of the queue (the second) when its reservation ends."""
ALL: Final = limits.MAX_GPUS * WHOLE
"""More than any job asks for: with this bound every waiting job is offered a turn, even if only to block others."""


def admit_in_order(draft: Draft, leaving: ExpectedReleases, gives_way: GivesWay, resize_after_s: float) -> None:
    """Place waiting jobs until one has to wait, then later jobs that do not delay it; then grow elastic jobs.

    ``gives_way`` is called with a job whose reservation ends, and the head of the queue.
    """
    backfill: Backfill | None = None

    def offer(job: Job) -> bool:
        nonlocal backfill
        if backfill is not None:
            return backfill.admit(job)
        if draft.admit(job) or admit_by_shrinking(draft, job, resize_after_s) or defragment(draft, job, resize_after_s):
            return True
        draft.wait(job)
        if holds_up(job, draft.snapshot.books):
            backfill = Backfill(draft, leaving, job, gives_way)
        return False

    queue = draft.snapshot.queue
    assert isinstance(queue, DemandQueue)
    queue.first_fit(offer, lambda: ALL if backfill is None else draft.trial.most)
    if backfill is None:
        grow(draft, resize_after_s)
    else:
        backfill.finish(resize_after_s)


def stands_behind(queue: Queue) -> GivesWay:
    """Make the rule by which a job whose reservation ends waits in its own place of ``queue``."""
    return lambda job, head: queue.order(job) > queue.order(head)


def demand_in_time(job: Job) -> Hashable:
    """Return what makes jobs alike for backfill: where they fit, and how long they may run.

    Times are rounded, because with exact times a pass would have to try every waiting job. If one of two jobs that are
    alike may not pass the head, the other is not tried in the same pass.
    """
    spec, limit, asks_again = job.spec, None, None
    if spec.time_auto:
        asks_again = (job.user, spec.name or spec.command, job.times.ran_s)
    if spec.time_limit_s is not None:
        limit = rounded_up_s(spec.time_limit_s - job.times.ran_s + spec.grace_s)
    elif spec.work_s is not None and not spec.time_auto:
        limit = rounded_up_s(spec.work_s - job.times.work_s)
    return (demand_of(job), limit, asks_again)


@dataclass(slots=True)
class Shadow:
    """When and where the head of the queue can start.

    ``time`` is in Unix seconds. ``future`` is what is in use then, the head's ``room`` included. ``makers`` are the
    jobs on the nodes of ``room`` that leave by then; ``last`` is the last job that has to leave, None if none has to.
    ``certain`` says that the head starts no later, if nodes stay and no job comes before it.
    """

    time: float
    room: Allocation
    future: Trial
    makers: set[JobId]
    last: ExpectedRelease | None
    certain: bool


class Backfill:
    """One pass behind ``head``, for which there is no room in ``draft``.

    ``preempted`` are the jobs that will be preempted once that makes room for the head, so they are not in its way. The
    shadow is computed when it is first needed; if no job fits into what is free, it never is.
    """

    def __init__(
        self, draft: Draft, leaving: ExpectedReleases, head: Job, gives_way: GivesWay, preempted: Iterable[Job] = ()
    ) -> None:
        self.draft = draft
        self.head = head
        self._leaving = leaving
        self._gives_way = gives_way
        self._preempted = preempted
        self._known = False
        self._shadow: Shadow | None = None
        self._kept: Allocation | None = None
        self._kept_for = (-1, -1)
        self._nowhere: set[Hashable] = set()
        """Shapes for which there is no room in this pass; room only shrinks during a pass."""
        self._not_beside: set[Hashable] = set()
        """Shapes for which there is no room beside that of the head."""

    # --- jobs that may pass ---

    def admit(self, job: Job) -> bool:
        """Start ``job`` in room that is free now if that does not delay the head; return whether it starts."""
        draft, demand = self.draft, demand_of(job)
        if demand in self._nowhere or job.gpus_min > draft.trial.most:
            return False
        if demand in self._not_beside and not self._leaves_in_time(job):
            return False
        room = draft.trial.find(job, job.gpus_min, free_now=True)
        if room is None or (shadow := self.shadow()) is None:
            self._nowhere.add(demand)
            return False
        if not self._leaves_in_time(job):
            room = self._beside(job, room, shadow)
            if room is None:
                self._not_beside.add(demand)
                return False
            shadow.future.take(room)
        draft.place(job, room, "starting")
        return True

    def _leaves_in_time(self, job: Job) -> bool:
        snapshot, shadow = self.draft.snapshot, self.shadow()
        if shadow is None:
            return False
        held = held_s(job, snapshot.now, job.gpus_min, snapshot.speedup_of(job), snapshot.reservation(job))
        return held is not None and _starts(job, snapshot.now) + held <= shadow.time

    def _beside(self, job: Job, room: Allocation, shadow: Shadow) -> Allocation | None:
        """Return room for ``job`` that the head will not need: ``room`` itself, or as much elsewhere; None if none."""
        if set(shadow.room.node_ids).isdisjoint(room.node_ids):
            return room
        kept, trial = self._kept_room(shadow), self.draft.trial
        trial.take(kept)
        room_beside = trial.find(job, job.gpus_min, free_now=True)
        trial.give(kept)
        return room_beside

    def _kept_room(self, shadow: Shadow) -> Allocation:
        """Return what is free on the head's nodes now, and will be in use at the shadow time."""
        draft = self.draft
        state = (len(draft.placements), len(draft.evictions))
        if self._kept is None or self._kept_for != state:
            nodes = [draft.snapshot.nodes[id] for id in shadow.room.node_ids]
            self._kept = Allocation(tuple(_needed(node, draft.trial.use(node.id), shadow.future) for node in nodes))
            self._kept_for = state
        return self._kept

    def finish(self, resize_after_s: float) -> None:
        """Name the job that the head waits for, and let elastic jobs grow into what the head will not need.

        The jobs that the head waits for keep their size, so that they leave at the time that was computed.
        """
        self._tell()
        draft = self.draft
        keep: set[JobId] = set()
        if draft.trial.most and draft.has_elastic() and (shadow := self.shadow()) is not None:
            keep = shadow.makers
            draft.trial.take(self._kept_room(shadow))
        grow(draft, resize_after_s, keep)

    # --- the shadow ---

    def shadow(self) -> Shadow | None:
        """Return when and where the head can start; None if that is unknown."""
        if not self._known:
            self._known = True
            self._shadow = self._cast()
        return self._shadow

    def _cast(self) -> Shadow | None:
        draft, now = self.draft, self.draft.snapshot.now
        future = self._today()
        gone: dict[JobId, ExpectedRelease] = {}
        for job in self._preempted:
            allocation = draft.allocation(job)
            if allocation is not None and job.id not in gone:
                gone[job.id] = ExpectedRelease(now, job.sequence, False, False, job)
                future.give(allocation)
        last, room = None, future.find(self.head, self.head.gpus_min) if gone else None
        if room is None:
            leaving = self._leave(gone)
            found = first_room(future, self.head, leaving)
            if found is None:
                return None
            last, room = found
            self._leave_with(last, leaving, future, gone)
        room = self._out_of_the_way(room, future)
        future.take(room)
        makers = {job.id for id in room.node_ids for job in draft.planned_on(id) if job.id in gone}
        certain = all(gone[id].certain for id in makers)
        return Shadow(now if last is None else max(now, last.time), room, future, makers, last, certain)

    def _out_of_the_way(self, room: Allocation, future: Trial) -> Allocation:
        """Return as much room on the same nodes, on the GPUs that leave most of what is free now to other jobs."""
        nodes, trial, head = self.draft.snapshot.nodes, self.draft.trial, self.head
        pieces = [
            _out_of_the_way(piece, nodes[piece.node], head, trial.use(piece.node), future.use(piece.node))
            for piece in room.nodes
        ]
        return Allocation(tuple(pieces))

    def _leave_with(
        self,
        last: ExpectedRelease,
        leaving: Iterator[tuple[ExpectedRelease, Allocation]],
        future: Trial,
        gone: dict[JobId, ExpectedRelease],
    ) -> None:
        """Release the jobs that leave at the same time as ``last``, too."""
        for leave, allocation in leaving:
            if leave.time > last.time:
                del gone[leave.job.id]
                return
            future.give(allocation)

    def _today(self) -> Trial:
        """Return a copy of the draft's trial that may be changed."""
        draft = self.draft
        trial = Trial(draft.snapshot.books)
        for id in dict.fromkeys(chain(draft.evictions, draft.placements)):
            if (planned := draft.snapshot.job(id).planned) is not None:
                trial.give(planned)
        for placement in draft.placements.values():
            trial.take(placement.allocation)
        return trial

    def _leave(self, gone: dict[JobId, ExpectedRelease]) -> Iterator[tuple[ExpectedRelease, Allocation]]:
        """Yield the jobs that leave, in order of time, and what each frees; enter each in ``gone``."""
        draft, changed = self.draft, self.draft.placements.keys() | self.draft.evictions.keys()
        soon = [self._leave_from_now(job) for job in self._leaving.starting.values() if job.id not in changed]
        soon += [self._leave_from_now(draft.snapshot.job(id)) for id in draft.placements]
        running: Iterable[ExpectedRelease] = self._leaving.order
        if changed:
            running = (leave for leave in running if leave.job.id not in changed)
        if starting := sorted(leave for leave in soon if leave is not None):
            running = merge(running, starting)
        for leave in running:
            job = leave.job
            if job.id in gone or (leave.asks_again and not self._gives_way(job, self.head)):
                continue
            allocation = job.planned if job.id not in changed else draft.allocation(job)
            if allocation is not None:
                gone[job.id] = leave
                yield leave, allocation

    def _leave_from_now(self, job: Job) -> ExpectedRelease | None:
        """Return when ``job``, which starts now, leaves at the latest; None if unknown."""
        snapshot, allocation = self.draft.snapshot, self.draft.allocation(job)
        assert allocation is not None
        reserved_s = _reservation(snapshot, job) if self._gives_way(job, self.head) else None
        held = held_s(job, snapshot.now, allocation.share, snapshot.speedup_of(job), reserved_s)
        return (
            None if held is None else ExpectedRelease(_starts(job, snapshot.now) + held, job.sequence, False, True, job)
        )

    def _tell(self) -> None:
        """Set the head's wait reason. The last one is reused while the job that it names runs, to save computing it."""
        waits, head, known = self.draft.waits, self.head.id, self._leaving.last_reason
        if head not in waits:
            return
        if not self._known and known is not None and known.head == head and known.last in self._leaving:
            waits[head] = known.text
            return
        shadow = self.shadow() if self._known or self.draft.trial.most else None
        if shadow is not None and shadow.last is not None:
            when, last = "at the latest" if shadow.certain else "about", shadow.last.job.id
            waits[head] += f"; starts {when} when the time of job {last} is up"
            self._leaving.last_reason = LastReason(head, last, waits[head])


def _reservation(snapshot: Snapshot, job: Job) -> float | None:
    """Return the end of the reservation with which ``job`` was or will be placed, in seconds of running time."""
    return job.attempts[-1].reserved_s if job.running else snapshot.reservation(job)


def _starts(job: Job, now: float) -> float:
    """Return when an attempt that is placed now will run, after its expected restart cost."""
    return now + (job.suspending.restart_cost_s or 0.0)


def _needed(node: Node, now: NodeUse, future: Trial) -> NodeAllocation:
    """Return what of ``node`` is in use in the ``future`` but not ``now``."""
    then = future.use(node.id)
    slices = [piece for whole in node.slices.values() if (piece := _more(whole, now, then)) is not None]
    cpus, memory = max(0.0, then.cpus - now.cpus), max(0, then.mem_bytes - now.mem_bytes)
    return NodeAllocation(node.id, tuple(slices), cpus, memory)


def _out_of_the_way(piece: NodeAllocation, node: Node, job: Job, now: NodeUse, then: NodeUse) -> NodeAllocation:
    """Move ``piece`` to the GPUs of ``node`` that suit ``job`` and leave most of what is free ``now`` to others."""
    alike = len(node.models) <= 1 and (node.topology is None or len(piece.gpus) == 1)
    if not piece.gpus or piece.gpus == node.entire.gpus or not alike:
        return piece
    share, able = piece.gpus[0].share, []
    for whole in node.slices.values():
        wanted = memory_of(job, share, whole) if share < WHOLE else job.gpu_memory.requested_bytes
        if then.share(whole.gpu) + share <= WHOLE and then.gpu_mem.get(whole.gpu, 0) + wanted <= whole.mem_bytes:
            able.append(whole if share == WHOLE else GpuSlice(whole.gpu, share, wanted))
    able.sort(key=lambda slice: max(0, then.share(slice.gpu) + share - now.share(slice.gpu)))
    return replace(piece, gpus=tuple(able[: len(piece.gpus)])) if len(able) >= len(piece.gpus) else piece


def _more(whole: GpuSlice, now: NodeUse, then: NodeUse) -> GpuSlice | None:
    """Return the part of a GPU that is in use ``then`` but not ``now``; None if there is none."""
    id = whole.gpu
    used = now.share(id)
    if used == WHOLE or then.share(id) == 0:
        return None
    if used == 0 and then.share(id) == WHOLE:
        return whole
    memory = whole.mem_bytes if id in then.whole else then.gpu_mem[id]
    share, more = max(0, then.share(id) - used), max(0, memory - now.gpu_mem.get(id, 0))
    return GpuSlice(id, share, more) if share or more else None
