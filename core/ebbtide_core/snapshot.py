"""What a policy sees, and what it answers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ebbtide_core.books import Node
from ebbtide_core.job import Job
from ebbtide_core.model import Allocation, JobClass, JobId, NodeId
from ebbtide_core.state import ClusterState


class Snapshot:
    """A read-only view of the cluster at ``now``: indexes that are kept up to date, never copies.

    Room is seen as it will be once everything that was asked to stop has stopped, less what is kept for preemptors.
    """

    def __init__(self, state: ClusterState, now: float) -> None:
        self._state = state
        self.now = now
        self.nodes: dict[NodeId, Node] = {id: node for id, node in state.books.nodes.items() if node.usable}

    def job(self, job: JobId) -> Job:
        """The job of that id; not to be changed."""
        return self._state.jobs[job]

    def waiting(self, job_class: JobClass | None = None) -> Iterator[Job]:
        """The jobs that may be placed, in queue order."""
        return self._state.waiting(job_class)

    def planned(self) -> Iterator[Job]:
        """The jobs with room promised to them: running and not asked to stop, or waiting for room to be freed."""
        ids = {id for node in self.nodes.values() for id in node.planned}
        return (self._state.jobs[id] for id in sorted(ids, key=lambda id: self._state.jobs[id].sequence))

    def planned_on(self, node: NodeId) -> list[Job]:
        """Those of one node."""
        ids = self.nodes[node].planned
        return [self._state.jobs[id] for id in sorted(ids, key=lambda id: self._state.jobs[id].sequence)]

    def elastic(self) -> list[Job]:
        """The jobs with room promised to them whose GPU count may vary."""
        return sorted(self._state.elastic.values(), key=lambda job: job.sequence)

    def out_of_range(self) -> list[Job]:
        """Running jobs with more or fewer GPUs than they may have, because a user changed that."""
        return list(self._state.resizing.values())


@dataclass(frozen=True, slots=True)
class Placement:
    """That a job should run on ``allocation``, and why; with ``claim``, what is being freed of it is kept for it."""

    allocation: Allocation
    reason: str
    claim: bool = False


@dataclass(frozen=True, slots=True)
class Eviction:
    """That a job should not run, so that ``for_job`` can."""

    reason: str
    for_job: JobId | None


@dataclass(frozen=True, slots=True)
class Plan:
    """What should run where. Jobs that it does not name stay as they are.

    ``waits`` says why a job still waits; ``recheck_at`` when the policy wants to look again if nothing else happens.
    """

    placements: Mapping[JobId, Placement] = field(default_factory=dict)
    evictions: Mapping[JobId, Eviction] = field(default_factory=dict)
    waits: Mapping[JobId, str] = field(default_factory=dict)
    recheck_at: float | None = None
