"""Estimates how often room of each size appears.

A job that takes t seconds per completion ends with the rate 1/t. Room for a job appears on a node as often as one of
those jobs ends that alone would make room for it there. Where several have to end for that, smaller jobs that wait take
the room of the first ones; if no smaller job waits, it appears when as many as it takes have ended. GPUs, CPUs and
memory are counted. By the same figures the nodes are sorted by when room for a demand appears there first, whoever
takes it. The figures of a node are renewed when its jobs change, and once they are `FRESH_S` old, those of
`MOST_RENEWED` nodes in a pass.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from ebbtide_core.estimates.outlook import Outlook, Outlooks
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.types import WHOLE, NodeId
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


Resources = tuple[int, float, float]
"""GPUs, CPUs and bytes of memory on one node."""


class _NodeRates(NamedTuple):
    """The figures of a node when they were renewed."""

    idle: Resources
    """What is promised to no job."""
    held: list[tuple[float, Resources]]
    """What each job holds, by its time per completion in seconds."""

    def alone(self, needed: Resources) -> float:
        """Return how often a job ends that alone makes room for what is ``needed``."""
        return sum([1 / left_s for left_s, has in self.held if _suffice(self.idle, has, needed)])

    def together(self, needed: Resources) -> float:
        """Return how often room appears if no other job takes it."""
        if rate := self.alone(needed):
            return rate
        first_s = self.first_s(needed)
        return 1 / first_s if first_s else 0.0

    def first_s(self, needed: Resources) -> float:
        """Return the time per completion of the last job that has to end for what is ``needed``.

        It is 0 if none has to, and infinite if all of them do not suffice.
        """
        (gpus, cpus, mem_bytes), nothing = self.idle, (0, 0.0, 0.0)
        if _suffice(self.idle, nothing, needed):
            return 0.0
        for left_s, has in self.held:
            gpus, cpus, mem_bytes = gpus + has[0], cpus + has[1], mem_bytes + has[2]
            if _suffice((gpus, cpus, mem_bytes), nothing, needed):
                return left_s
        return float("inf")


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
        self._rates: dict[tuple[Resources, bool], _Rates] = {}
        self._first_rooms: dict[tuple[Resources, bool], _FirstRooms] = {}
        self._renewed: dict[NodeId, float] = {}
        """When the figures of each node were renewed, the oldest first."""
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
            rate = sum([node.together((most, 0.0, 0.0)) * most for most, node in whole]) / max(1, gpus)
        return 1 / rate if rate else float("inf")

    def _rate(self, needed: Resources, passed: bool) -> float:
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
        if len(self._fits_in) >= MOST_DEMANDS:
            self._fits_in.clear()
        return self._fits_in.setdefault(demand, {})

    def _first_s(self, id: NodeId, needed: Resources, gang: bool) -> float:
        """Return when what is ``needed`` appears on the node first; what it has in all suffices for a rounded need."""
        node, (gpus, cpus, mem_bytes) = self._state.books.usable[id], needed
        most = min(gpus, len(node.slices)) if gang else gpus
        return self._nodes[id].first_s((most, min(cpus, node.facts.cpus), min(mem_bytes, node.facts.mem_bytes)))

    def renew(self, now: float) -> None:
        """Renew the figures of the nodes that changed, or whose figures are old, as of Unix time ``now``."""
        usable = self._state.books.usable
        if self._changes != self._state.books.changes:
            self._changes = self._state.books.changes
            self._fits_in.clear()
        for id, at in islice(self._renewed.items(), MOST_RENEWED):
            if at + FRESH_S > now:
                break
            self._changed.add(id)
        if not self._changed and self._nodes.keys() == usable.keys():
            return
        gone, bounds = self._nodes.keys() - usable.keys(), dict[NodeId, Bounds]()
        for id in gone:
            del self._nodes[id], self._renewed[id]
        new = () if len(self._nodes) == len(usable) else [id for id in usable if id not in self._nodes]
        for id in [*sorted(self._changed & usable.keys() - {*new}), *new]:
            node = usable[id]
            jobs = map(self._state.jobs.__getitem__, sorted(node.planned))
            there = [(job, self._outlooks.of(job, now)) for job in jobs]
            number = self._numbers.setdefault(id, len(self._numbers))
            self._nodes[id], bounds[id] = _rates_of(node, there), bounds_of(node, number, there)
            self._renewed.pop(id, None)
            self._renewed[id] = now
        self.candidates.renew(gone, bounds)
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
    held = sorted([(max(1.0, outlook.left_s), _held_on(job, node.id)) for job, outlook in jobs])
    use = node.promised
    return _NodeRates((node.idle(use), node.facts.cpus - use.cpus, float(node.facts.mem_bytes - use.mem_bytes)), held)


def gpus_on(job: Job, node: NodeId) -> int:
    """Return of how many GPUs of ``node`` some is promised to ``job``."""
    return _held_on(job, node)[0]


def _held_on(job: Job, node: NodeId) -> Resources:
    """Return what is promised to ``job`` on ``node``; a share counts as a GPU."""
    room, gpus, cpus, mem_bytes = job.planned, 0, 0.0, 0.0
    for piece in room.nodes if room is not None else ():
        if piece.node == node:
            gpus, cpus, mem_bytes = gpus + len(piece.gpus), cpus + piece.cpus, mem_bytes + piece.mem_bytes
    return gpus, cpus, mem_bytes


def _demand(job: Job, gpus: int) -> Resources:
    """Return so many GPUs with the CPUs and the memory of ``job``, rounded up."""
    return gpus, _rounded_up(job.spec.cpus), _rounded_up(job.spec.mem_bytes)


def _suffice(idle: Resources, more: Resources, needed: Resources) -> bool:
    return idle[0] + more[0] >= needed[0] and idle[1] + more[1] >= needed[1] - TINY and idle[2] + more[2] >= needed[2]


def _rounded_up(amount: float) -> float:
    """Return ``amount`` rounded up to 1, 1.25, 1.5 or 1.75 times a power of two, so that few demands differ."""
    if amount <= 0:
        return 0.0
    fraction, exponent = math.frexp(amount)
    return math.ldexp(math.ceil(fraction * 8), exponent - 3)
