"""Estimates how often room of each size appears.

A job that takes t seconds per completion ends with the rate 1/t. Room for a job appears on a node as often as one of
those jobs ends that alone would make room for it there. Where several have to end for that, smaller jobs that wait take
the room of the first ones; if no smaller job waits, it appears when as many as it takes have ended. GPUs, CPUs and
memory are counted; a GPU that jobs share is free for one that needs whole GPUs once the last of them has ended. By the
same figures the nodes are sorted by when room for a demand appears there first, whoever takes it. The figures of a node
are renewed when its jobs change, and once they are `FRESH_S` old, those of `MOST_RENEWED` nodes in a pass.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from ebbtide_core.estimates.outlook import Outlook, Outlooks
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.types import WHOLE, GpuId, NodeAllocation, NodeId
from ebbtide_core.planning.tide.candidates import FRESH_S, Bounds, Candidates, bounds_of
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.pools import PoolState

MOST_RENEWED: Final = 16
"""The nodes whose figures one pass renews because of their age."""
MOST_DEMANDS: Final = 512
"""The demands of which the rates are kept, and those for which the nodes are sorted."""
TINY: Final = 1e-6
"""The CPUs that may be missing, because sums of fractions are not exact."""


class FirstRoom(NamedTuple):
    """When room for a demand appears first on a node."""

    in_s: float
    """The seconds until then, from when the figures of the node were renewed; infinite if it never does."""
    number: int
    """The place of the node among all nodes, which orders those of one time."""
    node: NodeId


class Needed(NamedTuple):
    """What a job needs of one node: GPUs, CPUs and bytes of memory."""

    gpus: int
    cpus: float
    mem_bytes: float
    shares: bool
    """Whether a share of one GPU is enough."""


class _Held(NamedTuple):
    """What a job holds on one node."""

    left_s: float
    """The time per completion of the job in seconds."""
    some: int
    """The GPUs of which it has some."""
    alone: int
    """Those of which nobody else has any."""
    last: int
    """Those that are free once it ends, if jobs end in the order of their times per completion."""
    cpus: float
    mem_bytes: int


class _NodeRates(NamedTuple):
    """The figures of a node when they were renewed: what is promised to no job, and what jobs hold, soonest first."""

    gpus: int
    cpus: float
    mem_bytes: int
    held: list[_Held]

    def _missing(self, needed: Needed) -> tuple[int, float, float]:
        """Return what is ``needed`` beyond what is promised to no job."""
        return needed.gpus - self.gpus, needed.cpus - self.cpus - TINY, needed.mem_bytes - self.mem_bytes

    def alone(self, needed: Needed) -> float:
        """Return how often a job ends that alone makes room for what is ``needed``."""
        gpus, cpus, mem_bytes = self._missing(needed)
        shares = needed.shares
        return sum(
            [
                1 / left_s
                for left_s, some, alone, _, has_cpus, has_bytes in self.held
                if (some if shares else alone) >= gpus and has_cpus >= cpus and has_bytes >= mem_bytes
            ]
        )

    def together(self, needed: Needed) -> float:
        """Return how often room appears if no other job takes it."""
        if rate := self.alone(needed):
            return rate
        first_s = self.first_s(needed)
        return 1 / first_s if first_s else 0.0

    def first_s(self, needed: Needed) -> float:
        """Return the time per completion of the last job that has to end for what is ``needed``.

        It is 0 if none has to, and infinite if all of them do not suffice.
        """
        gpus, cpus, mem_bytes = self._missing(needed)
        if gpus <= 0 and cpus <= 0 and mem_bytes <= 0:
            return 0.0
        for left_s, some, _, last, has_cpus, has_bytes in self.held:
            gpus, cpus, mem_bytes = gpus - (some if needed.shares else last), cpus - has_cpus, mem_bytes - has_bytes
            if gpus <= 0 and cpus <= 0 and mem_bytes <= 0:
                return left_s
        return math.inf


@dataclass(slots=True, eq=False)
class _Rates:
    """The rates of room for one demand, by node; those of ``stale`` nodes are to be computed again.

    Both are in an order that is the same in every process, because the last digits of a sum depend on it.
    """

    of_node: dict[NodeId, float] = field(default_factory=dict)
    stale: dict[NodeId, None] = field(default_factory=dict)
    sum: float = 0.0


@dataclass(slots=True, eq=False)
class _FirstRooms:
    """When room for one demand appears first, by node and in order; that of ``stale`` nodes is to be computed again."""

    of_node: dict[NodeId, FirstRoom] = field(default_factory=dict)
    in_order: list[FirstRoom] = field(default_factory=list)
    stale: dict[NodeId, None] = field(default_factory=dict)


@mypyc_attr(allow_interpreted_subclasses=True)
class RoomRates:
    """The figures of all nodes of a pool, and their sums; each pass renews them first."""

    def __init__(self, state: PoolState, outlooks: Outlooks) -> None:
        self._state = state
        self._outlooks = outlooks
        self._changed: set[NodeId] = set()
        self._nodes: dict[NodeId, _NodeRates] = {}
        self._rates: dict[tuple[Needed, bool], _Rates] = {}
        self._first_rooms: dict[tuple[Needed, bool], _FirstRooms] = {}
        self._renewed_at: dict[NodeId, float] = {}
        """When the figures of each node were renewed, the oldest first."""
        self.renewed: Sequence[NodeId] = ()
        """The nodes whose figures the present pass has renewed."""
        self.candidates = Candidates()
        self._numbers: dict[NodeId, int] = {}
        """The order in which nodes came, which orders those of one time."""
        self._fits_in: dict[Hashable, dict[NodeId, float | None]] = {}
        self._changes = 0
        """The changes of the nodes of the pool, as `Books` counts them, when the figures were renewed."""

    def change(self, node: NodeId) -> None:
        """Note that the jobs with room on ``node`` changed."""
        self._changed.add(node)

    def wait_s(self, job: Job, passed: bool) -> float:
        """Return the mean time in seconds until room for ``job`` appears; infinite if it never does.

        ``passed`` says that smaller jobs wait, too.
        """
        gpus = -(-job.gpus_min // WHOLE)
        rate = self._rate(_demand(job, gpus), passed)
        if not rate and not passed:  # a gang: the nodes together have to have as many
            whole = [(len(self._state.books.usable[id].slices), node) for id, node in self._nodes.items()]
            rate = sum([node.together(Needed(most, 0.0, 0.0, False)) * most for most, node in whole]) / max(1, gpus)
        return 1 / rate if rate else float("inf")

    def _rate(self, needed: Needed, passed: bool) -> float:
        """Return how often room for what is ``needed`` appears on any one node."""
        rates = self._rates.get((needed, passed))
        if rates is None:
            if len(self._rates) >= MOST_DEMANDS:
                self._rates.clear()
            rates = self._rates[needed, passed] = _Rates(stale=dict.fromkeys(self._nodes))
        for id in rates.stale:
            if (node := self._nodes.get(id)) is None:
                rates.of_node.pop(id, None)
            else:
                rates.of_node[id] = node.alone(needed) if passed else node.together(needed)
        if rates.stale:
            rates.stale.clear()
            rates.sum = sum(rates.of_node.values())
        return rates.sum

    def soonest_first(self, job: Job, gpus: int, *, gang: bool) -> Sequence[FirstRoom]:
        """Return all nodes in the order in which they are expected to have ``gpus`` for ``job``, whoever takes them.

        A ``gang`` takes fewer of a node that has fewer. The order is that of figures which may be old, of an amount of
        CPUs and memory that is rounded up; so who needs the first node compares some.
        """
        key = (_demand(job, gpus), gang)
        rooms = self._first_rooms.get(key)
        if rooms is None:
            if len(self._first_rooms) >= MOST_DEMANDS:
                self._first_rooms.clear()
            rooms = self._first_rooms[key] = _FirstRooms(stale=dict.fromkeys(self._nodes))
        for id in rooms.stale:
            if (known := rooms.of_node.pop(id, None)) is not None:
                del rooms.in_order[bisect_left(rooms.in_order, known)]
            if id in self._nodes:
                first = rooms.of_node[id] = FirstRoom(self._first_s(id, *key), self._numbers[id], id)
                insort(rooms.in_order, first)
        rooms.stale.clear()
        return rooms.in_order

    def fits_in(self, demand: Hashable) -> dict[NodeId, float | None]:
        """Return in how many seconds jobs with ``demand`` fit on each node, as far as that was worked out.

        It is forgotten of a node whose figures are renewed.
        """
        known = self._fits_in.get(demand)
        if known is None:
            if len(self._fits_in) >= MOST_DEMANDS:
                self._fits_in.clear()
            known = self._fits_in[demand] = {}
        return known

    def _first_s(self, id: NodeId, needed: Needed, gang: bool) -> float:
        """Return when what is ``needed`` appears on the node first; what it has in all suffices for a rounded need."""
        node, (gpus, cpus, mem_bytes, shares) = self._state.books.usable[id], needed
        most = min(gpus, len(node.slices)) if gang else gpus
        there = Needed(most, min(cpus, node.facts.cpus), min(mem_bytes, node.facts.mem_bytes), shares)
        return self._nodes[id].first_s(there)

    def renew(self, now: float) -> None:
        """Renew the figures of the nodes that changed, or whose figures are old, as of Unix time ``now``."""
        usable, self.renewed = self._state.books.usable, ()
        if self._changes != self._state.books.changes:
            self._changes = self._state.books.changes
            self._fits_in.clear()
        for id, at in islice(self._renewed_at.items(), MOST_RENEWED):
            if at + FRESH_S > now:
                break
            self._changed.add(id)
        if not self._changed and self._nodes.keys() == usable.keys():
            return
        gone, bounds = self._nodes.keys() - usable.keys(), dict[NodeId, Bounds]()
        for id in gone:
            del self._nodes[id], self._renewed_at[id]
        new = () if len(self._nodes) == len(usable) else [id for id in usable if id not in self._nodes]
        for id in [*sorted(self._changed & usable.keys() - {*new}), *new]:
            node = usable[id]
            jobs = map(self._state.jobs.__getitem__, sorted(node.planned))
            there = [(job, self._outlooks.of(job, now)) for job in jobs]
            number = self._numbers.setdefault(id, len(self._numbers))
            self._nodes[id], bounds[id] = _rates_of(node, there), bounds_of(node, number, there)
            self._renewed_at.pop(id, None)
            self._renewed_at[id] = now
        self.candidates.renew(gone, bounds)
        self.renewed = [*bounds]
        stale = dict.fromkeys([*gone, *bounds])
        for rates in self._rates.values():
            rates.stale.update(stale)
        for rooms in self._first_rooms.values():
            rooms.stale.update(stale)
        for by_node in self._fits_in.values():
            for id in stale:
                by_node.pop(id, None)
        self._changed.clear()


def _rates_of(node: Node, jobs: Iterable[tuple[Job, Outlook]]) -> _NodeRates:
    """Return the figures of ``node``, where ``jobs`` have room."""
    use, held = node.promised, list[_Held]()
    holders, gone = Counter[GpuId](), Counter[GpuId]()
    soonest_first = sorted([(max(1.0, outlook.left_s), job.sequence, job) for job, outlook in jobs])
    pieces = [(left_s, piece) for left_s, _, job in soonest_first if (piece := _piece_on(job, node.id)) is not None]
    for _, piece in pieces if use.shares else ():
        holders.update([gpu.gpu for gpu in piece.gpus])
    for left_s, piece in pieces:
        some = alone = last = len(piece.gpus)
        if use.shares:
            gpus = [gpu.gpu for gpu in piece.gpus]
            gone.update(gpus)
            alone = sum([holders[gpu] == 1 for gpu in gpus])
            last = sum([holders[gpu] == gone[gpu] for gpu in gpus])
        held.append(_Held(left_s, some, alone, last, piece.cpus, piece.mem_bytes))
    return _NodeRates(node.idle(use), node.facts.cpus - use.cpus, node.facts.mem_bytes - use.mem_bytes, held)


def gpus_on(job: Job, node: NodeId) -> int:
    """Return of how many GPUs of ``node`` some is promised to ``job``."""
    piece = _piece_on(job, node)
    return 0 if piece is None else len(piece.gpus)


def _piece_on(job: Job, node: NodeId) -> NodeAllocation | None:
    """Return what is promised to ``job`` on ``node``."""
    for piece in job.planned.nodes if job.planned is not None else ():
        if piece.node == node:
            return piece
    return None


def _demand(job: Job, gpus: int) -> Needed:
    """Return so many GPUs with the CPUs and the memory of ``job``, rounded up."""
    return Needed(gpus, _rounded_up(job.spec.cpus), _rounded_up(job.spec.mem_bytes), job.gpus_min < WHOLE)


def _rounded_up(amount: float) -> float:
    """Return ``amount`` rounded up to 1, 1.25, 1.5 or 1.75 times a power of two, so that few demands differ."""
    if amount <= 0:
        return 0.0
    fraction, exponent = math.frexp(amount)
    return math.ldexp(math.ceil(fraction * 8), exponent - 3)
