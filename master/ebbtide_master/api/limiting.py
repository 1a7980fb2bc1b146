"""Limits of arrays, changed while they wait or run."""

from collections.abc import Iterator

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.arrays import shown
from ebbtide_master.clock import Clock
from ebbtide_master.loop import MasterLoop


class Limits:
    """The part of the clients' side that gives arrays other limits."""

    _loop: MasterLoop
    _clock: Clock

    async def change_limits(self, request: client_pb2.ChangeRequest) -> client_pb2.Job:
        """Give an array other limits; one that has them already is what was wished for."""
        if request.HasField("priority") or request.HasField("weight"):
            raise SpecError(
                "--max-concurrent", "cannot be set together with --priority or --weight: set them one by one"
            )

        def facts(cluster: Cluster) -> Iterator[e.ArrayChanged]:
            array = cluster.state.gates.arrays.get(JobId(request.job_id))
            jobs, slots = (0, 0) if array is None else (array.max_concurrent, array.max_slots)
            new_jobs = request.max_concurrent if request.HasField("max_concurrent") else jobs
            new_slots = request.max_slots * WHOLE if request.HasField("max_slots") else slots
            yield e.ArrayChanged(JobId(request.job_id), new_jobs, new_slots, jobs, slots, request.user)

        return await self._loop.tell_in_parts(facts, lambda cluster: shown(cluster, request.job_id, self._clock.now()))
