"""Serves one welcomed stream to a master: it receives orders, and sends statuses, heartbeats, logs and checkpoints."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Protocol

import grpc
import grpc.aio
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.channels.table import ChannelTable
from ebbtide_agent.files.exchange import Exchange
from ebbtide_agent.gpu_use.telemetry import Telemetry
from ebbtide_agent.link.deltas import Deltas
from ebbtide_agent.link.membership import Membership
from ebbtide_agent.link.orders import Order, Orders
from ebbtide_agent.link.outbox import Outbox
from ebbtide_agent.logs.log_edges import LogEdge
from ebbtide_agent.supervisor.lease import boottime

log = logging.getLogger(__name__)

AttachCall = grpc.aio.StreamStreamCall[agent_pb2.AgentMessage, agent_pb2.MasterMessage]

# How long a log request may wait, how many bytes one answer holds, and from how many open requests on another one is
# refused: one that waits, and any other.
LOG_WAIT_S = 5.0
LOG_BYTES = 1024 * 1024
LOG_READS = 64
LOG_LOOKS = 128

# How many checkpoint windows may be read for other nodes or wait to be sent at once.
CHECKPOINT_READS = 16

_SHORTEST_HEARTBEAT_S = 0.05
_LONGEST_HEARTBEAT_S = 60.0


class AttemptControl(Protocol):
    """Carries out the master's orders."""

    def leave_cluster(self) -> None: ...
    def join(self, cluster_id: str) -> None: ...
    def renew(self, at: float) -> None: ...
    async def launch(self, order: agent_pb2.Launch) -> None: ...
    async def stop(self, job_id: str, attempt: int, grace_s: float, goes_on: bool = False) -> None: ...
    async def swap(self, job_id: str, attempt: int, grace_s: float, swaps: int) -> None: ...
    async def resume(self, job_id: str, attempt: int, swaps: int) -> None: ...
    async def forget(self, job_id: str, attempt: int) -> None: ...
    def statuses(self) -> list[agent_pb2.AttemptStatus]: ...


class AttemptFiles(Protocol):
    """Reads logs and checkpoints for the master and other nodes."""

    async def read_log(
        self, job_id: str, attempt: int, offset: int | LogEdge, max_bytes: int, wait_s: float, rank: int | None = None
    ) -> agent_pb2.LogData: ...
    async def read_checkpoint(self, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData: ...


class MasterStream:
    """Runs one welcomed stream until it ends."""

    def __init__(
        self,
        call: AttachCall,
        master: Membership,
        outbox: Outbox,
        attempts: AttemptControl,
        shown: AttemptFiles,
        telemetry: Telemetry,
        orders: Orders,
        exchange: Exchange,
        channels: ChannelTable | None = None,
    ) -> None:
        self._call = call
        self._master = master
        self._outbox = outbox
        self._attempts = attempts
        self._shown = shown
        self._telemetry = telemetry
        self._orders = orders
        self._exchange = exchange
        self._channels = channels
        self._pause_s = _SHORTEST_HEARTBEAT_S
        self._beats: dict[int, float] = {}  # send times of unacknowledged heartbeats, by number (CLOCK_BOOTTIME)
        self._log_reads = set[asyncio.Task[None]]()
        self._checkpoint_reads = set[asyncio.Task[None]]()

    async def run(self, heartbeat_s: float, deltas: Deltas | None = None) -> None:
        """Serve the stream until it ends. Raises what ended it: AioRpcError, or InvalidStateError without a reason.

        `deltas` is None if the master takes complete heartbeats only.
        """
        self._beat_every(heartbeat_s)
        parts = [
            asyncio.create_task(self._obey(), name="orders from the master"),
            asyncio.create_task(self._send(deltas), name="reports to the master"),
            asyncio.create_task(self._beat(), name="heartbeat"),
        ]
        self._exchange.attach(self._outbox.put_question)
        if self._channels is not None:
            self._channels.attach(self._outbox.put_frame)
        try:
            ended, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in ended:
                part.result()
        finally:
            self._exchange.detach()
            if self._channels is not None:
                await self._channels.detach()
            rest = [*parts, *self._log_reads, *self._checkpoint_reads]
            for part in rest:
                part.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    async def _send(self, deltas: Deltas | None) -> None:
        while True:
            message = await self._outbox.take()
            if deltas is not None and message.HasField("heartbeat"):
                deltas.shorten(message.heartbeat)
            await self._call.write(message)

    def _beat_every(self, heartbeat_s: float) -> None:
        # With this order of arguments NaN becomes the shortest pause, not an endless one.
        self._pause_s = min(max(_SHORTEST_HEARTBEAT_S, heartbeat_s), _LONGEST_HEARTBEAT_S)

    async def _beat(self) -> None:
        for number in count(1):
            heartbeat = await self._telemetry.heartbeat()
            heartbeat.beat, self._beats[number] = number, boottime()
            self._outbox.put_heartbeat(heartbeat)
            await self._telemetry.pause(self._pause_s)

    def _hear(self, heard: agent_pb2.Heard) -> None:
        """Renew all leases, because the master has acknowledged this heartbeat."""
        sent = self._beats.get(heard.beat)
        if sent is not None:
            self._beats = {number: at for number, at in self._beats.items() if number > heard.beat}
            self._attempts.renew(sent)
        if heard.heartbeat_s:
            self._beat_every(heard.heartbeat_s)
        self._telemetry.note_heard()
        if heard.wanted:
            self._telemetry.note_wanted()

    async def _obey(self) -> None:
        while isinstance(message := await self._call.read(), agent_pb2.MasterMessage):
            self._take(message)

    def _take(self, message: agent_pb2.MasterMessage) -> None:
        match message.WhichOneof("body"):
            case "launch":
                launch = message.launch
                self._order("launch", launch.job_id, launch.attempt, partial(self._attempts.launch, launch))
            case "stop":
                stop = message.stop
                key = (stop.job_id, stop.attempt)
                if stop.swap:
                    self._order("swap", *key, partial(self._attempts.swap, *key, stop.grace_s, stop.swaps))
                else:
                    self._order("stop", *key, partial(self._attempts.stop, *key, stop.grace_s, stop.goes_on))
            case "resume":
                key = (message.resume.job_id, message.resume.attempt)
                self._order("resume", *key, partial(self._attempts.resume, *key, message.resume.swaps))
            case "forget":
                key = (message.forget.job_id, message.forget.attempt)
                self._order("forget", *key, partial(self._attempts.forget, *key))
            case "heard":
                self._hear(message.heard)
            case "read_log":
                self._start_reading(message.read_log)
            case "read_checkpoint":
                self._start_checkpoint(message.read_checkpoint)
            case "checkpoint_data":
                self._exchange.answer(message.checkpoint_data)
            case "jobs_removed" | "node_ends":
                self._note(message)
            case "channel" if self._channels is not None:
                self._channels.take(message.channel)
            case other:
                log.warning("event=message-ignored body=%s", other)

    def _note(self, message: agent_pb2.MasterMessage) -> None:
        """Take in what the master says about jobs or the node as a whole."""
        if message.HasField("node_ends"):
            self._telemetry.end.hear(message.node_ends.until if message.node_ends.HasField("until") else None)
        else:
            self._exchange.jobs_removed.set()

    def _order(self, what: str, job_id: str, attempt: int, carry_out: Callable[[], Awaitable[None]]) -> None:
        self._orders.give((job_id, attempt), Order(what, self._master, carry_out))

    def _start_reading(self, request: agent_pb2.ReadLog) -> None:
        most = LOG_READS if request.wait else LOG_LOOKS
        if len(self._log_reads) >= most:
            error = f"more than {most} log requests at once"
            self._outbox.put_log(agent_pb2.LogData(request_id=request.request_id, error=error))
            return
        reading = asyncio.create_task(self._read_log(request), name=f"log {request.job_id}.{request.attempt}")
        self._log_reads.add(reading)
        reading.add_done_callback(self._log_reads.discard)

    async def _read_log(self, request: agent_pb2.ReadLog) -> None:
        key = (request.job_id, request.attempt)
        try:
            wait_s = LOG_WAIT_S if request.wait else 0.0
            rank = request.rank if request.HasField("rank") else None
            begin = LogEdge(request.tail, request.since) if request.tail or request.since else request.offset
            data = await self._shown.read_log(*key, begin, min(request.max_bytes, LOG_BYTES), wait_s, rank)
        except Exception as error:  # the request is answered whatever is found in place of the log
            log.exception("event=log-not-read job=%s attempt=%d", *key)
            data = agent_pb2.LogData(error=str(error) or type(error).__name__)
        data.request_id = request.request_id
        self._outbox.put_log(data)

    def _start_checkpoint(self, request: agent_pb2.ReadCheckpoint) -> None:
        if len(self._checkpoint_reads) + self._outbox.checkpoints >= CHECKPOINT_READS:
            error = f"more than {CHECKPOINT_READS} requests for checkpoints at once"
            answer = agent_pb2.CheckpointData(request_id=request.request_id, error=error, away=True)
            self._outbox.put_checkpoint(answer)
            return
        reading = asyncio.create_task(self._read_checkpoint(request), name=f"checkpoint of {request.job_id}")
        self._checkpoint_reads.add(reading)
        reading.add_done_callback(self._checkpoint_reads.discard)

    async def _read_checkpoint(self, request: agent_pb2.ReadCheckpoint) -> None:
        try:
            data = await self._shown.read_checkpoint(request)
        except Exception as error:  # the other node is answered whatever is found in the job's directory
            log.exception("event=checkpoint-not-read job=%s checkpoint=%s", request.job_id, request.checkpoint)
            data = agent_pb2.CheckpointData(error=str(error) or type(error).__name__)
        data.request_id = request.request_id
        self._outbox.put_checkpoint(data)
