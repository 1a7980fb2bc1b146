"""Estimates how often room of each size appears, and what a delay of the jobs that have room would cost at least.

A job that takes t seconds per completion ends with the rate 1/t. Room for a job appears on a node as often as one of
those jobs ends that alone would make room for it there. Where several have to end for that, smaller jobs that wait take
the room of the first ones; if no smaller job waits, it appears when as many as it takes have ended. Only GPUs are
counted. The figures of a node are renewed when its jobs change, and once they are `FRESH_S` old.
"""

from dataclasses import dataclass
from typing import Final

from ebbtide_core.estimates.outlook import UNKNOWN_S, Outlook, Outlooks, OutlookSource
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobClass, NodeId
from ebbtide_core.resources.books import Node
from ebbtide_core.resources.pools import PoolState

TRIAL_WEIGHT: Final = 10.0
"""How much more a second counts for a trial-and-error job, until it has run longer than such jobs do."""
FRESH_S: Final = 60.0
"""The age in seconds at which the figures of a node are renewed."""
RESTART_S: Final = 30.0
"""The assumed time in seconds in which a job comes back, before that was measured."""


def price(job: Job, outlook: Outlook) -> float:
    """Return what a second of delay costs: it counts relative to the expected length, times the job's weight."""
    weight = job.weight
    if job.spec.job_class is JobClass.TRIAL_AND_ERROR and not _too_long(outlook):
        weight *= TRIAL_WEIGHT
    return weight / outlook.length_s


def _too_long(outlook: Outlook) -> bool:
    """Return whether a trial-and-error job has run longer than such jobs do."""
    unlike_its_class = outlook.source in (OutlookSource.ALL, OutlookSource.AGE)
    return unlike_its_class and outlook.done_s >= UNKNOWN_S[JobClass.TRIAL_AND_ERROR]


def save_s(job: Job) -> float:
    """Return how long ``job`` takes to step aside: as measured, or else its grace period; 0 if it does not run."""
    if not job.running:
        return 0.0
    return job.spec.grace_s if job.suspending.save_s is None else job.suspending.save_s


def cost_s(job: Job) -> float:
    """Return what it costs ``job`` to step aside and to come back: as measured, or else as assumed."""
    known = job.suspending.restart_cost_s
    return known if known is not None else (save_s(job) + RESTART_S if job.running else 0.0)


@dataclass(frozen=True, slots=True)
class Preemptible:
    """What bounds whether it pays that a job of one priority steps aside on a node."""

    price: float
    """The least price of a delay among these jobs."""
    left_s: float
    """The most seconds that one of them is expected to take beyond what stepping aside costs it."""


NONE: Final = Preemptible(float("inf"), -float("inf"))
"""The bounds of no job."""
Candidate = tuple[float, int, NodeId, float]
"""A node with jobs that may step aside: the least price of a delay there, its number, its id, and the most seconds that
one of these jobs is expected to take beyond what stepping aside costs it."""


@dataclass(frozen=True, slots=True)
class _NodeRates:
    """The figures of a node: by number of GPUs the rates of room, and by priority what bounds a preemption."""

    alone: list[float]
    """How often one job ends that makes room."""
    together: list[float]
    """How often room appears if no other job takes it."""
    preemptible: dict[int, Preemptible]


class RoomRates:
    """The figures of all nodes of a pool, and their sums."""

    def __init__(self, state: PoolState, outlooks: Outlooks) -> None:
        self._state = state
        self._outlooks = outlooks
        self._changed: set[NodeId] = set()
        self._nodes: dict[NodeId, _NodeRates] = {}
        self._rates: dict[tuple[int, bool], float] = {}
        self._as_of = -float("inf")
        self._renewed: dict[NodeId, float] = {}
        """When the figures of each node were renewed, the oldest first."""
        self._by_price: dict[tuple[int, bool], list[Candidate]] = {}

    def change(self, node: NodeId) -> None:
        """Note that the jobs with room on ``node`` changed."""
        self._changed.add(node)

    def wait_s(self, gpus: int, passed: bool, now: float) -> float:
        """Return the mean time in seconds until room for a job with so many GPUs appears; infinite if it never does.

        ``passed`` says that smaller jobs wait, too.
        """
        self._renew(now)
        rate = self._rates.get((gpus, passed))
        if rate is None:
            rates = [node.alone if passed else node.together for node in self._nodes.values()]
            rate = sum([of_node[gpus] for of_node in rates if gpus < len(of_node)])
            if not rate and not passed:  # a gang: the nodes together have to have as many
                rate = sum([of_node[-1] * (len(of_node) - 1) for of_node in rates]) / max(1, gpus)
            self._rates[gpus, passed] = rate
        return 1 / rate if rate else float("inf")

    def cheapest_first(self, priority: int, less_urgent: bool, now: float) -> list[Candidate]:
        """Return the nodes with jobs that could step aside for one of ``priority``, the least price of a delay first.

        A less urgent job costs nothing and takes for ever, if ``less_urgent`` ones count.
        """
        self._renew(now)
        found = self._by_price.get((priority, less_urgent))
        if found is None:
            found = []
            for index, (id, node) in enumerate(self._nodes.items()):
                if less_urgent and any(other > priority for other in node.preemptible):
                    found.append((0.0, index, id, float("inf")))
                elif (there := node.preemptible.get(priority)) is not None:
                    found.append((there.price, index, id, there.left_s))
            found.sort()
            self._by_price[priority, less_urgent] = found
        return found

    def _renew(self, now: float) -> None:
        if now == self._as_of and not self._changed:
            return
        self._as_of, usable = now, self._state.books.usable
        for id, renewed in self._renewed.items():
            if renewed + FRESH_S > now:
                break
            self._changed.add(id)
        if not self._changed and self._nodes.keys() == usable.keys():
            return
        for id in self._nodes.keys() - usable.keys():
            del self._nodes[id], self._renewed[id]
        for id, node in usable.items():
            if id in self._changed or id not in self._nodes:
                self._nodes[id] = self._figures(node, now)
                self._renewed.pop(id, None)
                self._renewed[id] = now
        self._changed.clear()
        self._rates.clear()
        self._by_price.clear()

    def _figures(self, node: Node, now: float) -> _NodeRates:
        here, preemptible = list[tuple[float, int]](), dict[int, Preemptible]()
        for id in sorted(node.planned):
            job = self._state.jobs[id]
            outlook = self._outlooks.of(job, now)
            here.append((max(1.0, outlook.left_s), gpus_on(job, node.id)))
            if job.preemptible:
                known = preemptible.get(job.priority, NONE)
                preemptible[job.priority] = Preemptible(
                    min(known.price, price(job, outlook)), max(known.left_s, outlook.left_s - cost_s(job))
                )
        here.sort()
        idle, most = node.idle(node.promised), len(node.slices)
        alone = [sum([1 / left_s for left_s, has in here if idle + has >= gpus]) for gpus in range(most + 1)]
        return _NodeRates(
            alone, [rate or _when_several_end(here, idle, gpus) for gpus, rate in enumerate(alone)], preemptible
        )


def gpus_on(job: Job, node: NodeId) -> int:
    """Return of how many GPUs of ``node`` some is promised to ``job``."""
    room = job.planned
    return 0 if room is None else sum([len(piece.gpus) for piece in room.nodes if piece.node == node])


def _when_several_end(here: list[tuple[float, int]], idle: int, gpus: int) -> float:
    """Return the rate of room for so many GPUs on a node with so many idle ones; ``here`` is sorted."""
    for left_s, has in here:
        idle += has
        if idle >= gpus:
            return 1 / left_s
    return 0.0
