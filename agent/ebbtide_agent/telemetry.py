"""What the agent tells of its GPUs: memory, use, and whose processes are on them."""

import pwd
from collections.abc import Iterable, Mapping
from functools import lru_cache

from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent import procfs
from ebbtide_agent.attribution import AttemptKey, Attribution
from ebbtide_agent.gpu.backend import Gpu, GpuProcess, Reading
from ebbtide_agent.gpu.reader import GpuReader, listed_pids


class Telemetry:
    """Readings of the node's GPUs in the protocol's form."""

    def __init__(self, reader: GpuReader, attribution: Attribution) -> None:
        self._reader = reader
        self._attribution = attribution

    async def inventory(self) -> list[agent_pb2.GpuInfo]:
        """The node's GPUs and whether they are healthy."""
        readings = await self._reader.read_all()
        return [_info(gpu, readings[gpu.uuid]) for gpu in self._reader.gpus]

    async def heartbeat(self) -> agent_pb2.Heartbeat:
        """One reading of every GPU."""
        readings = await self._reader.read_all()
        listed = listed_pids(readings)
        owners = self._attribution.owners(listed)
        if all(reading.processes is not None for reading in readings.values()):
            self._attribution.keep_only(listed)
        return agent_pb2.Heartbeat(gpus=[_message(reading, owners) for reading in readings.values()])


def _info(gpu: Gpu, reading: Reading) -> agent_pb2.GpuInfo:
    return agent_pb2.GpuInfo(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        mem_bytes=reading.mem_total_bytes or gpu.mem_bytes,
        healthy=reading.healthy,
        unhealthy_reason=reading.unhealthy_reason,
    )


def _message(reading: Reading, owners: Mapping[int, AttemptKey]) -> agent_pb2.GpuReading:
    processes: Iterable[GpuProcess] = reading.processes or ()
    return agent_pb2.GpuReading(
        uuid=reading.uuid,
        mem_used_bytes=reading.mem_used_bytes,
        utilisation=reading.utilisation,
        processes=[_process(process, owners.get(process.pid)) for process in processes],
        healthy=reading.healthy,
        unhealthy_reason=reading.unhealthy_reason,
        processes_unknown=reading.processes is None,
    )


def _process(process: GpuProcess, owner: AttemptKey | None) -> agent_pb2.GpuProcess:
    message = agent_pb2.GpuProcess(pid=process.pid, mem_bytes=process.mem_bytes)
    if owner is not None:
        message.job_id, message.attempt = owner
        return message
    # The program's name only: a foreign command line may hold what its owner would not show to the whole cluster.
    stat = procfs.read_stat(process.pid)
    uid = procfs.owner_uid(process.pid)
    message.command = "" if stat is None else stat.command
    message.user = "" if uid is None else _user(uid)
    return message


@lru_cache(maxsize=256)
def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
