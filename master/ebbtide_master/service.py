"""The master as it serves: loop, agents' and clients' side put together behind one port."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

import grpc
from ebbtide_core import events as e
from ebbtide_core import limits
from ebbtide_core.cluster import Cluster
from ebbtide_protos.v1 import agent_pb2_grpc, client_pb2_grpc

from ebbtide_master.agents import Agents
from ebbtide_master.changes import Changes
from ebbtide_master.clients import Clients, about
from ebbtide_master.clock import Clock
from ebbtide_master.config.file import Config
from ebbtide_master.edge import Edge
from ebbtide_master.loop import MasterLoop, StoppedError
from ebbtide_master.notify.notifier import Notifier
from ebbtide_master.snapshots import Snapshots
from ebbtide_master.store import Store

STOP_GRACE_S: Final = 1.0
_DEFAULTS: Final = Config()


class PortError(Exception):
    """The port cannot be listened on."""


@dataclass(frozen=True, slots=True)
class Service:
    """A serving master. ``consumer`` ends only by an error, after which the master must stop."""

    port: int
    epoch: int
    loop: MasterLoop
    consumer: asyncio.Task[None]


@asynccontextmanager
async def serving(
    cluster: Cluster,
    store: Store,
    host: str,
    port: int,
    policy: str,
    config: Config = _DEFAULTS,
    notifier: Notifier | None = None,
) -> AsyncIterator[Service]:
    """Serve the recovered ``cluster`` for as long as the block lasts. Port 0 is any free one.

    Raises `PortError`, or `StoreError` if the journal does not even take that the master started.
    """
    clock, changes, epoch = Clock(store.last_time), Changes(), store.next_epoch()
    snapshots = Snapshots(store.folder / "snapshots")
    agents = Agents(store.cluster_id, epoch, clock, snapshots, config.log_rules)
    loop = MasterLoop(cluster, store, clock, changes, agents.perform)
    agents.loop = loop
    notifier = notifier or Notifier(cluster, store, config.notify)
    loop.recorded = notifier.recorded
    info = about(store, epoch, version("ebbtide"), policy)
    server = grpc.aio.server(interceptors=[Edge()], options=_SERVER_OPTIONS)
    agent_pb2_grpc.add_AgentServiceServicer_to_server(agents, server)
    clients = Clients(loop, agents, store, clock, changes, info, snapshots, notifier)
    client_pb2_grpc.add_ClientServiceServicer_to_server(clients, server)
    bound = _listen(server, host, port)
    consumer = asyncio.create_task(loop.run())
    try:
        await _announce(loop, consumer, epoch)
        notifier.run()
        agents.await_nodes(sorted(cluster.state.awaited), limits.RECOVERY_GRACE_S)
        await server.start()
        yield Service(bound, epoch, loop, consumer)
    finally:
        await agents.close()
        await server.stop(STOP_GRACE_S)
        consumer.cancel()
        await asyncio.wait([consumer])
        await notifier.close()


def _listen(server: grpc.aio.Server, host: str, port: int) -> int:
    try:
        return server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError:
        raise PortError(f"--port {port}: cannot listen there, is it in use?") from None


async def _announce(loop: MasterLoop, consumer: asyncio.Task[None], epoch: int) -> None:
    """Record that this master started, and that jobs may run again if they were all stopped before."""

    def facts(cluster: Cluster) -> list[e.Event]:
        started: list[e.Event] = [e.MasterStarted(epoch)]
        return [*started, e.Unquiesced()] if cluster.state.quiesced else started

    try:
        await loop.tell(facts, lambda _: None)
    except StoppedError:
        await consumer  # raises why


_SERVER_OPTIONS: Final = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 4 * limits.MIB),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
