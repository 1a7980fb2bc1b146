"""Remembers since when GPUs are unused, from the readings of their nodes; a new master starts with nothing."""

from collections.abc import Iterator
from typing import Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.lifecycle import idling
from ebbtide_core.model.types import GpuId, NodeId
from ebbtide_core.resources.books import Node

from ebbtide_master.clock import Clock
from ebbtide_master.nodes.readings import NodeReadings

GAP_S: Final = 30.0
"""Seconds: readings that are further apart say nothing about the time between them."""


class Idleness:
    """Remembers when each node's GPUs were last read, and since when each is unused, and finds the idle jobs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quiet_since: dict[GpuId, float] = {}
        self._read: dict[NodeId, tuple[frozenset[GpuId], float]] = {}  # the GPUs that were read last, and when

    def take(self, node: NodeId, readings: NodeReadings) -> None:
        """Take in the readings that a heartbeat of ``node`` brought."""
        now = self._clock.now()
        before, read_at = self._read.get(node, (frozenset[GpuId](), now))
        # After a gap, others may have been used in between; after a clock that was set back, all begin anew.
        again = before if 0.0 <= now - read_at <= GAP_S else frozenset[GpuId]()
        for gpu in readings.read - again:
            self._quiet_since.pop(gpu, None)
        for gpu in readings.changed if again == readings.read else readings.read:
            reading = readings.last[gpu]
            if reading.healthy and reading.HasField("utilisation") and reading.utilisation < idling.BUSY:
                self._quiet_since.setdefault(gpu, now)
            else:
                self._quiet_since.pop(gpu, None)
        self._read[node] = readings.read, now

    def facts(self, cluster: Cluster, node: Node, read: frozenset[GpuId]) -> Iterator[Event]:
        """Yield which jobs on ``node`` are now idle, or idle no longer; ``read`` are the GPUs that were just read."""
        if not node.attempts:
            return
        settings, now = cluster.state.settings.idle, self._clock.now()
        for job in cluster.state.jobs_on(node):
            yield from idling.facts(job, self._quiet_since, read, settings, now)
