"""Answers to nodes that ask which jobs have finished, so that what those left may be removed."""

from ebbtide_core.cluster import Cluster
from ebbtide_core.model.types import FINISHED, JobId
from ebbtide_protos.v1 import agent_pb2

from ebbtide_master.clock import Clock
from ebbtide_master.loop import MasterLoop


async def ended_jobs(loop: MasterLoop, clock: Clock, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
    """Those of the jobs that were asked for which have finished, or which their users have removed.

    Of one that nobody knows, nothing is said.
    """

    def ended(cluster: Cluster) -> agent_pb2.CheckpointData:
        now, found = clock.now(), {}
        for id in request.ended_of:
            job = cluster.job(JobId(id))
            if job is not None and job.state in FINISHED and job.ended is not None:
                found[id] = max(0.0, now - job.ended)
        removed = [id for id in request.ended_of if id in cluster.state.removed]
        return agent_pb2.CheckpointData(request_id=request.request_id, ended_ago_s=found, removed=removed)

    return await loop.ask(ended)
