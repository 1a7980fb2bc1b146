"""Holds the state of one pool: its nodes and the jobs that are scheduled there by the pool's own policy."""

from dataclasses import dataclass, field
from typing import Protocol

from ebbtide_core.admission.queues import Queue
from ebbtide_core.estimates.curves import ScriptRates, largest_of_use
from ebbtide_core.estimates.work import History, Speedup, script_of
from ebbtide_core.job.facets import End
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.settings import Fitting, PoolSettings
from ebbtide_core.model.types import JobId, JobState, NodeId
from ebbtide_core.resources.anti_affinity import Pairs
from ebbtide_core.resources.bookings import Bookings
from ebbtide_core.resources.books import Books, Node
from ebbtide_core.resources.came_back import CameBack
from ebbtide_core.resources.elastic_jobs import ElasticJobs
from ebbtide_core.resources.node_values import NodeValues


class Ranking(Protocol):
    """A policy's own index of jobs, which is kept up to date between passes."""

    def update(self, job: Job) -> None:
        """Take in that ``job`` changed. This is called after every event about it: it must be cheap and idempotent."""
        ...


@dataclass(slots=True)
class SharedByPools:
    """What all pools share: every job, every node, and what is known of scripts. For ``roots`` see `Books`."""

    speedup: Speedup
    jobs: dict[JobId, Job] = field(default_factory=dict)
    nodes: dict[NodeId, Node] = field(default_factory=dict)
    roots: NodeValues[str] = field(default_factory=NodeValues)
    problems: list[str] = field(default_factory=list)
    history: History = field(default_factory=History)
    rates: ScriptRates = field(default_factory=ScriptRates)
    bookings: Bookings = field(default_factory=Bookings)
    anti_affinity: Pairs = field(init=False)

    def __post_init__(self) -> None:
        self.anti_affinity = Pairs(self.jobs)

    def curve(self, job: Job) -> Speedup | None:
        """Return the speedup curve that was measured for the script of ``job``; None if there is none."""
        if not self.rates.curves or (script := script_of(job)) is None:
            return None
        return self.rates.curves.get(script)


@mypyc_attr(allow_interpreted_subclasses=True)
class PoolState:
    """A pool's nodes, its queue, and its jobs with room; changed in the same way as `ebbtide_core.state.ClusterState`.

    ``settings`` are None if the pool is no longer configured; then no job is started there. ``changed`` says that
    something happened in the pool since its policy's last pass. A pass at Unix time ``recheck_at`` is due in any case.
    """

    def __init__(self, name: str, settings: PoolSettings | None, queue: Queue, shared: SharedByPools) -> None:
        self.name = name
        self.settings = settings
        self.jobs = shared.jobs
        self.speedup = shared.speedup
        self.history = shared.history
        self.rates = shared.rates
        self.anti_affinity = shared.anti_affinity
        self._shared = shared
        fitting = settings.fitting if settings is not None else Fitting.BEST
        self.books = Books(shared.nodes, shared.roots, shared.problems, fitting)
        self.books.booked = shared.bookings or None
        self.queue = queue
        self.ranking: Ranking | None = None
        self.planned: dict[JobId, Job] = {}
        """Jobs with room promised to them."""
        self.claims: dict[JobId, Job] = {}
        """Jobs with a claim: their promised room is kept until an attempt can start there."""
        self.came_back = CameBack()
        self.resizing: dict[JobId, Job] = {}
        self.elastic = ElasticJobs()
        self.freed_nodes: set[NodeId] = set()
        """Nodes where something was freed or given up since claims were last looked at."""
        self.where = ""
        """Text that names the pool after what a job waits for; empty if there is no other pool."""
        self.nodes_end = False
        """Whether a node of the pool ever had an end, so that it counts how long each job needs a node."""
        self.changed = True
        self.recheck_at: float | None = None

    def curve(self, job: Job) -> Speedup | None:
        """Return the speedup curve that was measured for the script of ``job``; None if there is none."""
        return self._shared.curve(job)

    def most_of_use(self, job: Job) -> int:
        """Return the largest size of use to ``job``, in parts, or its largest size if no curve was measured."""
        if not self.rates.curves:
            return job.gpus_max
        curve = self._shared.curve(job) if job.elastic else None
        return job.gpus_max if curve is None else largest_of_use(job.sizes(), curve)

    def note(self, job: Job) -> None:
        """Note what changed for ``job``, in the indexes of what may be done with the room of jobs."""
        if job.gpus_max != job.gpus_min or job.id in self.elastic:
            self.elastic.update(job, has_room=job.planned is not None and job.held_by is None)
        if job.id in self.came_back:
            self.came_back.update(job)

    def forget(self, job: Job) -> None:
        """Remove all traces of ``job``, which must have no room here and be in no queue."""
        self.elastic.forget(job)
        self.resizing.pop(job.id, None)
        self.changed = True
        if self.ranking is not None:
            end, job.end = job.end, End(JobState.CANCELLED, 0.0, None)  # no ranking keeps an ended job
            self.ranking.update(job)
            job.end = end
