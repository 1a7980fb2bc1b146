"""Keeps a session for each connected node: the agent's stream, over which orders and questions go to the agent."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from ebbtide_core import commands as c
from ebbtide_core import events as e
from ebbtide_core.model import limits
from ebbtide_core.model.log_rules import DEFAULT_RULES, LogRule
from ebbtide_core.model.output_name import expand
from ebbtide_core.model.types import GpuId, JobId, NodeId, RefusalCause
from ebbtide_protos.spec import LOG_RULES
from ebbtide_protos.v1 import agent_pb2, channel_pb2

from ebbtide_master.convert import loan_of, order_to_message
from ebbtide_master.identity.running_as import AGENTS_OWN, Accounts
from ebbtide_master.nodes.channels import Channels
from ebbtide_master.nodes.kept_logs import KeptLogs, LogUnavailableError
from ebbtide_master.nodes.outbox import AgentOutbox
from ebbtide_master.nodes.readings import NodeReadings
from ebbtide_master.store.environments import Environments
from ebbtide_master.throttle.concurrency import may_take
from ebbtide_master.throttle.fair_queue import current_queue

LOG_ANSWER_TIMEOUT_S: Final = 30.0
_NO_STDIN: Final = "the node's agent is of a version that gives jobs no standard input: upgrade it"
LOG_PAUSE_S: Final = 1.0
"""Seconds between reads of a followed log while other followers have the places in which the node answers at once."""


class AgentSession:
    """One agent's stream: the messages that wait to be sent, and what the agent reported last.

    Orders are sent only after the core has taken in the node's registration, because the core then decides the earlier
    orders anew from the attempts that the node has.
    """

    def __init__(self, hello: agent_pb2.Hello, now: float) -> None:
        self.hello = hello
        self.node = NodeId(hello.node)
        self.registration: e.NodeRegistered | None = None  # None until the core takes it in
        self.outbox = AgentOutbox()
        self.readings = NodeReadings(hello)
        self.sources: dict[tuple[JobId, int], NodeId] = {}
        self.acknowledged = now  # when the agent's heartbeat was last acknowledged, in Unix seconds
        self.heartbeat_s = 0.0  # how often the agent was asked to send heartbeats
        self.reads: dict[int, asyncio.Future[agent_pb2.LogData]] = {}
        self.waits = Counter[str]()  # number of these reads that wait until the job prints more, by user
        self.loan = loan_of(hello)  # what the agent said last of when the node goes
        self.noted = False  # whether the next heartbeat is in the readings already
        self.surprised = False  # whether an unexpected message was logged

    @property
    def registered(self) -> bool:
        """Whether orders may be sent."""
        return self.registration is not None

    @property
    def lent(self) -> bool:
        """Whether the node goes some day, and its logs with it."""
        return self.loan is not None

    def register(self, registration: e.NodeRegistered) -> None:
        """Let orders be sent from now on, because the core takes in ``registration``."""
        self.registration = registration

    def acknowledge(self, beat: int, now: float, wanted: bool, heartbeat_s: float) -> None:
        """Acknowledge the agent's heartbeat. The master counts leases from now, the agent from an earlier time."""
        self.acknowledged = now
        heard = agent_pb2.Heard(beat=beat, wanted=wanted)
        if heartbeat_s != self.heartbeat_s:
            self.heartbeat_s = heard.heartbeat_s = heartbeat_s
        self.send(agent_pb2.MasterMessage(heard=heard))

    def send(self, message: agent_pb2.MasterMessage) -> None:
        """Send ``message`` after the messages before it."""
        self.outbox.put_nowait(message)

    def send_frame(self, frame: channel_pb2.ChannelInput) -> None:
        """Send a channel's frame when no message waits."""
        self.outbox.put_frame(frame)

    def close(self) -> None:
        """End the stream, and fail the log reads that wait for an answer on it."""
        self.outbox.put_nowait(None)
        for future in self.reads.values():
            if not future.done():
                future.set_exception(LogUnavailableError(f"node {self.hello.node} went away"))


class Sessions:
    """The sessions by node, their channels, and what the master adds to launch orders before it sends them.

    ``kept_logs`` are those of nodes that are gone.
    """

    def __init__(
        self,
        environments: Environments,
        kept_logs: KeptLogs,
        log_rules: Sequence[LogRule] = DEFAULT_RULES,
        log_bytes: int = limits.LOG_BYTES,
        accounts: Accounts = lambda user: AGENTS_OWN,
    ) -> None:
        self._environments = environments
        self.kept_logs = kept_logs
        self._log_bytes = log_bytes
        self._accounts = accounts
        self._log_rules = [LOG_RULES.to_message(rule) for rule in log_rules]
        self._by_node: dict[NodeId, AgentSession] = {}
        self._requests = itertools.count(1)
        self.channels = Channels()

    # --- connected nodes ---

    def put(self, node: NodeId, session: AgentSession) -> AgentSession | None:
        """Make ``session`` the session of ``node``, and return the one that it had."""
        old = self._by_node.get(node)
        self._by_node[node] = session
        return old

    def remove(self, node: NodeId, session: AgentSession) -> bool:
        """Forget the node's session and return True; return False if a newer one has replaced ``session``."""
        if self._by_node.get(node) is not session:
            return False
        del self._by_node[node]
        return True

    @property
    def count(self) -> int:
        """How many nodes are connected."""
        return len(self._by_node)

    def attached(self, node: NodeId) -> AgentSession | None:
        """Return the node's session, even if the node has not registered yet."""
        return self._by_node.get(node)

    def readings(self, node: NodeId) -> Mapping[GpuId, agent_pb2.GpuReading]:
        """Return the last readings of the node's GPUs; empty if the node is not connected."""
        session = self._by_node.get(node)
        return session.readings.last if session is not None else {}

    def hello(self, node: NodeId) -> agent_pb2.Hello | None:
        """Return what the node reported of itself when it attached; None if it is not connected."""
        session = self._by_node.get(node)
        return session.hello if session is not None else None

    def session(self, node: NodeId) -> AgentSession | None:
        """Return the node's session if the node has registered, else None."""
        session = self._by_node.get(node)
        return session if session is not None and session.registered else None

    def connected(self, node: NodeId) -> bool:
        """Whether the node's stream is open."""
        return node in self._by_node

    def end_stream(self, node: NodeId) -> None:
        """End the node's stream, if it has one, so that its agent has to authenticate again."""
        if session := self._by_node.get(node):
            session.close()

    def tell_of_removed(self) -> None:
        """Make the nodes ask which jobs were removed; a node that is not connected asks when it is back."""
        for session in self._by_node.values():
            session.send(agent_pb2.MasterMessage(jobs_removed=agent_pb2.JobsRemoved()))

    def close(self) -> None:
        """End all streams."""
        for session in self._by_node.values():
            session.close()

    # --- orders ---

    def set_log_rules(self, log_rules: Sequence[LogRule]) -> None:
        """Set the rules that are applied to the logs of jobs that start from now on."""
        self._log_rules = [LOG_RULES.to_message(rule) for rule in log_rules]

    def perform(self, order: c.Command) -> e.AttemptRefused | None:
        """Send an order to its nodes; return the refusal of a launch that a node's older agent would carry out wrongly.

        For a node that is not connected, the core decides anew when it registers.
        """
        refused = None
        if isinstance(order, c.NodeOrder):
            for node in order.nodes:
                session = self._by_node.get(node)
                if session is None or not session.registered:
                    continue
                if isinstance(order, c.Launch) and order.spec.stdin and not session.hello.stdin:
                    # An agent that does not know the field would start the job with an empty input.
                    refused = e.AttemptRefused(order.job, order.attempt, RefusalCause.NO_STDIN, _NO_STDIN)
                else:
                    session.send(self._message(order, node))
        return refused

    def _message(self, order: c.NodeOrder, node: NodeId) -> agent_pb2.MasterMessage:
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

    # --- logs ---

    async def read_log(self, node: NodeId, order: agent_pb2.ReadLog) -> agent_pb2.LogData:
        """Return one window of an attempt's log, the kept one if the node is gone. Raises `LogUnavailableError`."""
        if node not in self._by_node and (kept := await self.kept_logs.read(node, order)) is not None:
            return kept
        return await self.ask_for_log(node, order)

    async def ask_for_log(self, node: NodeId, order: agent_pb2.ReadLog) -> agent_pb2.LogData:
        """Return one window of an attempt's log from its node. Raises `LogUnavailableError` if it cannot be asked.

        A request that waits for more output may get an empty window after a pause: the node waits until the job prints
        more, or the master waits for `LOG_PAUSE_S` if too many requests wait at the node already.
        """
        session = self._by_node.get(node)
        if session is None:
            raise LogUnavailableError(f"node {node} is not connected")
        user = current_queue()
        if order.wait and not may_take(session.waits[user], session.waits.total(), limits.MAX_LOG_WAITS_PER_NODE):
            await asyncio.sleep(LOG_PAUSE_S)
            order.wait = False
            return await self.ask_for_log(node, order)
        session.waits[user] += order.wait
        try:
            return await self._read_log(session, node, order)
        finally:
            session.waits[user] -= order.wait

    async def _read_log(self, session: AgentSession, node: NodeId, order: agent_pb2.ReadLog) -> agent_pb2.LogData:
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
