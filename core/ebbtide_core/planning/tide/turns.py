"""Offers each waiting job its turn: it starts, others step aside for it, or it waits."""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Final

from ebbtide_core.admission.queues import demand_besides_size
from ebbtide_core.events.words import duration
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.types import WHOLE
from ebbtide_core.planning.defragment import defragment
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import admit_by_shrinking
from ebbtide_core.planning.preemption import claim, nodes_of
from ebbtide_core.planning.production import PRODUCTION, weakest, weakness
from ebbtide_core.planning.tide.foresight import Foresight
from ebbtide_core.planning.tide.kept_room import KeptRoom
from ebbtide_core.planning.tide.queue import Alike, Entry
from ebbtide_core.planning.tide.victims import Victims
from ebbtide_core.resources.checkpoint_location import nodes_reading_checkpoint
from ebbtide_core.resources.eligibility import holds_up

SHARE_OF_DUE: Final = 0.25
"""The share of the GPUs that a due job has at most, with those that were due before it; it may have more alone."""
MOST_REFUSED: Final = 8
"""The jobs of one size, or those of them that may go to the same nodes only, for which room is sought in vain."""
MOST_LOOKED_AT: Final = 64
"""As many of such jobs are looked at in one pass, and of the due jobs of one priority."""
SOONEST_AGAIN_S: Final = 60.0
"""The least time after which a pass weighs again whether a job should wait, in seconds, if nothing else happens."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Turns:
    """The turns of one pass; ``bound``, ``min_run_s`` and ``resize_after_s`` are the options of `Tide`."""

    def __init__(self, draft: Draft, bound: float, min_run_s: float, resize_after_s: float) -> None:
        self.draft = draft
        self.resize_after_s = resize_after_s
        self.snapshot = draft.snapshot
        self.now = draft.snapshot.now
        self.foresight = Foresight(draft.snapshot)
        self.victims = Victims(draft, self.foresight, bound, min_run_s)
        self.kept_room = KeptRoom(draft, self.foresight)
        self.queue = self.foresight.queue
        self.smallest = min([size for lines in self.queue.by_priority.values() for size, _ in lines], default=0)
        self.most_due = sum([len(node.slices) for node in self.snapshot.nodes.values()]) * WHOLE * SHARE_OF_DUE
        """The GPUs that due jobs of a priority have at most."""
        self.rank = None if weakest(self.snapshot.books) is None else weakness
        self.preempted = False
        """Whether others step aside for a job: only for one in a pass, to bound its cost. The next follows at once."""
        self.ahead = 0
        """How many jobs have had their turns in vain."""
        self._too_large: dict[Hashable, list[tuple[int, float, int]]] = {}
        """The GPUs, CPUs and memory that jobs take that did not fit, by all else that decides where they fit."""

    def offer_to_due(self, priority: int) -> None:
        """Offer the due jobs of ``priority`` their turns; keep room for those that have been due for one length."""
        given, earlier, counted = 0, self.foresight.index.first_due, 0
        self.victims.weighed = 0
        nowhere = Counter[Alike]()
        for entry, alike in self._due(priority, nowhere):
            due, _, job = entry
            while counted < len(earlier) and earlier[counted] < entry and given <= self.most_due:
                given += self._counts(earlier[counted][-1], priority)
                counted += 1
            if given and given + job.gpus_min > self.most_due:
                return
            if self._fits(job):
                given += job.gpus_min
                continue
            where, wait_s = self.kept_room.first_room(job) if holds_up(job, self.snapshot.books) else ([], math.inf)
            if not where:
                nowhere[alike] += 1
                continue
            given += job.gpus_min
            if not self._preempt(job, wait_s, due=True):
                self._weigh_again(job, wait_s)
                self._wait(job, f"; it is due, and gets room in about {duration(wait_s)}")
                if self.now >= due + self.foresight.outlook(job).length_s:
                    self.kept_room.keep(job, where)

    def _due(self, priority: int, nowhere: Mapping[Alike, int]) -> Iterator[tuple[Entry, Alike]]:
        """Yield the due jobs of ``priority``, in the order in which they became due, and request a pass for the next.

        There are at most `MOST_LOOKED_AT` of them, without those that are expected to fit ``nowhere``: these hide only
        others like them.
        """
        heads = [(line.by_due[0], line.by_due, 0, alike) for alike, line in self.queue.by_priority[priority].items()]
        heapify(heads)
        looked = 0
        while heads and looked - sum(nowhere.values()) < MOST_LOOKED_AT:
            entry, line, index, alike = heads[0]
            if entry[0] > self.now:
                self.draft.recheck(entry[0])
                return
            looked, index = looked + 1, index + 1
            yield entry, alike
            if index < len(line) and nowhere.get(alike, 0) < MOST_REFUSED:
                heapreplace(heads, (line[index], line, index, alike))
            else:
                heappop(heads)

    def _counts(self, job: Job, priority: int) -> int:
        """Return what counts as given to ``job``, which was due when it started, before a due job of ``priority``.

        That is nothing if it is less urgent, else what it has of GPUs in service, but no more than its smallest size.
        """
        if job.priority > priority or job.planned is None:
            return 0
        return min(job.gpus_min, self.snapshot.share_in_service(job))

    def offer_to_soonest(self, priority: int) -> None:
        """Offer the jobs of ``priority`` their turns, soonest done first; leave out those like others refused often.

        Jobs of one size are alike. Those that may go to some nodes only count apart, because others may have room.
        """
        self.victims.weighed = 0
        looked, refused = Counter[Hashable](), Counter[Hashable]()
        lines = [(alike, line.soonest) for alike, line in self.queue.by_priority[priority].items()]
        heads = [(line[0], line, 0, self._counts_as(alike, line[0][2])) for alike, line in lines]
        heapify(heads)
        while heads:
            (_, _, job), line, index, alike = heads[0]
            if looked[alike] == MOST_LOOKED_AT or refused[alike] == MOST_REFUSED:
                heappop(heads)
                continue
            looked[alike] += 1
            if job.id not in self.draft.placements and job.id not in self.draft.waits:
                refused[alike] += not self._offer(job)
            index += 1
            if index < len(line):
                heapreplace(heads, (line[index], line, index, alike))
            else:
                heappop(heads)

    def _counts_as(self, alike: Alike, job: Job) -> Hashable:
        """Return ``alike``, or only the size of these jobs if they, of which ``job`` is one, may go to every node."""
        books = self.snapshot.books
        kept = job.eligibility.constrained or job.pinned_allocation is not None
        kept = kept or (bool(job.saved.root_id) and len(nodes_reading_checkpoint(job, books)) < len(books.usable))
        return alike if kept else job.gpus_min

    def _offer(self, job: Job) -> bool:
        """Start ``job`` if it may start now; return False if that was tried in vain."""
        if self._fits(job):
            return True
        if not holds_up(job, self.snapshot.books):
            self.draft.wait(job)
            return False
        if self.ahead and (self.preempted or self.victims.are_enough):
            self.ahead += 1
            return False
        wait_s = self._wait_s(job)
        if self._preempt(job, wait_s, due=False):
            return True
        if not self.ahead:
            if defragment(self.draft, job, self.resize_after_s):
                return True
            self._weigh_again(job, wait_s)
            self._wait(job, f"; {self.foresight.outlook(job)}, and would have room in about {duration(wait_s)}")
        self.ahead += 1
        return False

    def _preempt(self, job: Job, wait_s: float, *, due: bool) -> bool:
        """Have others step aside for ``job`` if that costs less than a wait of ``wait_s``; return whether they do."""
        choice = None if self.preempted else self.victims.choose(job, wait_s, due=due)
        if choice is None:
            return False
        self.preempted = True
        self.draft.recheck(self.now)
        mine, last = self.foresight.outlook(job), self.foresight.outlook(choice[0][-1])
        why = f"job {job.id} ({mine}) would have room in about {duration(wait_s)}, this one is {last}"
        claim(self.draft, job, choice, f"preempted by job {job.id}: {why}")
        self._too_large.clear()
        left = [node for victim in choice[0] for node in nodes_of(victim)]
        self.kept_room.note_changes([*left, *self.draft.placements[job.id].allocation.node_ids])
        return True

    def _wait_s(self, job: Job) -> float:
        """Return in how many seconds ``job`` would have room if no other stepped aside for it.

        The rate of room is a guess worth one observation. So a job that has waited in vain is expected to wait for as
        much longer.
        """
        passed = self.smallest < job.gpus_min
        room_s = self.foresight.index.rates.wait_s(job, passed)
        waited_s = self.now - _waits_since(job, self.now)
        return min(room_s * (1 + self.ahead) + waited_s, max(0.0, self.queue.due(job) - self.now))

    def _weigh_again(self, job: Job, wait_s: float) -> None:
        """Request another pass for when ``job`` is expected to have room, or has waited for as long as it takes."""
        self.draft.recheck(self.now + max(SOONEST_AGAIN_S, min(wait_s, self.foresight.outlook(job).left_s)))

    def _wait(self, job: Job, more: str) -> None:
        self.draft.wait(job)
        self.draft.waits[job.id] += more

    def _fits(self, job: Job) -> bool:
        """Start ``job`` if there is room, or if elastic jobs give some back."""
        spec, least = job.spec, self.draft.least(job)
        known = self._too_large.setdefault(demand_besides_size(job), [])
        if any(least >= gpus and spec.cpus >= cpus and spec.mem_bytes >= bytes for gpus, cpus, bytes in known):
            return False
        rank = self.rank if job.priority <= PRODUCTION else None
        if least <= self.draft.trial.most and self.draft.admit(job, rank):
            self.kept_room.note_changes(self.draft.placements[job.id].allocation.node_ids)
            return True
        if admit_by_shrinking(self.draft, job, self.resize_after_s):
            self._too_large.clear()
            self.kept_room.note_changes(self.snapshot.nodes)
            return True
        known.append((least, spec.cpus, spec.mem_bytes))
        return False


def _waits_since(job: Job, now: float) -> float:
    """Return the Unix time since which the job waits: of its submit or its last end; ``now`` if it runs."""
    last = job.attempt
    if last is None:
        return job.submitted
    return last.end.at if last.end is not None else now
