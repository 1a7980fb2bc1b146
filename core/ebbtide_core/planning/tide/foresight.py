"""Works out, once in a pass, what is expected of each job, and who has room on each node."""

from ebbtide_core.estimates.outlook import Outlook
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_core.planning.tide.index import TideIndex
from ebbtide_core.planning.tide.queue import TideQueue
from ebbtide_core.planning.tide.room_rates import gpus_on
from ebbtide_core.snapshot import Snapshot


class Foresight:
    """What is expected of the jobs of ``snapshot``; the figures of nodes are renewed first."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.index: TideIndex = snapshot.ranking
        self.index.rates.renew(snapshot.now)
        queue = snapshot.queue
        assert isinstance(queue, TideQueue)
        self.queue = queue
        self._snapshot = snapshot
        self._outlooks: dict[JobId, Outlook] = {}
        self._planned: dict[NodeId, list[tuple[int, Job]]] = {}
        self._soonest: dict[NodeId, list[tuple[float, int, Job]]] = {}

    def outlook(self, job: Job) -> Outlook:
        """Return the outlook of ``job`` now."""
        found = self._outlooks.get(job.id)
        if found is None:
            found = self._outlooks[job.id] = self.queue.outlook(job) or self.index.outlooks.of(job, self._snapshot.now)
        return found

    def planned_on(self, id: NodeId) -> list[tuple[int, Job]]:
        """Return the jobs with room on that node, each with the number of GPUs there."""
        found = self._planned.get(id)
        if found is None:
            jobs = map(self._snapshot.job, sorted(self._snapshot.nodes[id].planned))
            found = self._planned[id] = [(gpus_on(job, id), job) for job in jobs]
        return found

    def leaving(self, id: NodeId) -> list[tuple[float, int, Job]]:
        """Return the jobs with room on that node, soonest done first."""
        found = self._soonest.get(id)
        if found is None:
            there = [(self.outlook(other).left_s, other.sequence, other) for _, other in self.planned_on(id)]
            found = self._soonest[id] = sorted(there)
        return found
