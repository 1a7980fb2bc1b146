"""Describes how the GPUs of a node reach each other, and chooses the free GPUs that go together best.

Of all sets of the requested size, the set with the largest subset in which all GPUs are linked by NVLink wins. Ties go
to the set with most pairs that are linked by NVLink, then by one PCIe switch, then by one NUMA node; then to the set
that splits the fewest such pairs with GPUs that stay free; then to the first by index. So a job on one GPU does not
split an NVLink pair if a GPU without such a link is free.

The choice is exact where there are at most `MOST_TRIED` sets, as with 8 GPUs or fewer. Above that, it is the best of
the sets that grow greedily from each GPU.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import comb
from typing import Final

from ebbtide_core.model.types import GpuFacts, GpuId, GpuSlice, LinkKind

MOST_TRIED: Final = 256
MOST_CACHED: Final = 4096
NEAR: Final = (LinkKind.NVLINK, LinkKind.SWITCH, LinkKind.NUMA_NODE)
"""The kinds of link that make two GPUs a pair, the fastest first; a faster link counts for the slower kinds too."""

Score = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Topology:
    """The GPUs of one node in order of index. A set of GPUs is an integer with one bit for each GPU.

    ``reach`` has, for each kind in `NEAR` and for each GPU, the set of other GPUs that it reaches at least so fast.
    ``slices`` are the MIG slices, which are not combined with other GPUs.
    """

    order: tuple[GpuId, ...]
    reach: tuple[tuple[int, ...], ...]
    slices: frozenset[GpuId]
    _chosen: dict[tuple[int, int, int, int], int] = field(default_factory=dict)

    def choose(
        self, pool: Collection[GpuId], count: int, free: Collection[GpuId], beside: Collection[GpuId] = ()
    ) -> frozenset[GpuId]:
        """Return the ``count`` GPUs of ``pool`` that go together best, also with the job's other GPUs ``beside``.

        ``free`` are all free GPUs. ``pool`` must have at least ``count`` GPUs.
        """
        key = (self._set(pool), count, self._set(free), self._set(beside))
        found = self._chosen.get(key)
        if found is None:
            if len(self._chosen) >= MOST_CACHED:
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
        """Return the cost of ``chosen``; the smaller the better."""
        mine, left = chosen | beside, free & ~chosen
        within = [-self._pairs(reach, mine, mine) for reach in self.reach]
        cut = [self._pairs(reach, chosen, left) for reach in self.reach]
        return (-_largest_clique(self.reach[0], mine), *within, *cut, *_bits(chosen))

    def _pairs(self, reach: tuple[int, ...], one: int, other: int) -> int:
        return sum([(reach[index] & other).bit_count() for index in _bits(one)])


def topology_of(gpus: Iterable[GpuFacts]) -> Topology | None:
    """Return how ``gpus`` reach each other; None if, as far as is known, it makes no difference which a job gets."""
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
    """Return how many of ``gpus`` with at least ``mem_bytes`` one job could have; MIG slices are not combined."""
    large = [facts for facts in gpus if facts.mem_bytes >= mem_bytes]
    return sum(1 for facts in large if facts.parent is None) or min(1, len(large))


def best_of(topology: Topology | None, gpus: tuple[GpuSlice, ...], count: int) -> tuple[GpuSlice, ...]:
    """Return the ``count`` of a job's ``gpus`` that go together best."""
    if topology is None or count >= len(gpus):
        return gpus[:count]
    ids = [piece.gpu for piece in gpus]
    chosen = topology.choose(ids, count, ids)
    return tuple(piece for piece in gpus if piece.gpu in chosen)


def _kind(links: dict[GpuId, dict[GpuId, LinkKind]], one: GpuFacts, other: GpuFacts) -> LinkKind:
    """Return the kind of link between two GPUs; where nothing is known, the slowest."""
    known = links[one.gpu].get(other.gpu) or links[other.gpu].get(one.gpu)
    if known is not None:
        return known
    together = one.numa_node is not None and one.numa_node == other.numa_node
    return LinkKind.NUMA_NODE if together else LinkKind.SYSTEM


def _reaches(kinds: dict[tuple[GpuId, GpuId], LinkKind], one: GpuId, other: GpuId, at_least: LinkKind) -> bool:
    kind = kinds.get((one, other)) or kinds.get((other, one))
    return kind is not None and kind.value <= at_least.value


def _bits(members: int) -> Iterator[int]:
    """Yield the indexes of the GPUs in the set."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest


def _largest_clique(reach: tuple[int, ...], members: int) -> int:
    """Return the size of the largest subset of ``members`` whose GPUs all reach each other."""
    if not members:
        return 0
    if all(not members & ~(reach[index] | 1 << index) for index in _bits(members)):
        return members.bit_count()
    first = members & -members
    with_first = 1 + _largest_clique(reach, members & reach[first.bit_length() - 1])
    rest = members ^ first
    return with_first if with_first > rest.bit_count() else max(with_first, _largest_clique(reach, rest))
