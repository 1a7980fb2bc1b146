"""Serves the agents' streams, and turns the messages that come over them into facts."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing, suppress
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import grpc
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.lifecycle import pool_membership
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import GpuId, JobId, NodeId
from ebbtide_core.nodes import strays
from ebbtide_protos import protocol
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc

from ebbtide_master.clock import Clock
from ebbtide_master.convert import (
    facts_of_status,
    registration_from_hello,
    report_of,
)
from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import PAUSE, MasterLoop, RefusedError, StoppedError
from ebbtide_master.nodes.arrived import arrived
from ebbtide_master.nodes.finished_jobs import ended_jobs
from ebbtide_master.nodes.heartbeats import Heartbeats, foreign_facts, interval_s
from ebbtide_master.nodes.relay import Relay, source_of_launch
from ebbtide_master.nodes.sessions import AgentSession, Sessions
from ebbtide_master.nodes.snapshot_windows import read_snapshot
from ebbtide_master.nodes.snapshots import SnapshotStore
from ebbtide_master.nodes.supplies import HeardSupplies
from ebbtide_master.nodes.truncating import bounded

if TYPE_CHECKING:  # this import needs the library for certificates, which most masters do without
    from ebbtide_master.tls.enrolment import Enrolment

HELLO_TIMEOUT_S: Final = 10.0
TOGETHER: Final = 16
"""The most messages of one agent that the master reads ahead while it takes in those before."""
NODE_SILENCE_S: Final = 20.0
"""Seconds after which a disconnected node counts as lost."""

log = logging.getLogger(__name__)


class Agents(agent_pb2_grpc.AgentServiceServicer):
    """Turns the agents' messages into facts. The core's orders go to the agents over their `Sessions`.

    ``silent`` is called with a node that counts as lost, once the loss is on disk. ``enrolment`` is None for a master
    without an authority.
    """

    def __init__(
        self,
        cluster_id: str,
        epoch: int,
        clock: Clock,
        loop: MasterLoop,
        sessions: Sessions,
        snapshots: SnapshotStore,
        supplies: HeardSupplies,
        silent: Callable[[NodeId], None],
        enrolment: "Enrolment | None" = None,
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._sessions = sessions
        self._snapshots = snapshots
        self._silent = silent
        self._enrolment = enrolment
        self._heartbeats = Heartbeats(clock, loop, supplies, self._interval_s)
        self._cluster_id = cluster_id
        self._epoch = epoch
        self._silences: dict[NodeId, asyncio.Task[None]] = {}
        self._relay = Relay()

    def await_nodes(self, nodes: list[NodeId], seconds: float) -> None:
        """Count each node as lost unless it registers within ``seconds``."""
        for node in nodes:
            self._count_silence(node, self._declare_lost(node, seconds))

    async def close(self) -> None:
        """End all streams."""
        self._sessions.close()
        await self._sessions.kept_logs.close()
        for task in self._silences.values():
            task.cancel()

    # --- certificates ---

    async def Renew(self, request: agent_pb2.CertificateRequest, context: Any) -> agent_pb2.CertificateReply:
        """Sign a new key of the node that asks, which must have a certificate."""
        node, serial = caller().node, caller().token
        if self._enrolment is None or not node:
            raise RefusedError(Refusal(RefusalKind.CONFLICT, "there is no certificate to renew here"))
        try:
            certificate = await self._enrolment.renew(node, serial, request.csr)
        except ValueError as error:
            raise SpecError("csr", str(error)) from None
        log.info("node=%s renewed its certificate", node)
        return agent_pb2.CertificateReply(certificate=certificate)

    # --- the stream ---

    async def Attach(
        self, request_iterator: AsyncIterator[agent_pb2.AgentMessage], context: Any
    ) -> AsyncIterator[agent_pb2.MasterMessage]:
        """Serve one agent until its stream breaks."""
        hello = await self._hello(request_iterator, context)
        try:
            registration = registration_from_hello(hello)
        except SpecError as error:
            yield _rejection(str(error))
            return
        if refusal := self._refuse(hello):
            log.warning("node=%s rejected: %s", hello.node, refusal)
            yield _rejection(refusal)
            return
        if refusal := await self._not_of_a_pool(registration):
            log.warning("node=%s rejected: %s", hello.node, refusal)
            yield _rejection(refusal)
            return
        session = self._open(registration.node, hello)
        reader = asyncio.create_task(self._read(session, registration, request_iterator))
        # If the stream breaks while a message is being written, the lines below do not run in good time.
        reader.add_done_callback(lambda _: self._closed(registration.node, session))
        try:
            while (message := await session.outbox.get()) is not None:
                yield message
            if reader.done():
                reader.result()  # raises the error that ended the stream, unless the agent hung up
        finally:
            reader.cancel()

    async def _hello(self, stream: AsyncIterator[agent_pb2.AgentMessage], context: Any) -> agent_pb2.Hello:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                first = await anext(stream)
        except (TimeoutError, StopAsyncIteration):
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello came")
        if first.WhichOneof("body") != "hello":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the first message must be Hello")
        bounded(first)
        return first.hello

    def _refuse(self, hello: agent_pb2.Hello) -> str | None:
        """Return why the node is refused, or None.

        A second node of the same name is refused. The same agent, or its machine after a reboot, may connect again.
        """
        if refusal := protocol.refuse(hello.protocol, "agent"):
            return refusal
        if hello.cluster_id and hello.cluster_id != self._cluster_id and hello.attempts:
            return f"the node has attempts of another cluster ({hello.cluster_id})"
        old = self._sessions.attached(NodeId(hello.node))
        if old is None or old.hello.incarnation == hello.incarnation:
            return None
        if old.hello.hostname == hello.hostname and old.hello.boot_id != hello.boot_id:
            return None
        return f"a node named {hello.node} is connected already, from {old.hello.hostname}"

    async def _not_of_a_pool(self, registration: e.NodeRegistered) -> str | None:
        """Return why the node may not be in its pool, or None."""

        def refusal(cluster: Cluster) -> str | None:
            return pool_membership.refuse_node(cluster.state, registration)

        # Thousands of nodes may come at once, and hardly any is refused: only that one waits for a turn.
        return await self._loop.ask(refusal) if self._loop.read(refusal) else None

    def _open(self, node: NodeId, hello: agent_pb2.Hello) -> AgentSession:
        session = AgentSession(hello, self._clock.now())
        if old := self._sessions.put(node, session):
            self._end(old)
        if silence := self._silences.pop(node, None):
            silence.cancel()
        session.heartbeat_s = self._interval_s()
        welcome = agent_pb2.Welcome(
            cluster_id=self._cluster_id,
            epoch=self._epoch,
            heartbeat_s=session.heartbeat_s,
            protocol=protocol.PROTOCOL,
            deltas=True,
        )
        session.send(agent_pb2.MasterMessage(welcome=welcome))
        return session

    def _interval_s(self) -> float:
        """Return how often agents are to send heartbeats, in seconds.

        After a restart of the master, all nodes come back at once, so those that are awaited count, too.
        """
        return interval_s(self._sessions.count + len(self._silences))

    def _closed(self, node: NodeId, session: AgentSession) -> None:
        self._end(session)
        if self._sessions.remove(node, session):
            log.info("node=%s disconnected", node)
            self._count_silence(node, self._fall_silent(node, session.acknowledged))

    def _end(self, session: AgentSession) -> None:
        session.close()
        self._relay.closed(session)
        self._sessions.channels.closed(session)

    def _count_silence(self, node: NodeId, silence: Coroutine[Any, Any, None]) -> None:
        """Let the silence of ``node`` run to its end, unless the node registers before."""

        def ended(task: asyncio.Task[None]) -> None:
            if self._silences.get(node) is task:
                del self._silences[node]

        task = self._silences[node] = asyncio.create_task(silence)
        task.add_done_callback(ended)

    async def _fall_silent(self, node: NodeId, acknowledged: float) -> None:
        with suppress(StoppedError):  # the next master starts with no node connected
            await self._tell_unless_back(e.NodeDisconnected(node))
            await self._declare_lost(node, NODE_SILENCE_S, acknowledged)

    async def _declare_lost(self, node: NodeId, seconds: float, acknowledged: float = 0.0) -> None:
        """Record that ``node`` is lost after so many seconds; a registration cancels this task."""
        await asyncio.sleep(seconds)
        log.warning("node=%s lost: silent for %.0f s", node, seconds)
        await self._tell_unless_back(e.NodeLost(node, seconds, acknowledged))
        self._silent(node)

    async def _tell_unless_back(self, silence: e.NodeDisconnected | e.NodeLost) -> None:
        """Record that a node is silent, unless it is connected again by the time that its turn has come."""
        await self._loop.tell(lambda _: [] if self._sessions.attached(silence.node) else [silence], lambda _: None)

    async def _read(
        self, session: AgentSession, registration: e.NodeRegistered, stream: AsyncIterator[agent_pb2.AgentMessage]
    ) -> None:
        """Take in the registration and then every message, until the agent hangs up."""
        try:
            await self._loop.tell(lambda cluster: _registered(registration, session, cluster), lambda _: None)
            log.info("node=%s registered gpus=%d", registration.node, len(registration.gpus))
            for status in session.hello.attempts:
                ran = await self._loop.ask(partial(_ran_on, status=status, node=registration.node))
                self._keep_log(session, status, ran)
            async with aclosing(arrived(stream, TOGETHER, partial(self._take_at_once, session))) as batches:
                async for messages in batches:
                    for message in messages:
                        bounded(message)
                    for is_status, run in groupby(messages, _is_status):
                        if is_status:
                            await self._take_statuses(session, [message.status for message in run])
                        else:
                            for message in run:
                                await self._take(session, message)
        finally:
            session.outbox.put_nowait(None)

    def _take_at_once(self, session: AgentSession, message: agent_pb2.AgentMessage) -> bool:
        """Take in a message that waits for nothing, as most heartbeats do, and return True; else return False."""
        if not message.HasField("heartbeat"):
            return False
        bounded(message)
        return self._heartbeats.take_at_once(session, message.heartbeat)

    async def _take_statuses(self, session: AgentSession, statuses: list[agent_pb2.AttemptStatus]) -> None:
        """Take in statuses with one commit, because on a node with many short jobs they come faster than commits."""
        node = NodeId(session.hello.node)
        ran = await self._loop.tell(
            lambda cluster: _status_events(statuses, node, session, cluster),
            lambda cluster: [_ran_on(cluster, status, node) for status in statuses],
        )
        for status, ran_here in zip(statuses, ran, strict=True):
            self._keep_log(session, status, ran_here)

    async def _take(self, session: AgentSession, message: agent_pb2.AgentMessage) -> None:
        match message.WhichOneof("body"):
            case "heartbeat":
                await self._heartbeats.take(session, message.heartbeat)
            case "log":
                future = session.reads.get(message.log.request_id)
                if future is not None and not future.done():
                    future.set_result(message.log)
            case "read_checkpoint":
                await self._pass_on(session, message.read_checkpoint)
            case "checkpoint_data":
                self._relay.answer(session, message.checkpoint_data)
            case "channel":
                self._sessions.channels.take(session, message.channel)
            case other if not session.surprised:  # logged once, however many the agent sends
                session.surprised = True
                log.warning("node=%s unexpected message %s", session.hello.node, other)

    def _keep_log(self, session: AgentSession, status: agent_pb2.AttemptStatus, ran: bool) -> None:
        """Keep the log of an attempt that ``ran`` on the node and has ended, if the node will be gone."""
        if ran and session.lent and status.phase == agent_pb2.ATTEMPT_PHASE_FREED:
            node = NodeId(session.hello.node)
            self._sessions.kept_logs.keep(JobId(status.job_id), status.attempt, node, self._sessions.ask_for_log)

    async def _pass_on(self, session: AgentSession, request: agent_pb2.ReadCheckpoint) -> None:
        """Answer the request of an agent, or ask the node that has the checkpoint from which its attempt starts."""
        if request.ended_of:
            session.send(agent_pb2.MasterMessage(checkpoint_data=await ended_jobs(self._loop, self._clock, request)))
            return
        if request.snapshot:
            answer = await read_snapshot(self._loop, self._snapshots, request, NodeId(session.hello.node))
            session.send(agent_pb2.MasterMessage(checkpoint_data=answer))
            return
        key = (JobId(request.job_id), request.attempt)
        node = NodeId(session.hello.node)
        if key not in session.sources:
            source = await self._loop.ask(lambda cluster: source_of_launch(cluster.state, *key, node))
            if source is not None:
                session.sources[key] = source
        source = session.sources.get(key)
        connected = self._sessions.attached(source) if source is not None else None
        if connected is None:
            session.sources.pop(key, None)
        why_not = f"node {source} is not connected" if source is not None else "no attempt waits for it"
        self._relay.ask(session, request, connected, why_not)


def _registered(registration: e.NodeRegistered, session: AgentSession, cluster: Cluster) -> Iterator[Event]:
    """Yield the facts of a registration: the node, its GPUs' foreign processes, its attempts, and its pool."""
    session.register(registration)
    yield pool_membership.registration(cluster.state, registration)
    for gpu in session.hello.gpus:
        if gpu.processes:  # an empty list may mean that the agent has not looked yet; the first reading shows it
            yield from foreign_facts(registration.node, GpuId(gpu.uuid), gpu.processes, cluster)
    for status in session.hello.attempts:
        yield from _facts(status, registration.node, cluster)
    yield from pool_membership.change_of_node(cluster.state, registration)


def _is_status(message: agent_pb2.AgentMessage) -> bool:
    return message.HasField("status")


def _status_events(
    statuses: list[agent_pb2.AttemptStatus], node: NodeId, session: AgentSession, cluster: Cluster
) -> Iterator[Event | None]:
    """Yield the facts of statuses. Once no attempt runs there any more, the node joins the pool that it named."""
    for status in statuses:
        yield from _facts(status, node, cluster)
        if session.registration is not None:
            yield from pool_membership.change_of_node(cluster.state, session.registration)
        yield PAUSE


def _ran_on(cluster: Cluster, status: agent_pb2.AttemptStatus, node: NodeId) -> bool:
    """Return whether the core knows the attempt, and has placed it on the node: an agent may say anything."""
    job = cluster.state.jobs.get(JobId(status.job_id))
    return job is not None and any(
        attempt.number == status.attempt and node in attempt.allocation.node_ids for attempt in job.attempts
    )


def _facts(status: agent_pb2.AttemptStatus, node: NodeId, cluster: Cluster) -> Iterator[Event]:
    """Yield the facts of a status for an attempt that the core has, and for a stray."""
    yield from facts_of_status(status, node, cluster)
    yield from strays.after_report(cluster.state, report_of(status, node))


def _rejection(reason: str) -> agent_pb2.MasterMessage:
    return agent_pb2.MasterMessage(rejected=agent_pb2.Rejected(reason=reason))
