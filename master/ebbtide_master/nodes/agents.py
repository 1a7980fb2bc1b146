"""The agents' side of the master: one session per connected node."""

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import grpc
from ebbtide_core import commands as c
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.lifecycle import pool_membership
from ebbtide_core.model import limits
from ebbtide_core.model.log_rules import DEFAULT_RULES, LogRule
from ebbtide_core.model.output_name import expand
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import GpuId, JobId, NodeId
from ebbtide_core.nodes import strays
from ebbtide_core.resources import foreign_processes
from ebbtide_protos import protocol
from ebbtide_protos.printed import rule_to_message
from ebbtide_protos.v1 import agent_pb2, channel_pb2

from ebbtide_master.clock import Clock
from ebbtide_master.convert import (
    MAX_NOTE_LENGTH,
    facts_of_status,
    foreign_from_messages,
    heard_of,
    order_to_message,
    registration_from_hello,
)
from ebbtide_master.identity.running_as import AGENTS_OWN, Accounts
from ebbtide_master.loop import MasterLoop, StoppedError
from ebbtide_master.nodes import machine_shutdown
from ebbtide_master.nodes.channels import Channels
from ebbtide_master.nodes.finished_jobs import ended_jobs
from ebbtide_master.nodes.idleness import Idleness
from ebbtide_master.nodes.outbox import Outbox
from ebbtide_master.nodes.quarantine import is_released
from ebbtide_master.nodes.relay import Relay, source_of_launch
from ebbtide_master.nodes.renewing import Renewing
from ebbtide_master.nodes.snapshot_windows import read_snapshot
from ebbtide_master.nodes.snapshots import Snapshots
from ebbtide_master.nodes.truncating import bounded
from ebbtide_master.store.environments import Environments
from ebbtide_master.throttle.fair_queue import own_line
from ebbtide_master.throttle.node_places import may_take

HEARTBEAT_S: Final = 2.0
HELLO_TIMEOUT_S: Final = 10.0
NODE_SILENCE_S: Final = 20.0
"""How long a node may be disconnected before it counts as lost."""
LOG_ANSWER_TIMEOUT_S: Final = 30.0
LOG_PAUSE_S: Final = 1.0
"""Between looks at a log that is followed while others take the places of those who are told at once."""

log = logging.getLogger(__name__)


class LogUnavailableError(Exception):
    """The log cannot be read now; the message says why."""


class Session:
    """One agent's stream: what waits to be sent, and what it said last.

    Orders are sent once the core has taken its registration in: those of before are decided on anew, given what it has.
    """

    def __init__(self, hello: agent_pb2.Hello) -> None:
        self.hello = hello
        self.registered = False
        self.registration: e.NodeRegistered | None = None
        self.outbox = Outbox()
        self.readings: dict[GpuId, agent_pb2.GpuReading] = {}
        self.health = {GpuId(gpu.uuid): (gpu.healthy, False) for gpu in hello.gpus}  # whether healthy, whether gone
        self.sources: dict[tuple[JobId, int], NodeId] = {}
        self.acknowledged = 0.0  # when the agent was last told that it is heard, in Unix seconds
        self.reads: dict[int, asyncio.Future[agent_pb2.LogData]] = {}
        self.waits = Counter[str]()  # of these reads, those that wait for more to be printed, by user
        self.surprised = False  # by a message that makes no sense

    def send(self, message: agent_pb2.MasterMessage) -> None:
        """Send ``message`` in its turn."""
        self.outbox.put_nowait(message)

    def send_frame(self, frame: channel_pb2.ChannelInput) -> None:
        """Send a channel's frame when there is nothing more urgent."""
        self.outbox.put_frame(frame)

    def close(self) -> None:
        """End the stream, and let nobody wait for an answer on it."""
        self.outbox.put_nowait(None)
        for future in self.reads.values():
            if not future.done():
                future.set_exception(LogUnavailableError(f"node {self.hello.node} went away"))


class Agents(Renewing):
    """Turns what agents say into facts, and brings them the core's orders."""

    def __init__(
        self,
        cluster_id: str,
        epoch: int,
        clock: Clock,
        snapshots: Snapshots,
        environments: Environments,
        log_rules: Sequence[LogRule] = DEFAULT_RULES,
        log_bytes: int = limits.LOG_BYTES,
        accounts: Accounts = lambda user: AGENTS_OWN,
    ) -> None:
        self._clock = clock
        self._log_bytes = log_bytes
        self._idleness = Idleness(clock)
        self._snapshots = snapshots
        self._environments = environments
        self._accounts = accounts
        self._welcome = agent_pb2.Welcome(
            cluster_id=cluster_id, epoch=epoch, heartbeat_s=HEARTBEAT_S, protocol=protocol.PROTOCOL
        )
        self._sessions: dict[NodeId, Session] = {}
        self._silences: dict[NodeId, asyncio.Task[None]] = {}
        self._requests = itertools.count(1)
        self._relay = Relay()
        self._log_rules = [rule_to_message(rule) for rule in log_rules]
        self.channels = Channels()
        self.loop: MasterLoop
        self.silent: Callable[[NodeId], None] = lambda node: None
        """Is told of a node that counts as lost, once that is on disk."""

    def set_log_rules(self, log_rules: Sequence[LogRule]) -> None:
        """What is looked for in what jobs print that start from now on."""
        self._log_rules = [rule_to_message(rule) for rule in log_rules]

    def perform(self, order: c.Command) -> None:
        """Send an order to its nodes; one that is not connected is reminded when it registers."""
        if isinstance(order, c.Launch | c.Stop | c.Resume | c.Forget):
            for node in order.nodes:
                session = self._sessions.get(node)
                if session is not None and session.registered:
                    session.send(self._message(order, node))

    def _message(self, order: c.Launch | c.Stop | c.Resume | c.Forget, node: NodeId) -> agent_pb2.MasterMessage:
        message = order_to_message(order, node)
        if isinstance(order, c.Launch):
            account = self._accounts(order.user)
            message.launch.account = account.name
            if account.uid is not None:
                message.launch.uid = account.uid
            spec = message.launch.spec
            spec.env.update({**self._environments.of(order.job), **spec.env})
            message.launch.log_rules.extend(self._log_rules)
            message.launch.log_bytes = self._log_bytes
            spec.output = expand(order.spec.output, order.job, order.spec.name, node, order.allocation.node_ids[0])
        return message

    def readings(self, node: NodeId) -> Mapping[GpuId, agent_pb2.GpuReading]:
        """What the node's GPUs said last; empty if it is not connected."""
        session = self._sessions.get(node)
        return session.readings if session is not None else {}

    def hello(self, node: NodeId) -> agent_pb2.Hello | None:
        """What the node said of itself when it attached; None if it is not connected."""
        session = self._sessions.get(node)
        return session.hello if session is not None else None

    def session(self, node: NodeId) -> Session | None:
        """The node's stream, once it has registered."""
        session = self._sessions.get(node)
        return session if session is not None and session.registered else None

    def connected(self, node: NodeId) -> bool:
        """Whether the node's stream is open."""
        return node in self._sessions

    def end_stream(self, node: NodeId) -> None:
        """End the node's stream, if it has one: its agent has to prove itself again."""
        if session := self._sessions.get(node):
            session.close()

    def tell_of_removed(self) -> None:
        """Have nodes ask which jobs were removed; those that are away ask when they are back."""
        for session in self._sessions.values():
            session.send(agent_pb2.MasterMessage(jobs_removed=agent_pb2.JobsRemoved()))

    def await_nodes(self, nodes: list[NodeId], seconds: float) -> None:
        """Count each node as lost unless it registers within ``seconds``."""
        for node in nodes:
            self._silences[node] = asyncio.create_task(self._declare_lost(node, seconds))

    async def close(self) -> None:
        """End all streams."""
        for session in self._sessions.values():
            session.close()
        for task in self._silences.values():
            task.cancel()

    async def read_log(self, node: NodeId, order: agent_pb2.ReadLog) -> agent_pb2.LogData:
        """One window of an attempt's log. `LogUnavailableError` if the node cannot be asked.

        Who waits may get an empty one, but not at once: the node waits for more, or, where others wait already, we do.
        """
        session = self._sessions.get(node)
        if session is None:
            raise LogUnavailableError(f"node {node} is not connected")
        user = own_line()
        if order.wait and not may_take(session.waits[user], session.waits.total(), limits.MAX_LOG_WAITS_PER_NODE):
            await asyncio.sleep(LOG_PAUSE_S)
            order.wait = False
            return await self.read_log(node, order)
        session.waits[user] += order.wait
        try:
            return await self._read_log(session, node, order)
        finally:
            session.waits[user] -= order.wait

    async def _read_log(self, session: Session, node: NodeId, order: agent_pb2.ReadLog) -> agent_pb2.LogData:
        order.request_id = next(self._requests)
        future: asyncio.Future[agent_pb2.LogData] = asyncio.get_running_loop().create_future()
        session.reads[order.request_id] = future
        session.send(agent_pb2.MasterMessage(read_log=order))
        try:
            async with asyncio.timeout(LOG_ANSWER_TIMEOUT_S):
                return await future
        except TimeoutError:
            raise LogUnavailableError(f"node {node} does not answer") from None
        finally:
            del session.reads[order.request_id]

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
        if refusal := await self.loop.ask(lambda cluster: pool_membership.refuse_node(cluster.state, registration)):
            log.warning("node=%s rejected: %s", hello.node, refusal)
            yield _rejection(refusal)
            return
        session = self._open(registration.node, hello)
        reader = asyncio.create_task(self._read(session, registration, request_iterator))
        # If the stream breaks while a message is being written, nobody comes back to what follows here in good time.
        reader.add_done_callback(lambda _: self._closed(registration.node, session))
        try:
            while (message := await session.outbox.get()) is not None:
                yield message
            if reader.done():
                reader.result()  # raises what ended the conversation, if the agent has not just hung up
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
        """A second node of the same name is refused; the same agent, or its machine after a reboot, may come again."""
        if refusal := protocol.refuse(hello.protocol, "agent"):
            return refusal
        if hello.cluster_id and hello.cluster_id != self._welcome.cluster_id and hello.attempts:
            return f"the node has attempts of another cluster ({hello.cluster_id})"
        old = self._sessions.get(NodeId(hello.node))
        if old is None or old.hello.incarnation == hello.incarnation:
            return None
        if old.hello.hostname == hello.hostname and old.hello.boot_id != hello.boot_id:
            return None
        return f"a node named {hello.node} is connected already, from {old.hello.hostname}"

    def _open(self, node: NodeId, hello: agent_pb2.Hello) -> Session:
        if old := self._sessions.pop(node, None):
            old.close()
            self._relay.closed(old)
            self.channels.closed(old)
        if silence := self._silences.pop(node, None):
            silence.cancel()
        session = self._sessions[node] = Session(hello)
        session.acknowledged = self._clock.now()  # what was acknowledged before was so earlier
        session.send(agent_pb2.MasterMessage(welcome=self._welcome))
        return session

    def _closed(self, node: NodeId, session: Session) -> None:
        session.close()
        self._relay.closed(session)
        self.channels.closed(session)
        if self._sessions.get(node) is not session:  # replaced by a newer one
            return
        del self._sessions[node]
        log.info("node=%s disconnected", node)
        self._silences[node] = asyncio.create_task(self._fall_silent(node, session.acknowledged))

    async def _fall_silent(self, node: NodeId, acknowledged: float) -> None:
        with suppress(StoppedError):  # the next master begins with nobody connected
            await self.loop.tell(lambda _: [e.NodeDisconnected(node)], lambda _: None)
            await self._declare_lost(node, NODE_SILENCE_S, acknowledged)

    async def _declare_lost(self, node: NodeId, seconds: float, acknowledged: float = 0.0) -> None:
        """Unless it registers within so many seconds."""
        await asyncio.sleep(seconds)
        log.warning("node=%s lost: silent for %.0f s", node, seconds)
        await self.loop.tell(lambda _: [e.NodeLost(node, seconds, acknowledged)], lambda _: None)
        self.silent(node)

    async def _read(
        self, session: Session, registration: e.NodeRegistered, stream: AsyncIterator[agent_pb2.AgentMessage]
    ) -> None:
        """Take in the registration, then every message, until the agent hangs up."""
        try:
            await self.loop.tell(lambda cluster: _registered(registration, session, cluster), lambda _: None)
            log.info("node=%s registered gpus=%d", registration.node, len(registration.gpus))
            async for message in stream:
                await self._take(session, message)
        finally:
            session.outbox.put_nowait(None)

    async def _take(self, session: Session, message: agent_pb2.AgentMessage) -> None:
        bounded(message)
        match message.WhichOneof("body"):
            case "status":
                status = message.status
                node = NodeId(session.hello.node)
                await self.loop.tell(lambda cluster: _told(status, node, session, cluster), lambda _: None)
            case "heartbeat":
                await self._take_readings(session, message.heartbeat)
                self._acknowledge(session, message.heartbeat.beat)
            case "log":
                future = session.reads.get(message.log.request_id)
                if future is not None and not future.done():
                    future.set_result(message.log)
            case "read_checkpoint":
                await self._pass_on(session, message.read_checkpoint)
            case "checkpoint_data":
                self._relay.answer(session, message.checkpoint_data)
            case "channel":
                self.channels.take(session, message.channel)
            case other if not session.surprised:  # once, however many it sends
                session.surprised = True
                log.warning("node=%s unexpected message %s", session.hello.node, other)

    def _acknowledge(self, session: Session, beat: int) -> None:
        """Tell the agent that it is heard. Leases are counted from here: the agent does so from an earlier time."""
        if beat:
            session.acknowledged = self._clock.now()
            session.send(agent_pb2.MasterMessage(heard=agent_pb2.Heard(beat=beat)))

    async def _pass_on(self, session: Session, request: agent_pb2.ReadCheckpoint) -> None:
        """Ask the node that has the checkpoint of an attempt that is to start where the question comes from."""
        if request.ended_of:
            session.send(agent_pb2.MasterMessage(checkpoint_data=await ended_jobs(self.loop, self._clock, request)))
            return
        if request.snapshot:
            answer = await read_snapshot(self.loop, self._snapshots, request, NodeId(session.hello.node))
            session.send(agent_pb2.MasterMessage(checkpoint_data=answer))
            return
        key = (JobId(request.job_id), request.attempt)
        node = NodeId(session.hello.node)
        if key not in session.sources:
            source = await self.loop.ask(lambda cluster: source_of_launch(cluster.state, *key, node))
            if source is not None:
                session.sources[key] = source
        source = session.sources.get(key)
        connected = self._sessions.get(source) if source is not None else None
        if connected is None:
            session.sources.pop(key, None)
        why_not = f"node {source} is not connected" if source is not None else "no attempt waits for it"
        self._relay.ask(session, request, connected, why_not)

    async def _take_readings(self, session: Session, heartbeat: agent_pb2.Heartbeat) -> None:
        """Keep the readings; that a GPU became unusable, or usable again, is a fact."""
        node = NodeId(session.hello.node)
        known = {GpuId(reading.uuid): reading for reading in heartbeat.gpus if GpuId(reading.uuid) in session.health}
        health = {gpu: (reading.healthy, reading.gone) for gpu, reading in known.items()}
        changed = [gpu for gpu in known if session.health[gpu] != health[gpu]]
        foreign_on = {
            gpu: _settled(reading, session.readings.get(gpu))
            for gpu, reading in known.items()
            if reading.healthy and not reading.processes_unknown
        }
        session.readings |= known
        session.health |= health

        def facts(cluster: Cluster) -> Iterator[Event]:
            set_aside = set(cluster.state.nodes[node].quarantine)
            for gpu in changed:
                reading = known[gpu]
                if gpu not in set_aside or not reading.healthy:
                    reason = reading.unhealthy_reason[:MAX_NOTE_LENGTH]
                    yield e.GpuHealthChanged(node, gpu, reading.healthy, reason, reading.gone)
            for gpu in set_aside & known.keys():
                if is_released(known[gpu], cluster):
                    yield e.GpuHealthChanged(node, gpu, True)
            for gpu, processes in foreign_on.items():
                yield from _foreign(node, gpu, processes, cluster)
            yield from self._idleness.facts(cluster, cluster.state.nodes[node], known)
            yield from machine_shutdown.facts(cluster.state.nodes[node], heartbeat.leaving, self._clock.now())

        await self.loop.tell(facts, lambda _: None)


def _settled(reading: agent_pb2.GpuReading, before: agent_pb2.GpuReading | None) -> list[agent_pb2.GpuProcess]:
    """Its processes, but for those that may have been a job's: who had ended before anybody could look is nobody's."""
    known = {process.pid for process in before.processes} if before is not None else set()
    return [found for found in reading.processes if found.user or found.command or found.pid in known]


def _registered(registration: e.NodeRegistered, session: Session, cluster: Cluster) -> Iterator[Event]:
    """The registration, then what the node says of each of its attempts."""
    session.registered, session.registration = True, registration
    yield pool_membership.registration(cluster.state, registration)
    for gpu in session.hello.gpus:
        if gpu.processes:  # else it may be that they were not looked for yet: the first reading tells
            yield from _foreign(registration.node, GpuId(gpu.uuid), gpu.processes, cluster)
    for status in session.hello.attempts:
        yield from _facts(status, registration.node, cluster)
    yield from pool_membership.change_of_node(cluster.state, registration)


def _told(status: agent_pb2.AttemptStatus, node: NodeId, session: Session, cluster: Cluster) -> Iterator[Event]:
    """What a status implies; once nothing runs there any more, the node gets into the pool that it named."""
    yield from _facts(status, node, cluster)
    if session.registration is not None:
        yield from pool_membership.change_of_node(cluster.state, session.registration)


def _facts(status: agent_pb2.AttemptStatus, node: NodeId, cluster: Cluster) -> Iterator[Event]:
    """What a status implies for the attempt in the books, and for one that is not."""
    yield from facts_of_status(status, node, cluster)
    yield from strays.news(cluster.state, heard_of(status, node))


def _foreign(node: NodeId, gpu: GpuId, processes: Iterable[agent_pb2.GpuProcess], cluster: Cluster) -> Iterator[Event]:
    """That other processes of no job are on a GPU now, or the same with other memory; most readings say nothing new."""
    known, found = foreign_processes.on_gpu(cluster.state.nodes[node], gpu), foreign_from_messages(processes)
    if foreign_processes.is_change(known, found):
        yield e.ForeignUseChanged(node, gpu, found)


def _rejection(reason: str) -> agent_pb2.MasterMessage:
    return agent_pb2.MasterMessage(rejected=agent_pb2.Rejected(reason=reason))
