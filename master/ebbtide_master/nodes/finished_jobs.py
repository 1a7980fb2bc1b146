"""Answers nodes that ask which jobs have finished, so that the nodes can remove what those jobs left."""

from ebbtide_core.cluster import Cluster
from ebbtide_core.model.types import FINISHED, JobId
from ebbtide_protos.v1 import agent_pb2

from ebbtide_master.clock import Clock
from ebbtide_master.loop import MasterLoop


async def ended_jobs(loop: MasterLoop, clock: Clock, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
    """Return which of the requested jobs have finished, and how many seconds ago, and which were removed.

    Jobs that the master does not know are left out.
    """

    def ended(cluster: Cluster) -> agent_pb2.CheckpointData:
        now, found = clock.now(), {}
        for id in request.ended_of:
            job = cluster.job(JobId(id))
            if job is not None and job.state in FINISHED and job.end is not None:
                found[id] = max(0.0, now - job.end.at)
        removed = [id for id in request.ended_of if id in cluster.state.removed]
        return agent_pb2.CheckpointData(request_id=request.request_id, ended_ago_s=found, removed=removed)

    return await loop.ask(ended)
