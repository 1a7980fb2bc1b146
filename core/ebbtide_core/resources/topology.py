"""How the GPUs of a node reach each other, and which of those that are free go together best.

Of all sets of the wanted size, the one with the largest part that is NVLinked throughout is chosen; of those, the one
with most pairs that are NVLinked, then on one PCIe switch, then on one NUMA node. Among equals, the one that breaks up
fewest such pairs of free ones; then the first by index. So a job on one GPU does not split an NVLink pair if it can be
helped.

This is exact where there are at most `MOST_TRIED` such sets, as of 8 GPUs or fewer; above that, the best of those that
grow greedily from each GPU.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Final

from ebbtide_core.model.types import GpuFacts, GpuId, GpuSlice, LinkKind

MOST_TRIED: Final = 256
MOST_REMEMBERED: Final = 4096
NEAR: Final = (LinkKind.NVLINK, LinkKind.SWITCH, LinkKind.NUMA_NODE)
"""Who reaches each other at least so fast forms pairs, the fastest kind first."""

Score = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Topology:
    """The GPUs of one node in order of index. Sets of them are numbers, with a bit for each.

    ``reach`` has for each of `NEAR`, and for each GPU, the others that it reaches at least so fast. ``slices`` are
    those that are MIG slices: they compute alone.
    """

    order: tuple[GpuId, ...]
    reach: tuple[tuple[int, ...], ...]
    slices: frozenset[GpuId]
    _chosen: dict[tuple[int, int, int, int], int] = field(default_factory=dict)

    def choose(
        self, pool: Collection[GpuId], count: int, free: Collection[GpuId], beside: Collection[GpuId] = ()
    ) -> frozenset[GpuId]:
        """``count`` GPUs of ``pool`` that go together best, with those ``beside`` them that the job has already.

        ``free`` are all that nobody has. There must be as many in ``pool``.
        """
        key = (self._set(pool), count, self._set(free), self._set(beside))
        found = self._chosen.get(key)
        if found is None:
            if len(self._chosen) >= MOST_REMEMBERED:
                self._chosen.clear()
            found = self._chosen[key] = self._best(*key)
        return frozenset(self.order[index] for index in _bits(found))

    def _set(self, gpus: Collection[GpuId]) -> int:
        return sum([1 << index for index, gpu in enumerate(self.order) if gpu in gpus])

    def _best(self, pool: int, count: int, free: int, beside: int) -> int:
        members = [1 << index for index in _bits(pool)]
        if comb(len(members), count) <= MOST_TRIED:
            sets = [sum(some) for some in combinations(members, count)]
        else:
            sets = [self._grown(first, members, count, free, beside) for first in members]
        return min(sets, key=lambda chosen: self._score(chosen, free, beside))

    def _grown(self, chosen: int, members: list[int], count: int, free: int, beside: int) -> int:
        for _ in range(count - 1):
            rest = [chosen | member for member in members if not chosen & member]
            chosen = min(rest, key=lambda larger: self._score(larger, free, beside))
        return chosen

    def _score(self, chosen: int, free: int, beside: int) -> Score:
        """What is wrong with ``chosen``; the smaller the better."""
        mine, left = chosen | beside, free & ~chosen
        within = [-self._pairs(reach, mine, mine) for reach in self.reach]
        cut = [self._pairs(reach, chosen, left) for reach in self.reach]
        return (-_largest_clique(self.reach[0], mine), *within, *cut, *_bits(chosen))

    def _pairs(self, reach: tuple[int, ...], one: int, other: int) -> int:
        return sum([(reach[index] & other).bit_count() for index in _bits(one)])


def topology_of(gpus: Iterable[GpuFacts]) -> Topology | None:
    """How ``gpus`` reach each other; None if it makes no difference which of them a job gets, as far as is known."""
    by_index = sorted(gpus, key=lambda facts: facts.index)
    if not any(facts.links or facts.parent is not None or facts.numa_node is not None for facts in by_index):
        return None
    slices = frozenset(facts.gpu for facts in by_index if facts.parent is not None)
    links = {facts.gpu: {link.gpu: link.kind for link in facts.links} for facts in by_index}
    kinds = {(one.gpu, other.gpu): _kind(links, one, other) for one, other in combinations(by_index, 2)}
    if len(set(kinds.values())) <= 1 and not slices:
        return None
    reach = tuple(
        tuple(
            sum([1 << place for place, other in enumerate(by_index) if _reaches(kinds, one.gpu, other.gpu, at_least)])
            for one in by_index
        )
        for at_least in NEAR
    )
    return Topology(tuple(facts.gpu for facts in by_index), reach, slices)


def together(gpus: Iterable[GpuFacts], mem_bytes: int = 0) -> int:
    """How many of ``gpus`` with so much memory one job could have: MIG slices are not combined."""
    large = [facts for facts in gpus if facts.mem_bytes >= mem_bytes]
    return sum(1 for facts in large if facts.parent is None) or min(1, len(large))


def best_of(topology: Topology | None, gpus: tuple[GpuSlice, ...], count: int) -> tuple[GpuSlice, ...]:
    """Those ``count`` of a job's ``gpus`` that go together best."""
    if topology is None or count >= len(gpus):
        return gpus[:count]
    ids = [piece.gpu for piece in gpus]
    chosen = topology.choose(ids, count, ids)
    return tuple(piece for piece in gpus if piece.gpu in chosen)


def _kind(links: dict[GpuId, dict[GpuId, LinkKind]], one: GpuFacts, other: GpuFacts) -> LinkKind:
    """The slowest where nothing is known."""
    known = links[one.gpu].get(other.gpu) or links[other.gpu].get(one.gpu)
    if known is not None:
        return known
    together = one.numa_node is not None and one.numa_node == other.numa_node
    return LinkKind.NUMA_NODE if together else LinkKind.SYSTEM


def _reaches(kinds: dict[tuple[GpuId, GpuId], LinkKind], one: GpuId, other: GpuId, at_least: LinkKind) -> bool:
    kind = kinds.get((one, other)) or kinds.get((other, one))
    return kind is not None and kind.value <= at_least.value


def _bits(members: int) -> Iterator[int]:
    """The places of those in the set."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest


def _largest_clique(reach: tuple[int, ...], members: int) -> int:
    """How many of ``members`` all reach each other, at most."""
    if not members:
        return 0
    if all(not members & ~(reach[index] | 1 << index) for index in _bits(members)):
        return members.bit_count()
    first = members & -members
    with_first = 1 + _largest_clique(reach, members & reach[first.bit_length() - 1])
    rest = members ^ first
    return with_first if with_first > rest.bit_count() else max(with_first, _largest_clique(reach, rest))
