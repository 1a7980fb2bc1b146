"""Indexes the jobs that came back from a suspension, which may be moved, by the GPUs that they have on each node."""

from collections.abc import Iterable, Iterator

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import Allocation, JobId, NodeId


class CameBack:
    """The unfinished jobs whose restart cost was measured, by id; ``gpus`` counts those that they have some of."""

    def __init__(self) -> None:
        self.jobs: dict[JobId, Job] = {}
        self.gpus: dict[NodeId, int] = {}
        self._rooms: dict[JobId, Allocation | None] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    def __contains__(self, id: JobId) -> bool:
        return id in self.jobs

    def update(self, job: Job) -> None:
        """Note which room is promised to ``job`` now, and that it came back."""
        id, room = job.id, job.planned
        self.jobs[id] = job
        had = self._rooms.get(id)
        if room is not had:
            self._count(had, -1)
            self._count(room, 1)
            self._rooms[id] = room

    def forget(self, id: JobId) -> bool:
        """Leave a job out; return whether it was here."""
        self._count(self._rooms.pop(id, None), -1)
        return self.jobs.pop(id, None) is not None

    def on_node(self, planned: Iterable[JobId]) -> Iterator[Job]:
        """Yield the ones of the jobs that are ``planned`` on a node."""
        for id in planned:
            if id in self.jobs:
                yield self.jobs[id]

    def _count(self, room: Allocation | None, times: int) -> None:
        for piece in room.nodes if room is not None else ():
            count = self.gpus.get(piece.node, 0) + times * len(piece.gpus)
            if count:
                self.gpus[piece.node] = count
            else:
                self.gpus.pop(piece.node, None)
