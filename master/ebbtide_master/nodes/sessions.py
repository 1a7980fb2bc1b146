"""The nodes that are connected: one session for each agent's stream, over which orders and questions go to it."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ebbtide_core import commands as c
from ebbtide_core import events as e
from ebbtide_core.model import limits
from ebbtide_core.model.log_rules import DEFAULT_RULES, LogRule
from ebbtide_core.model.output_name import expand
from ebbtide_core.model.types import GpuId, JobId, NodeId, RefusalCause
from ebbtide_protos.spec import LOG_RULES
from ebbtide_protos.v1 import agent_pb2, channel_pb2

from ebbtide_master.convert import order_to_message
from ebbtide_master.identity.running_as import AGENTS_OWN, Accounts
from ebbtide_master.nodes.channels import Channels
from ebbtide_master.nodes.outbox import AgentOutbox
from ebbtide_master.store.environments import Environments
from ebbtide_master.throttle.fair_queue import own_line
from ebbtide_master.throttle.places import may_take

LOG_ANSWER_TIMEOUT_S: Final = 30.0
_NO_STDIN: Final = "the node's agent is of a version that gives jobs no standard input: upgrade it"
LOG_PAUSE_S: Final = 1.0
"""Between looks at a log that is followed while others take the places of those who are told at once."""


class LogUnavailableError(Exception):
    """The log cannot be read now; the message says why."""


class AgentSession:
    """One agent's stream: what waits to be sent, and what it said last.

    Orders are sent once the core has taken its registration in: those of before are decided on anew, given what it has.
    """

    def __init__(self, hello: agent_pb2.Hello, now: float) -> None:
        self.hello = hello
        self.registration: e.NodeRegistered | None = None  # until the core has taken it in
        self.outbox = AgentOutbox()
        self.readings: dict[GpuId, agent_pb2.GpuReading] = {}
        self.health = {GpuId(gpu.uuid): (gpu.healthy, False) for gpu in hello.gpus}  # whether healthy, whether gone
        self.sources: dict[tuple[JobId, int], NodeId] = {}
        self.acknowledged = now  # when the agent was last told that it is heard, in Unix seconds
        self.reads: dict[int, asyncio.Future[agent_pb2.LogData]] = {}
        self.waits = Counter[str]()  # of these reads, those that wait for more to be printed, by user
        self.surprised = False  # by a message that makes no sense

    @property
    def registered(self) -> bool:
        """Whether orders may be sent."""
        return self.registration is not None

    def register(self, registration: e.NodeRegistered) -> None:
        """Let orders be sent from now on: the core takes ``registration`` in."""
        self.registration = registration

    def acknowledge(self, beat: int, now: float) -> None:
        """Tell the agent that it is heard. Leases are counted from here: the agent does so from an earlier time."""
        self.acknowledged = now
        self.send(agent_pb2.MasterMessage(heard=agent_pb2.Heard(beat=beat)))

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


class Sessions:
    """The sessions by node, with what orders are completed with before they are sent, and the channels over them."""

    def __init__(
        self,
        environments: Environments,
        log_rules: Sequence[LogRule] = DEFAULT_RULES,
        log_bytes: int = limits.LOG_BYTES,
        accounts: Accounts = lambda user: AGENTS_OWN,
    ) -> None:
        self._environments = environments
        self._log_bytes = log_bytes
        self._accounts = accounts
        self._log_rules = [LOG_RULES.to_message(rule) for rule in log_rules]
        self._by_node: dict[NodeId, AgentSession] = {}
        self._requests = itertools.count(1)
        self.channels = Channels()
        self.refuse: Callable[[e.AttemptRefused], None] = lambda refused: None
        """Told of a launch that its node cannot carry out, and does not know that."""

    # --- who is connected ---

    def put(self, node: NodeId, session: AgentSession) -> AgentSession | None:
        """Make ``session`` the node's; returns the one that it had."""
        old = self._by_node.get(node)
        self._by_node[node] = session
        return old

    def remove(self, node: NodeId, session: AgentSession) -> bool:
        """Forget the node's session, unless ``session`` was replaced by a newer one; then False is returned."""
        if self._by_node.get(node) is not session:
            return False
        del self._by_node[node]
        return True

    def attached(self, node: NodeId) -> AgentSession | None:
        """The node's session, though it may not have registered yet."""
        return self._by_node.get(node)

    def readings(self, node: NodeId) -> Mapping[GpuId, agent_pb2.GpuReading]:
        """What the node's GPUs said last; empty if it is not connected."""
        session = self._by_node.get(node)
        return session.readings if session is not None else {}

    def hello(self, node: NodeId) -> agent_pb2.Hello | None:
        """What the node said of itself when it attached; None if it is not connected."""
        session = self._by_node.get(node)
        return session.hello if session is not None else None

    def session(self, node: NodeId) -> AgentSession | None:
        """The node's stream, once it has registered."""
        session = self._by_node.get(node)
        return session if session is not None and session.registered else None

    def connected(self, node: NodeId) -> bool:
        """Whether the node's stream is open."""
        return node in self._by_node

    def end_stream(self, node: NodeId) -> None:
        """End the node's stream, if it has one: its agent has to prove itself again."""
        if session := self._by_node.get(node):
            session.close()

    def tell_of_removed(self) -> None:
        """Have nodes ask which jobs were removed; those that are away ask when they are back."""
        for session in self._by_node.values():
            session.send(agent_pb2.MasterMessage(jobs_removed=agent_pb2.JobsRemoved()))

    def close(self) -> None:
        """End all streams."""
        for session in self._by_node.values():
            session.close()

    # --- orders ---

    def set_log_rules(self, log_rules: Sequence[LogRule]) -> None:
        """What is looked for in what jobs print that start from now on."""
        self._log_rules = [LOG_RULES.to_message(rule) for rule in log_rules]

    def perform(self, order: c.Command) -> None:
        """Send an order to its nodes; one that is not connected is reminded when it registers."""
        if isinstance(order, c.Launch | c.Stop | c.Resume | c.Forget):
            for node in order.nodes:
                session = self._by_node.get(node)
                if session is None or not session.registered:
                    continue
                if isinstance(order, c.Launch) and order.spec.stdin and not session.hello.stdin:
                    # It would start the job without a word, and with an input that is empty.
                    self.refuse(e.AttemptRefused(order.job, order.attempt, RefusalCause.NO_STDIN, _NO_STDIN))
                else:
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

    # --- logs ---

    async def read_log(self, node: NodeId, order: agent_pb2.ReadLog) -> agent_pb2.LogData:
        """One window of an attempt's log. `LogUnavailableError` if the node cannot be asked.

        Who waits may get an empty one, but not at once: the node waits for more, or, where others wait already, we do.
        """
        session = self._by_node.get(node)
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
