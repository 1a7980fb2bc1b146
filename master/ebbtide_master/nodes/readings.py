"""Keeps what a node's heartbeats say of its GPUs; a delta leaves out the GPUs that read as they did before."""

from collections.abc import Iterator, Mapping

from ebbtide_core.model.types import GpuId
from ebbtide_protos.v1 import agent_pb2

Processes = list[agent_pb2.GpuProcess]


class NodeReadings:
    """The readings of the GPUs that a node introduced itself with, from the heartbeats of one stream.

    ``last`` has the last reading of each GPU that was ever read, and ``read`` are the GPUs that the last heartbeat is
    about. It brought readings of those in ``changed``; of ``health_changed``, it says that they became healthy, or
    unhealthy, or were lost. ``processes`` are those on each GPU of which it may say something new.
    """

    def __init__(self, hello: agent_pb2.Hello) -> None:
        self.last: dict[GpuId, agent_pb2.GpuReading] = {}
        self.read = frozenset[GpuId]()
        self.changed: Mapping[GpuId, agent_pb2.GpuReading] = {}
        self.health_changed: list[GpuId] = []
        self.processes: Mapping[GpuId, Processes] = {}
        self._health = {GpuId(gpu.uuid): (gpu.healthy, False) for gpu in hello.gpus}  # whether healthy, whether gone
        self._unsettled: dict[GpuId, agent_pb2.GpuReading] = {}
        self._withheld = set[GpuId]()  # those of which not all processes were yielded

    def take(self, heartbeat: agent_pb2.Heartbeat) -> None:
        """Take in the readings of a heartbeat."""
        changed = {gpu: reading for reading in heartbeat.gpus if (gpu := GpuId(reading.uuid)) in self._health}
        # What a delta leaves out was read again, so its processes have been seen twice.
        seen_again = self._unsettled if heartbeat.delta else {}
        self._unsettled = {}
        news = {gpu: reading for gpu, reading in changed.items() if self._is_news(gpu, reading)}
        self.processes = dict(self._settled(seen_again | news))
        health = {gpu: (reading.healthy, reading.gone) for gpu, reading in changed.items()}
        self.health_changed = [gpu for gpu in health if health[gpu] != self._health[gpu]]
        self._health |= health
        if not heartbeat.delta:
            self.read = frozenset(changed)
        elif not changed.keys() <= self.read:
            self.read |= changed.keys()
        self.last |= changed
        self.changed = changed

    def _is_news(self, gpu: GpuId, reading: agent_pb2.GpuReading) -> bool:
        """Return whether the processes on a GPU, or their memory, may differ from those that were yielded last."""
        before = self.last.get(gpu)
        return (
            before is None
            or gpu in self._withheld
            or not before.healthy
            or before.processes_unknown
            or list(before.processes) != list(reading.processes)
        )

    def _settled(self, readings: Mapping[GpuId, agent_pb2.GpuReading]) -> Iterator[tuple[GpuId, Processes]]:
        """Yield the processes of each GPU whose owner is known, or that its reading before had, too.

        A new process without user and command ended before the agent could look at it, and may have been a job's.
        """
        for gpu, reading in readings.items():
            if not reading.healthy or reading.processes_unknown:
                continue
            before = self.last.get(gpu)
            known = {process.pid for process in before.processes} if before is not None else set()
            found = [each for each in reading.processes if each.user or each.command or each.pid in known]
            self._withheld.discard(gpu)
            if len(found) < len(reading.processes):
                self._unsettled[gpu] = reading
                self._withheld.add(gpu)
            yield gpu, found
