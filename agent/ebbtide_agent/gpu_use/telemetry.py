"""Report the node's GPUs to the master: memory, use, and whose processes are on them."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.contract.attempt_dir import AttemptKey
from ebbtide_agent.gpu.backend import DeviceLink, Gpu, GpuProcess, GpuReading, Kind
from ebbtide_agent.gpu.reader import GpuReader, Readings, listed_pids
from ebbtide_agent.gpu_use.attribution import Attribution, Owners
from ebbtide_agent.gpu_use.idle_use import IdleMemory
from ebbtide_agent.mps.sharing import GpuSharing
from ebbtide_agent.node_end import NodeEnd
from ebbtide_agent.processes import process_owner, procfs

Listener = Callable[[Readings, Owners], None]


class GpusChanged(Exception):
    """The node has GPUs that the master does not know, so the node has to introduce itself again."""


def _none_held() -> Collection[str]:
    return ()


class Telemetry:
    """Reads the node's GPUs for the master's messages.

    Idle use is learned from these readings, except from GPUs that are `held` by an attempt. `listeners` are called at
    each heartbeat with the readings and the owners of the processes.
    """

    def __init__(
        self,
        reader: GpuReader,
        attribution: Attribution,
        idle: IdleMemory | None = None,
        held: Callable[[], Collection[str]] = _none_held,
        sharing: GpuSharing | None = None,
        end: NodeEnd | None = None,
    ) -> None:
        self._reader = reader
        self._attribution = attribution
        self._sharing = sharing
        self._reported = frozenset(gpu.uuid for gpu in reader.gpus)
        self._known = frozenset[str]()  # the GPUs that `sharing` knows
        self._idle = idle or IdleMemory()
        self._held = held
        self.listeners: list[Listener] = []
        self.leaving = False  # whether the machine is about to go down
        self.end = end or NodeEnd()
        self.wanted_at = float("-inf")  # when the master said that jobs wait for this node and others, monotonic
        self.heard_at: float | None = None  # when the master heard this node for the first time, monotonic
        self._news = asyncio.Event()  # what the master is to hear before it is time for a heartbeat

    @property
    def kind(self) -> Kind:
        """The kind of the GPUs' backend."""
        return self._reader.kind

    def note_shutdown(self, going: bool) -> None:
        """Note that the machine goes down, at once or when a new notice says; or that it does not, after all."""
        self.leaving = not self.end.look_for_notice() and going
        self._news.set()

    def note_heard(self) -> None:
        """Note that the master has acknowledged a heartbeat."""
        if self.heard_at is None:
            self.heard_at = time.monotonic()

    def note_wanted(self) -> None:
        """Note that jobs wait which need this node together with others that are to come."""
        self.wanted_at = time.monotonic()

    def note_leaving(self) -> None:
        """Note that all attempts are to leave at once, and that a notice says until when they may."""
        self.end.look_for_notice()
        self.end.leave_now()
        self.leaving = True
        self._news.set()

    async def pause(self, longest_s: float) -> None:
        """Wait until the next heartbeat is due, or there is something that the master is to hear at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._news.wait()
        self._news.clear()

    async def inventory(self) -> list[agent_pb2.GpuInfo]:
        """Return the node's GPUs, whether they are healthy, and the processes on them."""
        readings, owners = await self._look()
        links = await self._reader.links()
        gpus = tuple(gpu for gpu in self._reader.gpus if gpu.uuid in readings)
        self._reported = frozenset(readings)
        if self._sharing is not None and self._known != self._reported:
            await self._sharing.set_gpus(gpus, self._reader.settings, fake=self.kind == "fake")
            self._known = self._reported
        return [self._info(gpu, self._seen(readings[gpu.uuid]), owners, links) for gpu in gpus]

    async def heartbeat(self) -> agent_pb2.Heartbeat:
        """Return one reading of every GPU. Raises GpusChanged if there is a GPU that the last inventory lacked."""
        readings, owners = await self._look()
        if not readings.keys() <= self._reported:
            raise GpusChanged(f"{len(readings)} GPUs are here, {len(self._reported)} were reported")
        if all(reading.processes is not None for reading in readings.values()):
            self._attribution.keep_only(listed_pids(readings))
        for listen in self.listeners:
            listen(readings, owners)
        xids = self._reader.take_xids()
        with_xids = (replace(reading, xids=xids.get(reading.uuid, ())) for reading in readings.values())
        gpus = [self._message(self._seen(reading), owners) for reading in with_xids]
        return agent_pb2.Heartbeat(gpus=gpus, leaving=self.leaving, loan=self.end.own)

    async def _look(self) -> tuple[Readings, Owners]:
        held = set(self._held())
        readings = await self._reader.read_all()
        # An attempt that held a GPU before, or holds it now, may have used it during the reading.
        self._idle.learn(readings, held.union(self._held()), asyncio.get_running_loop().time())
        return readings, await self._attribution.owners(listed_pids(readings))

    def _seen(self, reading: GpuReading) -> GpuReading:
        return reading if self._sharing is None else self._sharing.without_server(reading)

    def _message(self, reading: GpuReading, owners: Owners) -> agent_pb2.GpuReading:
        return agent_pb2.GpuReading(
            uuid=reading.uuid,
            mem_used_bytes=reading.mem_used_bytes,
            utilisation=reading.utilisation,
            processes=self._processes(reading, owners),
            healthy=reading.healthy,
            unhealthy_reason=reading.unhealthy_reason,
            gone=reading.gone,
            idle_bytes=self._idle.of(reading.uuid),
            processes_unknown=reading.processes is None,
            mem_reserved_bytes=reading.mem_reserved_bytes,
            temperature_c=reading.temperature_c,
            power_w=reading.power_w,
            xids=reading.xids,
        )

    def _info(self, gpu: Gpu, reading: GpuReading, owners: Owners, links: Iterable[DeviceLink]) -> agent_pb2.GpuInfo:
        return agent_pb2.GpuInfo(
            uuid=gpu.uuid,
            index=gpu.index,
            model=gpu.model,
            mem_bytes=reading.mem_total_bytes or gpu.mem_bytes,
            healthy=reading.healthy,
            unhealthy_reason=reading.unhealthy_reason,
            processes=self._processes(reading, owners),
            mps=self._sharing is not None and self._sharing.has_mps(gpu.uuid),
            pci_bus_id=gpu.pci_bus_id,
            numa_node=gpu.numa_node,
            compute_capability=gpu.compute_capability,
            parent=gpu.parent,
            peers=[_peer(gpu, link) for link in links if gpu.uuid in (link.one, link.other)],
        )

    def _processes(self, reading: GpuReading, owners: Owners) -> list[agent_pb2.GpuProcess]:
        processes: Iterable[GpuProcess] = reading.processes or ()
        return [self._process(process, owners.get(process.pid)) for process in processes]

    def _process(self, process: GpuProcess, owner: AttemptKey | None) -> agent_pb2.GpuProcess:
        message = agent_pb2.GpuProcess(pid=process.pid, mem_bytes=process.mem_bytes, mps=process.mps)
        if owner is not None:
            message.job_id, message.attempt = owner
        elif self._attribution.is_foreign(process.pid):  # otherwise it has ended, or its owner is not known yet
            message.user, message.command = who(process.pid)
        return message


def _peer(gpu: Gpu, link: DeviceLink) -> agent_pb2.GpuPeer:
    other = link.other if gpu.uuid == link.one else link.one
    return agent_pb2.GpuPeer(uuid=other, link=agent_pb2.GpuLink.ValueType(link.kind))


def who(pid: int) -> tuple[str, str]:
    """Return the user and the program of a process; empty if the process is gone.

    Only the program's name is given: a foreign command line may hold what its owner would not show the whole cluster.
    """
    stat = procfs.read_stat(pid)
    return process_owner.owner_name(pid), "" if stat is None else stat.command
