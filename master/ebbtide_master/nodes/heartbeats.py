"""Takes in heartbeats: it keeps their readings, passes on what they change as facts, and acknowledges them.

Most heartbeats change nothing, and thousands may come in a second. So one is taken to the loop only if there is a fact.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.model.types import GpuId, NodeId
from ebbtide_core.resources import foreign_processes
from ebbtide_core.supply.supply import SUPPLY_LABEL
from ebbtide_protos.v1 import agent_pb2

from ebbtide_master.clock import Clock
from ebbtide_master.convert import MAX_NOTE_LENGTH, foreign_from_messages, loan_of
from ebbtide_master.loop import MasterLoop
from ebbtide_master.nodes import machine_shutdown
from ebbtide_master.nodes.idleness import Idleness
from ebbtide_master.nodes.quarantine import is_released
from ebbtide_master.nodes.sessions import AgentSession
from ebbtide_master.nodes.supplies import HeardSupplies

HEARTBEAT_S: Final = 2.0
"""How often an agent sends a heartbeat, in seconds, unless there are very many."""
LONGEST_S: Final = 5.0
"""The longest time between two heartbeats, a quarter of the silence after which a node is lost."""
BEATS_A_SECOND: Final = 400
"""The heartbeats in a second from which on agents send them less often; they take a seventh of a core."""


def interval_s(connected: int) -> float:
    """Return how often an agent is to send a heartbeat where so many are connected, in seconds."""
    return max(HEARTBEAT_S, min(LONGEST_S, connected / BEATS_A_SECOND))


class Heartbeats:
    """Takes in the heartbeats of all agents; ``every_s`` returns how often they are to send them, in seconds."""

    def __init__(self, clock: Clock, loop: MasterLoop, supplies: HeardSupplies, every_s: Callable[[], float]) -> None:
        self._clock = clock
        self._loop = loop
        self._supplies = supplies
        self._every_s = every_s
        self._idleness = Idleness(clock)

    def take_at_once(self, session: AgentSession, heartbeat: agent_pb2.Heartbeat) -> bool:
        """Take in a heartbeat that changes nothing; return False if there is more to do, which `take` does.

        It is acknowledged once what was said before it is on disk. Raises `SpecError`.
        """
        self._note(session, heartbeat)
        is_taken = self._loop.is_no_news(partial(self._facts, session, heartbeat.leaving)) and self._loop.once_durable(
            partial(self._acknowledge, session, heartbeat.beat)
        )
        session.noted = not is_taken
        return is_taken

    async def take(self, session: AgentSession, heartbeat: agent_pb2.Heartbeat) -> None:
        """Take in a heartbeat; it is acknowledged once its facts are on disk. Raises `SpecError`, `StoppedError`."""
        if not session.noted:
            self._note(session, heartbeat)
        session.noted = False
        await self._loop.tell_if_any(partial(self._facts, session, heartbeat.leaving))
        self._acknowledge(session, heartbeat.beat)

    def _note(self, session: AgentSession, heartbeat: agent_pb2.Heartbeat) -> None:
        session.loan = loan_of(heartbeat)
        session.readings.take(heartbeat)
        self._idleness.take(session.node, session.readings)

    def _acknowledge(self, session: AgentSession, beat: int) -> None:
        if beat:
            now = self._clock.now()
            supply = session.hello.labels.get(SUPPLY_LABEL, "")
            wanted = session.lent and self._supplies.needs(session.node, supply, now)
            session.acknowledge(beat, now, wanted, self._every_s())

    def _facts(self, session: AgentSession, leaving: bool, cluster: Cluster) -> Iterator[Event]:
        """Yield what the heartbeat that was noted last changes, such as that a GPU became unusable."""
        id, readings = session.node, session.readings
        node = cluster.state.nodes[id]
        set_aside = set(node.quarantine)
        for gpu in readings.health_changed:
            reading = readings.last[gpu]
            if gpu not in set_aside or not reading.healthy:
                reason = reading.unhealthy_reason[:MAX_NOTE_LENGTH]
                yield e.GpuHealthChanged(id, gpu, reading.healthy, reason, reading.gone)
        for gpu in set_aside & readings.read:
            if is_released(readings.last[gpu], cluster):
                yield e.GpuHealthChanged(id, gpu, True)
        for gpu, processes in readings.processes.items():
            yield from foreign_facts(id, gpu, processes, cluster)
        yield from self._idleness.facts(cluster, node, readings.read)
        yield from machine_shutdown.facts(node, leaving, self._clock.now())
        if node.facts.loan != session.loan:
            yield e.LoanAnnounced(id, session.loan)


def foreign_facts(
    node: NodeId, gpu: GpuId, processes: Iterable[agent_pb2.GpuProcess], cluster: Cluster
) -> Iterator[Event]:
    """Yield that a GPU has other foreign processes, or the same ones other memory; most readings change nothing."""
    known, found = foreign_processes.on_gpu(cluster.state.nodes[node], gpu), foreign_from_messages(processes)
    if foreign_processes.is_change(known, found):
        yield e.ForeignUseChanged(node, gpu, found)
