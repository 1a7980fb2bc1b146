"""Puts the serving master together: the loop, and the services for agents and clients on the socket and the ports."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.model import limits
from ebbtide_core.nodes import silence
from ebbtide_core.views.ledger import Ledger
from ebbtide_machine.place import NotTrusted
from ebbtide_protos import home_socket
from ebbtide_protos.flow import FLOW_OPTIONS
from ebbtide_protos.v1 import agent_pb2_grpc, client_pb2_grpc
from ebbtide_protos.version import VERSION

from ebbtide_master.api.cluster import cluster_facts
from ebbtide_master.api.context import Context
from ebbtide_master.api.named_jobs import jobs_named
from ebbtide_master.api.reloading import ReloadService
from ebbtide_master.api.servicer import client_services, servicer
from ebbtide_master.calls.admission import Admission
from ebbtide_master.calls.edge import Edge
from ebbtide_master.calls.gate import Gate
from ebbtide_master.changes import Changes
from ebbtide_master.clock import Clock
from ebbtide_master.config.file import Config
from ebbtide_master.history.recorder import HistoryRecorder
from ebbtide_master.identity.running_as import AGENTS_OWN, Accounts
from ebbtide_master.loop import MasterLoop, StoppedError
from ebbtide_master.nodes.agents import Agents
from ebbtide_master.nodes.fencing import Fencing
from ebbtide_master.nodes.kept_logs import KeptLogs
from ebbtide_master.nodes.sessions import Sessions
from ebbtide_master.nodes.snapshots import SnapshotStore
from ebbtide_master.nodes.supplies import HeardSupplies
from ebbtide_master.notify.notifier import Notifier
from ebbtide_master.store.environments import Environments
from ebbtide_master.store.journal import Store
from ebbtide_master.throttle.throttle import Throttle

if TYPE_CHECKING:  # this import needs the library for certificates, which most masters do without
    from ebbtide_master.tls.listeners import Listeners, PublicEndpoint

STOP_GRACE_S: Final = 1.0
_DEFAULTS: Final = Config()


class PortError(Exception):
    """The socket or a port cannot be listened on."""


@dataclass(frozen=True, slots=True)
class Service:
    """A serving master. ``consumer`` ends only by an error, after which the master must stop.

    ``port`` and ``agent_port`` are 0 without an authority: then the socket in its home is the only way to the master.
    """

    port: int
    agent_port: int
    epoch: int
    context: Context
    consumer: asyncio.Task[None]
    reloading: ReloadService

    @property
    def loop(self) -> MasterLoop:
        """The master's loop, with its queue of work."""
        return self.context.loop


@asynccontextmanager
async def serving(
    cluster: Cluster,
    store: Store,
    home: Path,
    policy: str,
    gate: Gate,
    config: Config = _DEFAULTS,
    notifier: Notifier | None = None,
    ledger: Ledger | None = None,
    reread: Callable[[], Config] | None = None,
    listeners: "Listeners | None" = None,
    accounts: Accounts = lambda user: AGENTS_OWN,
) -> AsyncIterator[Service]:
    """Serve the recovered ``cluster`` for as long as the block lasts, on the socket in ``home``.

    ``notifier`` and ``ledger`` have followed the recovery. ``reread`` reads the configuration again, or raises
    `ConfigError`; without it, a reload gives ``config`` again.
    With ``listeners``, clients and agents each have a port besides the socket, and both ports use TLS.

    Raises `PortError`, or `StoreError` if the journal cannot record that the master started.
    """
    clock, changes, epoch = Clock(store.last_time), Changes(), store.next_epoch()
    bounds = config.bounds
    notifier = notifier or Notifier(cluster, store, config.notify)
    environments = Environments(store.vault)
    await environments.forget_others(lambda id: bool(jobs_named(cluster, id)))
    throttle = Throttle(bounds.rates, bounds.queued, environments.size_of)
    snapshots = SnapshotStore(store.folder / "snapshots", bounds.uploads, bounds.snapshot_bytes)
    kept_logs = KeptLogs(store.folder / "logs")
    await kept_logs.remove_others(lambda id: bool(jobs_named(cluster, id)))
    sessions = Sessions(environments, kept_logs, config.log_rules, bounds.log_bytes, accounts)
    loop = MasterLoop(cluster, store, clock, changes, sessions.perform, environments.keep, notifier.recorded)
    supplies = HeardSupplies()
    fencing = Fencing(config.fencing, loop, clock)
    history = HistoryRecorder(store)
    loop.observe(history)
    server = grpc.aio.server(interceptors=[Edge(Admission(gate, throttle))], options=_SERVER_OPTIONS)
    with _listening(server, home):
        front = None if listeners is None else _listen(server, listeners)
        enrolment = None if listeners is None else listeners.enrolment
        agents = Agents(store.cluster_id, epoch, clock, loop, sessions, snapshots, supplies, fencing.silent, enrolment)
        agent_pb2_grpc.add_AgentServiceServicer_to_server(agents, server)
        context = Context(
            about=cluster_facts(store, epoch, VERSION, policy),
            loop=loop,
            ledger=ledger or Ledger(cluster),
            clock=clock,
            store=store,
            changes=changes,
            history=history,
            sessions=sessions,
            snapshots=snapshots,
            supplies=supplies,
            environments=environments,
            identities=gate.identities,
            wall=gate.now,
            notifier=notifier,
            bounds=bounds,
            throttle=throttle,
            front=front,
        )
        reloading = ReloadService(context, reread or (lambda: config), config)
        clients = servicer(client_services(context, reloading))
        client_pb2_grpc.add_ClientServiceServicer_to_server(clients, server)
        parts = [consumer := asyncio.create_task(loop.run())]
        if listeners is not None:
            parts.append(_upkeep(listeners, cluster, clock))
        try:
            await _announce(loop, consumer, epoch)
            notifier.run()
            history.start()
            agents.await_nodes(silence.to_await(cluster.state), limits.RECOVERY_GRACE_S)
            await server.start()
            bound, agent_bound = (0, 0) if front is None else (front.port, front.agent_port)
            async with gate.identities.uses.kept():
                yield Service(bound, agent_bound, epoch, context, consumer, reloading)
        finally:
            await agents.close()
            await fencing.close()
            await server.stop(STOP_GRACE_S)
            for part in parts:
                part.cancel()
            await asyncio.wait(parts)
            await notifier.close()
            await asyncio.to_thread(history.close)


@contextmanager
def _listening(server: grpc.aio.Server, home: Path) -> Iterator[None]:
    """Listen on the socket in ``home``, which only the account that runs the master can reach."""
    with ExitStack() as stack:
        try:
            target = stack.enter_context(home_socket.made(home))
            server.add_secure_port(target, grpc.local_server_credentials(grpc.LocalConnectionType.UDS))
        except (NotTrusted, OSError, RuntimeError) as error:
            raise PortError(f"cannot listen in {home / home_socket.FOLDER}: {error}") from None
        yield


def _listen(server: grpc.aio.Server, listeners: "Listeners") -> "PublicEndpoint":
    from ebbtide_master.tls.credentials import for_agents, for_clients
    from ebbtide_master.tls.listeners import PublicEndpoint

    bound = _bind(server, listeners.host, listeners.port, for_clients(listeners.folder), "--port")
    agent_bound = _bind(server, listeners.host, listeners.agent_port, for_agents(listeners.folder), "--agent-port")
    return PublicEndpoint(listeners, bound, agent_bound)


def _bind(server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials, option: str) -> int:
    try:
        return server.add_secure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}", credentials)
    except RuntimeError:
        raise PortError(f"{option} {port}: cannot listen there on {host}, is it in use?") from None


def _upkeep(listeners: "Listeners", cluster: Cluster, clock: Clock) -> asyncio.Task[None]:
    from ebbtide_master.tls.upkeep import keep_up

    def nodes() -> set[str]:
        now = clock.now()
        return {node.id for node in cluster.state.nodes.values() if not node.has_ended(now)}

    return asyncio.create_task(keep_up(listeners, time.time, nodes), name="certificates")


async def _announce(loop: MasterLoop, consumer: asyncio.Task[None], epoch: int) -> None:
    """Record that this master started, and that jobs may run again if all of them had been stopped."""

    def facts(cluster: Cluster) -> list[e.Event]:
        started: list[e.Event] = [e.MasterStarted(epoch)]
        return [*started, e.Unquiesced()] if cluster.state.quiesced else started

    try:
        await loop.tell(facts, lambda _: None)
    except StoppedError:
        await consumer  # raises the error that stopped the loop


_SERVER_OPTIONS: Final = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", limits.MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", limits.MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", limits.MAX_METADATA_BYTES),
    ("grpc.max_allowed_incoming_connections", limits.MAX_CONNECTIONS),
    ("grpc.max_connection_idle_ms", int(limits.CONNECTION_IDLE_S * 1000)),
    ("grpc.server_handshake_timeout_ms", int(limits.HANDSHAKE_S * 1000)),
    ("grpc.max_concurrent_streams", limits.MAX_CALLS_PER_USER + limits.MAX_STREAMS_PER_USER),
    *FLOW_OPTIONS,
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # gRPC in fact waits for this long; its default is a minute
    ("grpc.keepalive_permit_without_calls", 1),
]
