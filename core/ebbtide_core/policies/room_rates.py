"""Estimates how often room of each size appears, and what a delay of the jobs that have room would cost at least.

A job that takes t seconds per completion ends with the rate 1/t. Room for a job appears on a node as often as one of
those jobs ends that alone would make room for it there. Where several have to end for that, smaller jobs that wait take
the room of the first ones; if no smaller job waits, it appears when as many as it takes have ended. Only GPUs are
counted. The figures of a node are renewed when its jobs change.
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


@dataclass(frozen=True, slots=True)
class _NodeRates:
    """The figures of a node: by number of GPUs the rates of room, and by priority the least price of a delay."""

    alone: list[float]
    """How often one job ends that makes room."""
    together: list[float]
    """How often room appears if no other job takes it."""
    prices: dict[int, float]


class RoomRates:
    """The figures of all nodes of a pool, and their sums."""

    def __init__(self, state: PoolState, outlooks: Outlooks) -> None:
        self._state = state
        self._outlooks = outlooks
        self._changed: set[NodeId] = set()
        self._nodes: dict[NodeId, _NodeRates] = {}
        self._rates: dict[tuple[int, bool], float] = {}
        self._prices: dict[int, float] | None = None

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

    def prices(self, now: float) -> dict[int, float]:
        """Return the least price of a delay of a job with room, by priority, as of the last change of its nodes."""
        self._renew(now)
        if self._prices is None:
            self._prices = {}
            for node in self._nodes.values():
                for priority, least in node.prices.items():
                    self._prices[priority] = min(least, self._prices.get(priority, least))
        return self._prices

    def _renew(self, now: float) -> None:
        usable = self._state.books.usable
        if not self._changed and self._nodes.keys() == usable.keys():
            return
        for id in self._nodes.keys() - usable.keys():
            del self._nodes[id]
        for id, node in usable.items():
            if id in self._changed or id not in self._nodes:
                self._nodes[id] = self._figures(node, now)
        self._changed.clear()
        self._rates.clear()
        self._prices = None

    def _figures(self, node: Node, now: float) -> _NodeRates:
        here, prices = list[tuple[float, int]](), dict[int, float]()
        for id in sorted(node.planned):
            job = self._state.jobs[id]
            outlook = self._outlooks.of(job, now)
            here.append((max(1.0, outlook.left_s), gpus_on(job, node.id)))
            if job.preemptible:
                known = prices.get(job.priority)
                least = price(job, outlook)
                prices[job.priority] = least if known is None else min(known, least)
        here.sort()
        idle, most = node.idle(node.promised), len(node.slices)
        alone = [sum([1 / left_s for left_s, has in here if idle + has >= gpus]) for gpus in range(most + 1)]
        return _NodeRates(
            alone, [rate or _when_several_end(here, idle, gpus) for gpus, rate in enumerate(alone)], prices
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
