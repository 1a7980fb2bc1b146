"""One pool of nodes and the jobs that go there: a world of its own for the policy that it is scheduled by."""

from dataclasses import dataclass, field
from typing import Protocol

from ebbtide_core.admission.queues import Queue
from ebbtide_core.estimates.curves import ScriptRates
from ebbtide_core.estimates.work import History, Speedup, script_of
from ebbtide_core.job.job import Job
from ebbtide_core.model.settings import Fitting, PoolSettings
from ebbtide_core.model.types import JobId, JobState, NodeId
from ebbtide_core.resources.anti_affinity import Pairs
from ebbtide_core.resources.bookings import Bookings
from ebbtide_core.resources.books import Books, Node


class Ranking(Protocol):
    """An index of its own that a policy wants kept up to date between its passes."""

    def update(self, job: Job) -> None:
        """``job`` changed; called after every event about it. Must be cheap, and idempotent."""
        ...


@dataclass(slots=True)
class Common:
    """What all pools see: every job, every node, and what is known of scripts. ``roots``: see `Books`."""

    speedup: Speedup
    jobs: dict[JobId, Job] = field(default_factory=dict)
    nodes: dict[NodeId, Node] = field(default_factory=dict)
    roots: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    history: History = field(default_factory=History)
    rates: ScriptRates = field(default_factory=ScriptRates)
    bookings: Bookings = field(default_factory=Bookings)
    anti_affinity: Pairs = field(init=False)

    def __post_init__(self) -> None:
        self.anti_affinity = Pairs(self.jobs)

    def curve(self, job: Job) -> Speedup | None:
        """The curve that was measured of the script of ``job``; None if there is none."""
        if not self.rates.curves or (script := script_of(job)) is None:
            return None
        return self.rates.curves.get(script)


class PoolState:
    """A pool's nodes, who waits there, and who has room there; changed as `ebbtide_core.state.ClusterState` is.

    ``settings`` are None if it is configured no more: then nothing is started there. ``changed`` says that something
    happened since its policy was last asked, which wants to be asked again at ``recheck_at`` in any case.
    """

    def __init__(self, name: str, settings: PoolSettings | None, queue: Queue, common: Common) -> None:
        self.name = name
        self.settings = settings
        self.jobs = common.jobs
        self.speedup = common.speedup
        self.history = common.history
        self.rates = common.rates
        self.anti_affinity = common.anti_affinity
        self.curve = common.curve
        fitting = settings.fitting if settings is not None else Fitting.BEST
        self.books = Books(common.nodes, common.roots, common.problems, fitting)
        self.books.booked = common.bookings or None
        self.queue = queue
        self.ranking: Ranking | None = None
        self.planned: dict[JobId, Job] = {}
        """Those with room promised to them."""
        self.claims: dict[JobId, Job] = {}
        """Those of them for whom it is kept until an attempt can start there."""
        self.came_back: dict[JobId, Job] = {}
        """The unfinished jobs of which it was measured what a restart costs them."""
        self.resizing: dict[JobId, Job] = {}
        self.elastic: dict[JobId, Job] = {}
        self.freed_nodes: set[NodeId] = set()
        """Nodes where something was freed, or given up, since claims were last looked at."""
        self.where = ""
        """In words, after what somebody waits for; empty if there is no other pool."""
        self.changed = True
        self.recheck_at: float | None = None

    def forget(self, job: Job) -> None:
        """Have no trace left of ``job``, which has no room here and is in no queue."""
        self.elastic.pop(job.id, None)
        self.resizing.pop(job.id, None)
        self.changed = True
        if self.ranking is not None:
            ending, job.ending = job.ending, JobState.CANCELLED  # who is over is in no ranking
            self.ranking.update(job)
            job.ending = ending
