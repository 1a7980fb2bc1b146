"""What the agent tells of its GPUs: memory, use, and whose processes are on them."""

import pwd
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent import procfs
from ebbtide_agent.attribution import AttemptKey, Attribution
from ebbtide_agent.gpu.backend import Gpu, GpuProcess, Kind, Link, Reading
from ebbtide_agent.gpu.reader import GpuReader, Readings, listed_pids
from ebbtide_agent.mps.sharing import Sharing


class GpusChanged(Exception):
    """The node has GPUs that the master does not know of: it is to be told anew who this node is."""


class Telemetry:
    """Readings of the node's GPUs in the protocol's form."""

    def __init__(self, reader: GpuReader, attribution: Attribution, sharing: Sharing | None = None) -> None:
        self._reader = reader
        self._attribution = attribution
        self._sharing = sharing
        self._told = frozenset(gpu.uuid for gpu in reader.gpus)
        self._known = frozenset[str]()  # to what decides how they are shared

    @property
    def kind(self) -> Kind:
        """Who answers for the GPUs."""
        return self._reader.kind

    async def inventory(self) -> list[agent_pb2.GpuInfo]:
        """The node's GPUs and whether they are healthy."""
        readings = await self._read()
        links = await self._reader.links()
        gpus = tuple(gpu for gpu in self._reader.gpus if gpu.uuid in readings)
        self._told = frozenset(readings)
        if self._sharing is not None and self._known != self._told:
            await self._sharing.know(gpus, self._reader.settings, fake=self.kind == "fake")
            self._known = self._told
        return [_info(gpu, readings[gpu.uuid], links, self._sharing) for gpu in gpus]

    async def heartbeat(self) -> agent_pb2.Heartbeat:
        """One reading of every GPU. Raises GpusChanged if there are others than the last inventory told."""
        readings = await self._read()
        if not readings.keys() <= self._told:
            raise GpusChanged(f"{len(readings)} GPUs are here, {len(self._told)} were told")
        xids = self._reader.take_xids()
        listed = listed_pids(readings)
        owners = self._attribution.owners(listed)
        if all(reading.processes is not None for reading in readings.values()):
            self._attribution.keep_only(listed)
        told = (replace(reading, xids=xids.get(reading.uuid, ())) for reading in readings.values())
        return agent_pb2.Heartbeat(gpus=[_message(reading, owners) for reading in told])

    async def _read(self) -> Readings:
        readings = await self._reader.read_all()
        return readings if self._sharing is None else {uuid: self._sharing.seen(readings[uuid]) for uuid in readings}


def _info(gpu: Gpu, reading: Reading, links: Iterable[Link], sharing: Sharing | None) -> agent_pb2.GpuInfo:
    return agent_pb2.GpuInfo(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        mem_bytes=reading.mem_total_bytes or gpu.mem_bytes,
        healthy=reading.healthy,
        unhealthy_reason=reading.unhealthy_reason,
        mps=sharing is not None and sharing.has_mps(gpu.uuid),
        pci_bus_id=gpu.pci_bus_id,
        numa_node=gpu.numa_node,
        compute_capability=gpu.compute_capability,
        parent=gpu.parent,
        peers=[_peer(gpu, link) for link in links if gpu.uuid in (link.one, link.other)],
    )


def _peer(gpu: Gpu, link: Link) -> agent_pb2.GpuPeer:
    other = link.other if gpu.uuid == link.one else link.one
    return agent_pb2.GpuPeer(uuid=other, link=agent_pb2.GpuLink.ValueType(link.kind))


def _message(reading: Reading, owners: Mapping[int, AttemptKey]) -> agent_pb2.GpuReading:
    processes: Iterable[GpuProcess] = reading.processes or ()
    return agent_pb2.GpuReading(
        uuid=reading.uuid,
        mem_used_bytes=reading.mem_used_bytes,
        utilisation=reading.utilisation,
        processes=[_process(process, owners.get(process.pid)) for process in processes],
        healthy=reading.healthy,
        unhealthy_reason=reading.unhealthy_reason,
        mem_reserved_bytes=reading.mem_reserved_bytes,
        temperature_c=reading.temperature_c,
        power_w=reading.power_w,
        xids=reading.xids,
        processes_unknown=reading.processes is None,
    )


def _process(process: GpuProcess, owner: AttemptKey | None) -> agent_pb2.GpuProcess:
    message = agent_pb2.GpuProcess(pid=process.pid, mem_bytes=process.mem_bytes, mps=process.mps)
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
