"""Keeps one stream from the agent to its master open, and opens it again whenever it ends.

Nothing here ends an attempt: if the master is away, wrong or knows nothing, the agent waits.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import NoReturn

import grpc
import grpc.aio
from ebbtide_protos import protocol
from ebbtide_protos.flow import FLOW_OPTIONS
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc
from ebbtide_protos.version import VERSION

from ebbtide_agent.channels.table import ChannelTable
from ebbtide_agent.files.exchange import Exchange
from ebbtide_agent.gpu_use.telemetry import GpusChanged, Telemetry
from ebbtide_agent.jsonfile import DISK_FULL
from ebbtide_agent.link import membership
from ebbtide_agent.link.credentials import NoProof, Proof
from ebbtide_agent.link.deltas import Deltas
from ebbtide_agent.link.endpoint import Endpoint, NoMaster
from ebbtide_agent.link.membership import Membership, WelcomeRefused
from ebbtide_agent.link.orders import Orders
from ebbtide_agent.link.outbox import Outbox
from ebbtide_agent.link.stream import AttachCall, AttemptControl, AttemptFiles, MasterStream
from ebbtide_agent.node import NodeDescription, address_towards
from ebbtide_agent.supervisor import limits
from ebbtide_agent.supervisor.lease import boottime

log = logging.getLogger(__name__)

WELCOME_TIMEOUT_S = 10.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
# On the same machine a refused connection costs nothing, and a user waits for a restarted master.
_LONGEST_LOCAL_PAUSE_S = 0.5
_FIRST_REFUSED_PAUSE_S = 1.0
_LONGEST_REFUSED_PAUSE_S = 10.0

# A stream that lived this long resets the pauses.
_STEADY_S = 1.0
# Pause between tries to store the membership on a full disk.
_STORE_AGAIN_S = 10.0

_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # the timeout that gRPC in fact applies; its default is a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    *FLOW_OPTIONS,
    # Each try has a channel and connection of its own, because a shared one would add gRPC's own back-off.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class Rejected(Exception):
    """The master rejected this node; the message is its reason."""


class Backoff:
    """Doubles the pause at each try, and shortens it at random so that nodes do not reconnect all at once."""

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._next_s = first_s

    def reset(self) -> None:
        """Start again from the first pause."""
        self._next_s = self._first_s

    def pause_s(self, longest_s: float) -> float:
        """Return the next pause, in seconds."""
        pause_s = min(self._next_s, longest_s)
        self._next_s = 2 * pause_s
        return pause_s * random.uniform(0.5, 1.0)


class MasterLink:
    """Keeps the node attached to its master."""

    def __init__(
        self,
        find_master: Callable[[], Endpoint],
        node: NodeDescription,
        attempts: AttemptControl,
        shown: AttemptFiles,
        telemetry: Telemetry,
        cluster_file: Path,
        exchange: Exchange | None = None,
        channels: ChannelTable | None = None,
        proof: Proof | None = None,
    ) -> None:
        """`find_master` and `proof` are called at every try, and may raise NoMaster.

        Raises ValueError if `cluster_file` is broken.
        """
        self._find_master = find_master
        self._node = node
        self._attempts = attempts
        self._shown = shown
        self._telemetry = telemetry
        self._cluster_file = cluster_file
        self._membership = self._stored = membership.load(cluster_file)
        self._orders = Orders()
        self._exchange = exchange or Exchange()
        self._proof = proof or NoProof()
        self._channels = channels
        self._outbox = Outbox()
        self._away = Backoff(_FIRST_PAUSE_S)
        self._refused = Backoff(_FIRST_REFUSED_PAUSE_S)
        self._trouble = ""

    def report(self, status: agent_pb2.AttemptStatus) -> None:
        """Send the master the status of a changed attempt, now or with the next Hello."""
        self._outbox.put_status(status)

    async def run(self) -> NoReturn:
        """Attach to the master again and again until cancelled."""
        try:
            while True:
                await asyncio.sleep(await self._attach())
        finally:
            await self._orders.close()

    async def _attach(self) -> float:
        """Run one stream from its first message to its end. Return the pause before the next, in seconds."""
        longest_pause_s, endpoint = _LONGEST_LOCAL_PAUSE_S, None
        try:
            endpoint = self._find_master()
            longest_pause_s = _LONGEST_LOCAL_PAUSE_S if endpoint.is_loopback else _LONGEST_PAUSE_S
            credentials = await self._proof.credentials(endpoint)
            async with AsyncExitStack() as stack:
                target = stack.enter_context(endpoint.reached())
                opened = grpc.aio.secure_channel(target, credentials, options=_CHANNEL_OPTIONS)
                channel = await stack.enter_async_context(opened)
                call = agent_pb2_grpc.AgentServiceStub(channel).Attach(metadata=self._proof.metadata(endpoint))
                await self._converse(call, endpoint, channel)
            self._note("master-away", "the master ended the stream")
        except GpusChanged as change:
            self._note("gpus-changed", str(change))
            return 0.0
        except (WelcomeRefused, Rejected) as refusal:
            self._note("refused", str(refusal))
            return self._refused.pause_s(_LONGEST_REFUSED_PAUSE_S)
        except grpc.aio.AioRpcError as error:
            if error.code() in _REFUSALS:
                self._note("refused", error.details() or error.code().name)
                return self._refused.pause_s(_LONGEST_REFUSED_PAUSE_S)
            away = endpoint if error.code() is grpc.StatusCode.UNAVAILABLE else None
            why = await self._proof.trouble(away) if away is not None else ""
            self._note("master-away", why or error.details() or error.code().name)
        except (NoMaster, OSError, asyncio.InvalidStateError) as error:
            self._note("master-away", str(error) or type(error).__name__)
        except Exception:  # the node must try again after anything that a wrong master or gRPC does
            log.exception("event=link-failed")
        return self._away.pause_s(longest_pause_s)

    async def _converse(self, call: AttachCall, endpoint: Endpoint, channel: grpc.aio.Channel) -> None:
        gpus = await self._telemetry.inventory()
        address = self._node.address or await address_towards(endpoint.host)
        # No await between the Hello and the new outbox, so that each change is in one of them.
        hello = self._hello(gpus, address)
        outbox = self._outbox = Outbox()
        sent_at = boottime()
        welcome = await _introduce(call, hello)
        self._admit(welcome)
        self._attempts.renew(sent_at)
        log.info("event=attached master=%s cluster=%s epoch=%d", endpoint, welcome.cluster_id, welcome.epoch)
        self._trouble = ""
        began = time.monotonic()
        keeping = asyncio.create_task(self._proof.keep(channel, endpoint), name="certificate")
        storing = asyncio.create_task(self._store_later(), name="newest epoch")
        try:
            parts = (self._attempts, self._shown, self._telemetry, self._orders, self._exchange, self._channels)
            stream = MasterStream(call, self._membership, outbox, *parts)
            await stream.run(welcome.heartbeat_s, Deltas() if welcome.deltas else None)
        finally:
            keeping.cancel()
            storing.cancel()
            # A master that ends each stream at once must not be tried ten times a second.
            if time.monotonic() - began > _STEADY_S:
                self._away.reset()
                self._refused.reset()

    def _admit(self, welcome: agent_pb2.Welcome) -> None:
        """Obey this master from now on, and no older one. Raises WelcomeRefused, OSError.

        A newer epoch is obeyed also while the disk is too full to store it, because the job that fills the disk could
        not be stopped otherwise. Only this process refuses the older master then: an agent that starts before there is
        room would obey it again, as one would that had not been here for the newer one. Another cluster is not joined
        before that is stored: no attempt of it may be here while the disk says that the node is of the old one.
        """
        if refusal := protocol.refuse(welcome.protocol, "master"):
            raise WelcomeRefused(refusal)
        before = self._membership
        admitted = before.admit(welcome, has_attempts=bool(self._attempts.statuses()))
        if before.cluster_id and admitted.cluster_id != before.cluster_id:
            # Before the new cluster is stored, so that an agent that is killed in between does it again.
            self._attempts.leave_cluster()
        try:
            self._store(admitted)
        except OSError as error:
            if error.errno not in DISK_FULL or admitted.cluster_id != before.cluster_id:
                raise
        if admitted.cluster_id != before.cluster_id:
            log.warning("event=cluster-joined cluster=%s before=%s", admitted.cluster_id, before.cluster_id or "none")
        self._membership = self._orders.master = admitted
        self._attempts.join(admitted.cluster_id)

    def _store(self, admitted: Membership) -> None:
        """Store the membership, unless it is stored already; log what goes wrong. Raises OSError."""
        if admitted == self._stored:
            return
        try:
            membership.store(self._cluster_file, admitted)
        except OSError as error:
            what = admitted.cluster_id, admitted.epoch
            log.error("event=membership-not-stored cluster=%s epoch=%d reason=%r", *what, str(error))
            raise
        self._stored = admitted

    async def _store_later(self) -> None:
        """Store the newest epoch once there is room for it."""
        while self._stored != self._membership:
            await asyncio.sleep(_STORE_AGAIN_S)
            with suppress(OSError):
                self._store(self._membership)

    def _hello(self, gpus: list[agent_pb2.GpuInfo], address: str) -> agent_pb2.Hello:
        return agent_pb2.Hello(
            node=self._node.name,
            hostname=self._node.hostname,
            boot_id=self._node.boot_id,
            incarnation=self._node.incarnation,
            cluster_id=self._membership.cluster_id,
            gpus=gpus,
            cpus=self._node.cpus,
            mem_bytes=self._node.mem_bytes,
            checkpoint_root_id=self._node.checkpoint_root_id,
            gpu_backend=self._telemetry.kind,
            version=VERSION,
            address=address,
            attempts=self._attempts.statuses(),
            share_with_foreign=self._node.share_with_foreign,
            cgroup=self._node.cgroup,
            cpu_limits=limits.cpus_are(),
            mem_limits=limits.memory_is(),
            pool=self._node.pool,
            labels=self._node.labels,
            taints=self._node.taints,
            protocol=protocol.PROTOCOL,
            stdin=True,
            loan=self._telemetry.end.own,
        )

    def _note(self, event: str, reason: str) -> None:
        """Log a failure when it begins or changes, not at every try."""
        if reason != self._trouble:
            log.warning("event=%s reason=%r", event, reason)
        self._trouble = reason


async def _introduce(call: AttachCall, hello: agent_pb2.Hello) -> agent_pb2.Welcome:
    """Send Hello and return the master's Welcome. Raises Rejected, AioRpcError, NoMaster."""
    try:
        async with asyncio.timeout(WELCOME_TIMEOUT_S):
            # If the master refused the call before Hello, the write fails, and the read gives the reason.
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(agent_pb2.AgentMessage(hello=hello))
            return _welcome(await call.read())
    except TimeoutError:
        raise NoMaster(f"no answer to Hello in {WELCOME_TIMEOUT_S:g} s") from None


def _welcome(answer: object) -> agent_pb2.Welcome:
    """Return the Welcome in the master's first message. Raises Rejected, NoMaster."""
    if not isinstance(answer, agent_pb2.MasterMessage):
        raise NoMaster("the master ended the stream without a word")
    match answer.WhichOneof("body"):
        case "welcome":
            return answer.welcome
        case "rejected":
            raise Rejected(answer.rejected.reason)
        case other:
            raise Rejected(f"the master answered Hello with {other}")
