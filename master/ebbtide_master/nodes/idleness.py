"""Remembers since when GPUs are unused, from the readings of their nodes; a new master starts with nothing."""

from collections.abc import Iterator, Mapping
from typing import Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.lifecycle import idling
from ebbtide_core.model.types import GpuId
from ebbtide_core.resources.books import Node
from ebbtide_protos.v1 import agent_pb2

from ebbtide_master.clock import Clock

GAP_S: Final = 30.0
"""Seconds: readings that are further apart say nothing about the time between them."""


class Idleness:
    """Remembers when each GPU was last read, and since when it is unused, and finds the idle jobs from that."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quiet_since: dict[GpuId, float] = {}
        self._seen: dict[GpuId, float] = {}

    def facts(self, cluster: Cluster, node: Node, readings: Mapping[GpuId, agent_pb2.GpuReading]) -> Iterator[Event]:
        """Take in ``readings`` of GPUs of ``node``, and yield which jobs there are now idle, or idle no longer."""
        now = self._clock.now()
        for gpu, reading in readings.items():
            if now - self._seen.get(gpu, now) > GAP_S:  # the GPU may have been used in between
                self._quiet_since.pop(gpu, None)
            self._seen[gpu] = now
            if reading.healthy and reading.HasField("utilisation") and reading.utilisation < idling.BUSY:
                self._quiet_since.setdefault(gpu, now)
            else:
                self._quiet_since.pop(gpu, None)
        if not node.attempts:
            return
        here, settings = frozenset(readings), cluster.state.settings.idle
        for job in cluster.state.jobs_on(node):
            yield from idling.facts(job, self._quiet_since, here, settings, now)
