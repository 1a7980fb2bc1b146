"""The master process: put together, started, stopped."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from ebbtide_core import events as e
from ebbtide_core import limits
from ebbtide_core.cluster import Cluster
from ebbtide_core.policies.registry import DEFAULT_POLICY, PolicyError, create_policy
from ebbtide_protos.v1 import agent_pb2_grpc, client_pb2_grpc

from ebbtide_master.agents import Agents
from ebbtide_master.changes import Changes
from ebbtide_master.clients import Clients, about
from ebbtide_master.clock import Clock
from ebbtide_master.endpoint import Endpoint
from ebbtide_master.loop import MasterLoop
from ebbtide_master.store import Store, StoreError, StoreInUseError

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_BROKEN: Final = 70
STOP_GRACE_S: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MasterOptions:
    """How a master is started. ``port`` 0 is any free one; it is recorded in ``home``."""

    home: Path
    host: str = "127.0.0.1"
    port: int = 0
    policy: str = DEFAULT_POLICY
    policy_options: Mapping[str, str] = field(default_factory=dict)


class StartError(Exception):
    """The master cannot start; ``exit_code`` says what kind of reason the message gives."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run(options: MasterOptions) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        cluster, store = _open(options)
        return asyncio.run(_serve(options, cluster, store))
    except StartError as error:
        sys.stderr.write(f"ebb: {error}\n")
        return error.exit_code


def _open(options: MasterOptions) -> tuple[Cluster, Store]:
    """Everything that can be wrong before anything runs."""
    if options.host not in LOOPBACK_HOSTS:
        message = f"--host {options.host}: only loopback is served without TLS and identities"
        raise StartError(message, EXIT_USAGE)
    try:
        return Cluster(create_policy(options.policy, options.policy_options)), Store(options.home / "journal.db")
    except PolicyError as error:
        raise StartError(str(error), EXIT_USAGE) from None
    except (StoreInUseError, StoreError) as error:
        raise StartError(str(error), EXIT_FAILED) from None


async def _serve(options: MasterOptions, cluster: Cluster, store: Store) -> int:
    """Recover, serve until told to stop, and leave the journal closed."""
    try:
        _recover(cluster, store)
        return await _run_server(options, cluster, store)
    except StoreError as error:
        log.critical("journal=failed %s", error)
        return EXIT_BROKEN
    finally:
        store.close()


def _recover(cluster: Cluster, store: Store) -> None:
    """Fold the journal into the cluster. No policy runs, and nothing is asked of the world."""
    count = 0
    for line in store.events():
        cluster.replay(line.event, line.time)
        count += 1
    log.info("journal=%s events=%d jobs=%d", store.cluster_id, count, len(cluster.state.jobs))


async def _run_server(options: MasterOptions, cluster: Cluster, store: Store) -> int:
    clock, changes, epoch = Clock(store.last_time), Changes(), store.next_epoch()
    agents = Agents(store.cluster_id, epoch)
    loop = MasterLoop(cluster, store, clock, changes, agents.perform)
    agents.loop = loop
    info = about(store, epoch, version("ebbtide"), options.policy)
    clients = Clients(loop, agents, store, clock, changes, info)
    consumer = asyncio.create_task(loop.run())
    await loop.tell(lambda c: _start_facts(c, epoch), lambda _: None)
    agents.await_nodes(sorted(cluster.state.awaited), limits.RECOVERY_GRACE_S)

    server = grpc.aio.server(options=_SERVER_OPTIONS)
    agent_pb2_grpc.add_AgentServiceServicer_to_server(agents, server)
    client_pb2_grpc.add_ClientServiceServicer_to_server(clients, server)
    try:
        port = server.add_insecure_port(f"{options.host}:{options.port}")
    except RuntimeError:
        consumer.cancel()
        raise StartError(f"--port {options.port}: cannot listen there, is it in use?", EXIT_FAILED) from None
    await server.start()
    endpoint = Endpoint(options.home)
    endpoint.publish(options.host, port, store.cluster_id)
    log.info("serving=%s:%d policy=%s epoch=%d", options.host, port, options.policy, epoch)
    try:
        return await _until_stopped(consumer)
    finally:
        endpoint.withdraw()
        await agents.close()
        await server.stop(STOP_GRACE_S)
        consumer.cancel()


def _start_facts(cluster: Cluster, epoch: int) -> list[e.Event]:
    """That this master started, and that jobs may run again if they were all stopped before."""
    started: list[e.Event] = [e.MasterStarted(epoch)]
    return [*started, e.Unquiesced()] if cluster.state.quiesced else started


async def _until_stopped(consumer: asyncio.Task[None]) -> int:
    """Wait for a signal (exit 0) or for the consumer to fail (its error is raised)."""
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    waiter = asyncio.create_task(stopped.wait())
    await asyncio.wait([waiter, consumer], return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if consumer.done():
        consumer.result()
    log.info("stopping")
    return 0


_SERVER_OPTIONS: Final = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 4 * limits.MIB),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
