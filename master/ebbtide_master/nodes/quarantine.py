"""Decides when a GPU leaves quarantine, where it is because a job left memory on it."""

from typing import Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.model import limits
from ebbtide_core.model.types import JobId
from ebbtide_protos.v1 import agent_pb2

TOLERANCE_BYTES: Final = 512 * limits.MIB
"""Bytes that may be in use above what the GPU showed when it was idle; agents use the same tolerance."""


def is_released(reading: agent_pb2.GpuReading, cluster: Cluster) -> bool:
    """Whether no process of an ended attempt is left on the GPU, and its other processes explain the used memory."""
    if not reading.healthy or any(_is_left_over(process, cluster) for process in reading.processes):
        return False
    if not reading.HasField("mem_used_bytes") or any(
        not process.HasField("mem_bytes") for process in reading.processes
    ):
        return not reading.processes_unknown
    unexplained = reading.mem_used_bytes - sum(process.mem_bytes for process in reading.processes)
    return unexplained <= reading.idle_bytes + TOLERANCE_BYTES


def _is_left_over(process: agent_pb2.GpuProcess, cluster: Cluster) -> bool:
    """Whether the process is of an attempt that has ended, or has itself ended but is still listed."""
    if not process.job_id:
        return not process.user and not process.command
    job = cluster.job(JobId(process.job_id))
    if job is None or not 0 < process.attempt <= len(job.attempts):
        return True
    return job.attempts[process.attempt - 1].end is not None
