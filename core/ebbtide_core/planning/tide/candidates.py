"""Sorts the nodes by what it costs at least that jobs step aside there, so that a search for victims ends soon.

What is known of a node bounds what victims there cost: the price of a delay, how long jobs take to step aside, and how
many GPUs are free once they have. The bounds are those of when the figures of the node were renewed.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple

from ebbtide_core.estimates.outlook import Outlook
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import GpuId, NodeId
from ebbtide_core.planning.tide.prices import cost_s, save_s, weight_of
from ebbtide_core.resources.books import Node

FRESH_S: Final = 60.0
"""The age in seconds at which the figures of a node are renewed."""
NEXT_TO_NOTHING: Final = 1e-9
"""What the delay of a less urgent job counts: just enough to choose among such jobs."""
STAYS: Final = -math.inf
"""What counts as the priority of a job that is never preempted."""


class Candidate(NamedTuple):
    """A node with jobs that may step aside, and what bounds whether that pays."""

    price: float
    """The least price of a delay among these jobs in the next `FRESH_S`, if lengths grow by twice that at most."""
    number: int
    """The place of the node among all nodes, which orders those of one price."""
    node: NodeId
    left_s: float
    """The most seconds that one of these jobs is expected to take beyond what stepping aside costs it."""
    save_s: float
    """The least seconds that one of these jobs, or of less urgent ones, takes to step aside."""
    gpus: int
    """The GPUs that are idle once these and less urgent jobs left, as far as nobody else has any of them."""


class Bounds(NamedTuple):
    """What is known of the jobs of one node that may step aside."""

    number: int
    """The place of the node among all nodes."""
    there: Mapping[int, tuple[float, float, float]]
    """By priority: the price, the seconds left and the seconds to step aside, as in `Candidate`."""
    idle: int
    """The idle GPUs."""
    whole: Mapping[float, int]
    """The GPUs by the priority of the most urgent job on each; `STAYS` if a job is there that is never preempted."""


def bounds_of(node: Node, number: int, jobs: Iterable[tuple[Job, Outlook]]) -> Bounds:
    """Return what is known of ``jobs``, which have room on ``node``, which has the place ``number``."""
    there, most_urgent = dict[int, tuple[float, float, float]](), dict[GpuId, float]()
    for job, outlook in jobs:
        preemptible, priority = job.preemptible, job.priority
        urgent = float(priority) if preemptible else STAYS
        for piece in job.planned.nodes if job.planned is not None else ():
            if piece.node == node.id:
                for gpu in piece.gpus:
                    most_urgent[gpu.gpu] = min(urgent, most_urgent.get(gpu.gpu, math.inf))
        if preemptible:
            price, left_s, least_s = there.get(priority, (math.inf, -math.inf, math.inf))
            there[priority] = (
                min(price, weight_of(job, outlook) / (outlook.length_s + 2 * FRESH_S)),
                max(left_s, outlook.left_s - cost_s(job)),
                min(least_s, save_s(job)),
            )
    return Bounds(number, there, node.idle(node.promised), Counter(most_urgent.values()))


class _Sorted:
    """Nodes, the least price first."""

    def __init__(self) -> None:
        self.of_node: dict[NodeId, Candidate] = {}
        self.in_order: list[Candidate] = []

    def put(self, id: NodeId, candidate: Candidate | None) -> None:
        """Give the node its new place; None takes it out."""
        before = self.of_node.pop(id, None)
        if candidate is not None:
            self.of_node[id] = candidate
        if candidate == before:
            return
        if before is not None:
            del self.in_order[bisect_left(self.in_order, before)]
        if candidate is not None:
            insort(self.in_order, candidate)


class Candidates:
    """The nodes of a pool where jobs may step aside."""

    def __init__(self) -> None:
        self._bounds: dict[NodeId, Bounds] = {}
        self._equals: dict[int, _Sorted] = {}
        """The nodes with jobs of each priority."""
        self._less_urgent: dict[int, _Sorted] = {}
        """The nodes with jobs of each of these priorities or less urgent ones, whose delay counts `NEXT_TO_NOTHING`."""
        self.renewals = 0
        self._renewal_of: dict[NodeId, int] = {}
        """The number of the renewal in which each node was renewed, the oldest first."""
        self._renewed_since: dict[tuple[int, bool, bool, int], Sequence[Candidate]] = {}
        """What `cheapest_first` found of nodes that were renewed since, until the next renewal."""

    def renew(self, gone: Iterable[NodeId], bounds: Mapping[NodeId, Bounds]) -> None:
        """Take nodes out, and give others their new places."""
        self.renewals += 1
        self._renewed_since.clear()
        for id in gone:
            self._put(id, Bounds(0, {}, 0, {}))
            del self._bounds[id], self._renewal_of[id]
        for id, known in bounds.items():
            self._put(id, known)
            self._renewal_of.pop(id, None)
            self._renewal_of[id] = self.renewals

    def _put(self, id: NodeId, new: Bounds) -> None:
        old = self._bounds.get(id)
        self._bounds[id] = new
        for priority in old.there if old is not None else ():
            if priority not in new.there:
                self._equals[priority].put(id, None)
                if not self._equals[priority].of_node:
                    del self._equals[priority], self._less_urgent[priority]
        for level in [priority for priority in new.there if priority not in self._equals]:
            self._equals[level], self._less_urgent[level] = _Sorted(), _Sorted()
            for other, bounds in self._bounds.items():
                _enter(other, bounds, {}, {level: self._less_urgent[level]})
        _enter(id, new, self._equals, self._less_urgent)

    def less_urgent_than(self, priority: int) -> list[int]:
        """Return the priorities of jobs that could step aside for one of ``priority``, the least urgent first."""
        return sorted([other for other in self._equals if other > priority], reverse=True)

    def least_price(self, priority: int, *, equals: bool, less_urgent: bool) -> float:
        """Return the price of the first node that `cheapest_first` yields; infinite if it yields none."""
        nodes, others = self._of(priority, equals, less_urgent)
        first = others.in_order or nodes.in_order
        return first[0].price if first else math.inf

    def _of(self, priority: int, equals: bool, less_urgent: bool) -> tuple[_Sorted, _Sorted]:
        """Return the nodes with jobs of ``priority``, and those with less urgent ones."""
        next = min([other for other in self._less_urgent if other > priority], default=None) if less_urgent else None
        mine = self._equals.get(priority, _NONE) if equals else _NONE
        return mine, _NONE if next is None else self._less_urgent[next]

    def cheapest_first(self, priority: int, *, equals: bool, less_urgent: bool, since: int = 0) -> Iterable[Candidate]:
        """Return the nodes with jobs that could step aside for one of ``priority``, the least price of a delay first.

        ``equals`` says whether jobs of that priority count, ``less_urgent`` whether others do: the delay of such a job
        counts `NEXT_TO_NOTHING`, and it takes for ever. Only nodes that were renewed after the renewal ``since`` count.
        """
        mine, others = self._of(priority, equals, less_urgent)
        if not since:
            return others.in_order if not mine.of_node else _merged(mine, others, others.in_order, mine.in_order)
        key = priority, equals, less_urgent, since
        if (known := self._renewed_since.get(key)) is None:
            renewed = [*takewhile(lambda id: self._renewal_of[id] > since, reversed(self._renewal_of))]
            there, equal = _those(others, renewed), _those(mine, renewed)
            known = self._renewed_since[key] = [*_merged(mine, others, there, equal)]
        return known


_NONE: Final = _Sorted()
"""No nodes."""


def _enter(id: NodeId, bounds: Bounds, equals: Mapping[int, _Sorted], less_urgent: Mapping[int, _Sorted]) -> None:
    """Give a node its places among the nodes with jobs of each priority, and of each or less urgent ones."""
    number, there, gpus, whole = bounds
    least, least_s = math.inf, math.inf
    for priority in sorted(there.keys() | less_urgent.keys(), reverse=True):
        own = there.get(priority)
        if own is not None:
            price, left_s, save_s = own
            least, least_s, gpus = min(least, price), min(least_s, save_s), gpus + whole.get(priority, 0)
            if priority in equals:
                equals[priority].put(id, Candidate(price, number, id, left_s, least_s, gpus))
        if priority in less_urgent:
            found = least < math.inf
            candidate = Candidate(least * NEXT_TO_NOTHING, number, id, math.inf, least_s, gpus) if found else None
            less_urgent[priority].put(id, candidate)


def _those(nodes: _Sorted, among: Iterable[NodeId]) -> list[Candidate]:
    return sorted([found for id in among if (found := nodes.of_node.get(id)) is not None])


def _merged(
    mine: _Sorted, others: _Sorted, there: Iterable[Candidate], equal: Iterable[Candidate]
) -> Iterator[Candidate]:
    """Yield the nodes ``there``, with what their jobs that are equal to the waiting one add; then the other ones."""
    for found in there:
        more = mine.of_node.get(found.node)
        yield found if more is None else found._replace(save_s=more.save_s, gpus=more.gpus)
    for found in equal:
        if found.node not in others.of_node:
            yield found
