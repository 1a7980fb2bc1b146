"""Answers nodes that fetch the snapshot of the working directory in which an attempt starts there."""

import asyncio
from functools import partial

from ebbtide_core.cluster import Cluster
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_protos.v1 import agent_pb2

from ebbtide_master.loop import MasterLoop
from ebbtide_master.nodes.snapshots import SnapshotStore


async def read_snapshot(
    loop: MasterLoop, snapshots: SnapshotStore, request: agent_pb2.ReadCheckpoint, node: NodeId
) -> agent_pb2.CheckpointData:
    """Return the requested window, or an error if no attempt on the node starts from the snapshot, or it is gone."""
    answer = agent_pb2.CheckpointData(request_id=request.request_id)
    if not await loop.ask(partial(_is_needed, request=request, node=node)):
        answer.error = f"job {request.job_id[:80]} does not begin with snapshot {request.snapshot[:12]}"
        return answer
    try:
        window = partial(snapshots.read, request.snapshot, request.offset, request.max_bytes)
        answer.data, answer.end = await asyncio.to_thread(window)
    except (OSError, ValueError) as error:
        answer.error = f"the master has not got snapshot {request.snapshot[:12]}: {error}"
    return answer


def _is_needed(cluster: Cluster, request: agent_pb2.ReadCheckpoint, node: NodeId) -> bool:
    job = cluster.job(JobId(request.job_id))
    if job is None or job.spec.snapshot is None or job.spec.snapshot.digest != request.snapshot:
        return False
    return any(node in attempt.allocation.node_ids for attempt in job.attempts)
