"""Estimates how often room of each size appears, and what a delay of the jobs that have room would cost at least.

A job that takes t seconds per completion ends with the rate 1/t. Room for a job appears on a node as often as one of
those jobs ends that alone would make room for it there. Where several have to end for that, smaller jobs that wait take
the room of the first ones; if no smaller job waits, it appears when as many as it takes have ended. GPUs, CPUs and
memory are counted. By the same figures the nodes are sorted by when room for a demand appears there first, whoever
takes it. The figures of a node are renewed when its jobs change, and once they are `FRESH_S` old, those of
`MOST_RENEWED` nodes in a pass.
"""

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice, takewhile
from typing import Final, NamedTuple

from ebbtide_core.estimates.outlook import UNKNOWN_S, Outlook, Outlooks, OutlookSource
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, GpuId, JobClass, NodeId
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.pools import PoolState

TRIAL_WEIGHT: Final = 6.0
"""How much more a second counts for a trial-and-error job, until it has run longer than such jobs do."""
FRESH_S: Final = 60.0
"""The age in seconds at which the figures of a node are renewed."""
MOST_RENEWED: Final = 16
"""The nodes whose figures one pass renews because of their age."""
MOST_DEMANDS: Final = 512
"""The demands of which the rates are kept, and those for which the nodes are sorted."""
TINY: Final = 1e-6
"""The CPUs that may be missing, because sums of fractions are not exact."""
NEXT_TO_NOTHING: Final = 1e-9
"""What the delay of a less urgent job counts: just enough to choose among such jobs."""
KNOWN: Final = frozenset({OutlookSource.DECLARED, OutlookSource.PROGRESS, OutlookSource.TIME_LIMIT})
"""The sources that know how long the job itself takes, or takes at most."""
UNPROVED: Final = 0.25
"""How likely a job is assumed to lose its work by stepping aside, before it proved that it can suspend."""
STAYS: Final = -math.inf
"""What counts as the priority of a job that is never preempted."""
RESTART_S: Final = 30.0
"""The assumed time in seconds in which a job comes back, before that was measured."""


def price(job: Job, outlook: Outlook) -> float:
    """Return what a second of delay costs: it counts relative to the expected length, times the job's weight."""
    return weight_of(job, outlook) / outlook.length_s


def weight_of(job: Job, outlook: Outlook) -> float:
    """Return the job's weight, `TRIAL_WEIGHT` times that for a trial-and-error job."""
    return job.weight * TRIAL_WEIGHT if _is_trial(job, outlook) else job.weight


def may_ask_equals(job: Job, outlook: Outlook) -> bool:
    """Return whether jobs of its own priority may be preempted for ``job``.

    They are for a trial-and-error job, and for one that is known to be done soon. What earlier runs suggest is too
    uncertain: flow times were longer, on FitGpp's workload and on bags, where others stepped aside for that.
    """
    return outlook.source in KNOWN or _is_trial(job, outlook)


def _is_trial(job: Job, outlook: Outlook) -> bool:
    """Return whether ``job`` is a trial-and-error job that has not run longer than such jobs do."""
    if job.spec.job_class is not JobClass.TRIAL_AND_ERROR:
        return False
    unlike_its_class = outlook.source in (OutlookSource.ALL, OutlookSource.AGE)
    return not unlike_its_class or outlook.done_s < UNKNOWN_S[JobClass.TRIAL_AND_ERROR]


def save_s(job: Job) -> float:
    """Return how long ``job`` takes to step aside: as measured, or else its grace period; 0 if it does not run."""
    if not job.running:
        return 0.0
    return job.spec.grace_s if job.suspending.save_s is None else job.suspending.save_s


def cost_s(job: Job) -> float:
    """Return what it costs ``job`` to step aside and to come back: as measured, or else as assumed."""
    known = job.suspending.restart_cost_s
    return known if known is not None else (save_s(job) + RESTART_S if job.running else 0.0)


def at_risk_s(job: Job, outlook: Outlook) -> float:
    """Return the seconds of work that ``job`` is expected to lose by stepping aside: none once it proved that it can.

    A job that saved nothing when it was last asked to step aside loses all again.
    """
    if job.suspending.proved:
        return 0.0
    return outlook.done_s * (1.0 if job.suspending.fruitless_in_row else UNPROVED)


def unsaved_s(job: Job, outlook: Outlook) -> float:
    """Return the seconds of work that ``job`` may lose by stepping aside: none once it proved that it can or saved."""
    return 0.0 if job.suspending.proved or job.saved.checkpoint is not None else outlook.done_s


@dataclass(frozen=True, slots=True)
class Preemptible:
    """What bounds whether it pays that a job of one priority steps aside on a node."""

    price: float
    """The least price of a delay among these jobs in the next `FRESH_S`, if lengths grow by twice that at most."""
    left_s: float
    """The most seconds that one of them is expected to take beyond what stepping aside costs it."""
    save_s: float
    """The least seconds that one of them takes to step aside."""


NONE: Final = Preemptible(math.inf, -math.inf, math.inf)
"""The bounds of no job."""


class Candidate(NamedTuple):
    """A node with jobs that may step aside."""

    price: float
    """The least price of a delay among these jobs, as in `Preemptible`."""
    number: int
    """The place of the node among all nodes, which orders those of one price."""
    node: NodeId
    left_s: float
    """The most seconds that one of these jobs is expected to take beyond what stepping aside costs it."""


class FirstRoom(NamedTuple):
    """When room for a demand appears first on a node."""

    in_s: float
    """The seconds until then, from when the figures of the node were renewed; infinite if it never does."""
    number: int
    """The place of the node among all nodes, which orders those of one time."""
    node: NodeId


Resources = tuple[int, float, float]
"""GPUs, CPUs and bytes of memory on one node."""


@dataclass(frozen=True, slots=True)
class _NodeRates:
    """The figures of a node when they were renewed."""

    idle: Resources
    """What is promised to no job."""
    held: list[tuple[float, Resources]]
    """What each job holds, by its time per completion in seconds."""
    preemptible: dict[int, Preemptible]
    """What bounds a preemption, by priority."""
    whole: Counter[float]
    """The GPUs by the priority of the most urgent job on each; `STAYS` if a job is there that is never preempted."""

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
        self.renewals = 0
        self.renewal_of: dict[NodeId, int] = {}
        """The number of the renewal in which each node's figures were renewed."""
        self._numbers: dict[NodeId, int] = {}
        """The order in which nodes came, which orders those of one price."""
        self._by_price: dict[int, list[Candidate]] = {}
        """The nodes with jobs of each priority that may step aside, the least price of a delay first."""

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

    def _first_s(self, id: NodeId, needed: Resources, gang: bool) -> float:
        """Return when what is ``needed`` appears on the node first; what it has in all suffices for a rounded need."""
        node, (gpus, cpus, mem_bytes) = self._state.books.usable[id], needed
        most = min(gpus, len(node.slices)) if gang else gpus
        return self._nodes[id].first_s((most, min(cpus, node.facts.cpus), min(mem_bytes, node.facts.mem_bytes)))

    def cheapest_first(self, priority: int, *, equals: bool, less_urgent: bool, since: int = 0) -> Iterator[Candidate]:
        """Yield the nodes with jobs that could step aside for one of ``priority``, the least price of a delay first.

        ``equals`` says whether jobs of that priority count, ``less_urgent`` whether others do: the delay of such a job
        counts `NEXT_TO_NOTHING`, and it takes for ever. Only nodes that were renewed after the renewal ``since`` count.
        """
        if since:
            renewed = takewhile(lambda id: self.renewal_of[id] > since, reversed(self._renewed))
            there = [self._candidate(id, priority, equals, less_urgent) for id in renewed]
            yield from sorted([candidate for candidate in there if candidate is not None])
            return
        seen = set[NodeId]()
        others = [nodes for other, nodes in self._by_price.items() if other > priority] if less_urgent else []
        for found in merge(*others):
            if found.node not in seen:
                seen.add(found.node)
                yield Candidate(found.price * NEXT_TO_NOTHING, found.number, found.node, float("inf"))
        for found in self._by_price.get(priority, ()) if equals else ():
            if found.node not in seen:
                yield found

    def _candidate(self, id: NodeId, priority: int, equals: bool, less_urgent: bool) -> Candidate | None:
        there = self._nodes[id].preemptible
        prices = [bounds.price for other, bounds in there.items() if other > priority] if less_urgent else []
        if prices:
            return Candidate(min(prices) * NEXT_TO_NOTHING, self._numbers[id], id, math.inf)
        if equals and (bounds := there.get(priority)) is not None:
            return Candidate(bounds.price, self._numbers[id], id, bounds.left_s)
        return None

    def less_urgent_than(self, priority: int) -> list[int]:
        """Return the priorities of jobs that could step aside for one of ``priority``, the least urgent first."""
        return sorted([other for other, nodes in self._by_price.items() if other > priority and nodes], reverse=True)

    def least_save_s(self, node: NodeId, priority: int) -> float:
        """Return how long any job of ``priority`` or a less urgent one on ``node`` takes at least to step aside."""
        there = self._nodes[node].preemptible.items()
        return min([bounds.save_s for other, bounds in there if other >= priority], default=math.inf)

    def may_free(self, node: NodeId, priority: int, parts: int) -> bool:
        """Return whether ``node`` may have room for ``parts`` once jobs of ``priority`` and less urgent ones left."""
        if parts < WHOLE:
            return True
        figures = self._nodes[node]
        freed = sum([count for urgent, count in figures.whole.items() if urgent >= priority])
        return (figures.idle[0] + freed) * WHOLE >= parts

    def renew(self, now: float) -> None:
        """Renew the figures of the nodes that changed, or whose figures are old, as of Unix time ``now``."""
        usable = self._state.books.usable
        for id, at in islice(self._renewed.items(), MOST_RENEWED):
            if at + FRESH_S > now:
                break
            self._changed.add(id)
        if not self._changed and self._nodes.keys() == usable.keys():
            return
        self.renewals += 1
        gone, renewed = self._nodes.keys() - usable.keys(), list[NodeId]()
        for id in gone:
            self._sort(id, {})
            del self._nodes[id], self._renewed[id], self.renewal_of[id]
        new = () if len(self._nodes) == len(usable) else [id for id in usable if id not in self._nodes]
        for id in [*sorted(self._changed & usable.keys() - {*new}), *new]:
            figures = self._figures(usable[id], now)
            self._sort(id, figures.preemptible)
            self._nodes[id] = figures
            self._renewed.pop(id, None)
            self._renewed[id], self.renewal_of[id] = now, self.renewals
            renewed.append(id)
        stale = dict.fromkeys([*gone, *renewed])
        for rates in self._rates.values():
            rates.stale.update(stale)
        for rooms in self._first_rooms.values():
            rooms.stale.update(stale)
        self._changed.clear()

    def _sort(self, id: NodeId, preemptible: Mapping[int, Preemptible]) -> None:
        """Give the node its new places among the others."""
        known, number = self._nodes.get(id), self._numbers.setdefault(id, len(self._numbers))
        for priority, there in known.preemptible.items() if known is not None else ():
            nodes = self._by_price[priority]
            del nodes[bisect_left(nodes, Candidate(there.price, number, id, there.left_s))]
            if not nodes:
                del self._by_price[priority]
        for priority, there in preemptible.items():
            insort(self._by_price.setdefault(priority, []), Candidate(there.price, number, id, there.left_s))

    def _figures(self, node: Node, now: float) -> _NodeRates:
        held, preemptible = list[tuple[float, Resources]](), dict[int, Preemptible]()
        most_urgent = dict[GpuId, float]()
        for id in sorted(node.planned):
            job = self._state.jobs[id]
            outlook = self._outlooks.of(job, now)
            has = _held_on(job, node.id)
            held.append((max(1.0, outlook.left_s), has))
            urgent = job.priority if job.preemptible else STAYS
            for piece in job.planned.nodes if job.planned is not None else ():
                for gpu in piece.gpus if piece.node == node.id else ():
                    most_urgent[gpu.gpu] = min(urgent, most_urgent.get(gpu.gpu, math.inf))
            if job.preemptible:
                known = preemptible.get(job.priority, NONE)
                preemptible[job.priority] = Preemptible(
                    min(known.price, weight_of(job, outlook) / (outlook.length_s + 2 * FRESH_S)),
                    max(known.left_s, outlook.left_s - cost_s(job)),
                    min(known.save_s, save_s(job)),
                )
        held.sort()
        use = node.promised
        idle = (node.idle(use), node.facts.cpus - use.cpus, float(node.facts.mem_bytes - use.mem_bytes))
        return _NodeRates(idle, held, preemptible, Counter(most_urgent.values()))


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
