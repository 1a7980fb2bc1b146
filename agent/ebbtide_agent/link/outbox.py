"""Holds the messages that wait to be sent on one stream to the master."""

import asyncio
from collections import deque

from ebbtide_protos.v1 import agent_pb2, channel_pb2

from ebbtide_agent.contract.attempt_dir import AttemptKey


class Outbox:
    """Holds the newest status of each attempt, the newest heartbeat, answers, questions to other nodes, and frames.

    Statuses are whole, so a newer one replaces an older one: the outbox is bounded by what the node runs, however slow
    the stream is. It lives as long as its stream; the next Hello reports the statuses that it still held.
    """

    def __init__(self) -> None:
        self._statuses: dict[AttemptKey, agent_pb2.AttemptStatus] = {}
        self._heartbeat: agent_pb2.Heartbeat | None = None
        self._logs: deque[agent_pb2.LogData] = deque()
        self._questions: deque[agent_pb2.ReadCheckpoint] = deque()
        self._checkpoints: deque[agent_pb2.CheckpointData] = deque()
        self._frames: dict[int, deque[channel_pb2.ChannelOutput]] = {}  # by channel; the next to send is first
        self._filled = asyncio.Event()

    def put_status(self, status: agent_pb2.AttemptStatus) -> None:
        """Send this status, and not an older one of the same attempt."""
        self._statuses[status.job_id, status.attempt] = status
        self._filled.set()

    def put_heartbeat(self, heartbeat: agent_pb2.Heartbeat) -> None:
        """Send this heartbeat, and not an older one."""
        self._heartbeat = heartbeat
        self._filled.set()

    def put_log(self, log: agent_pb2.LogData) -> None:
        """Send this part of a log after those that already wait."""
        self._logs.append(log)
        self._filled.set()

    def put_question(self, question: agent_pb2.ReadCheckpoint) -> None:
        """Send this question to another node after those that already wait."""
        self._questions.append(question)
        self._filled.set()

    def put_checkpoint(self, data: agent_pb2.CheckpointData) -> None:
        """Send this answer to another node after those that already wait."""
        self._checkpoints.append(data)
        self._filled.set()

    def put_frame(self, frame: channel_pb2.ChannelOutput) -> None:
        """Send this frame after its channel's waiting frames; channels take turns."""
        self._frames.setdefault(frame.channel, deque()).append(frame)
        self._filled.set()

    @property
    def checkpoints(self) -> int:
        """The number of checkpoint windows that wait to be sent."""
        return len(self._checkpoints)

    async def take(self) -> agent_pb2.AgentMessage:
        """Wait for a message and return it, the most urgent kind first."""
        while True:
            await self._filled.wait()
            message = self._next()
            if message is not None:
                return message
            self._filled.clear()

    def _next(self) -> agent_pb2.AgentMessage | None:
        if self._statuses:
            return agent_pb2.AgentMessage(status=self._statuses.pop(next(iter(self._statuses))))
        if self._heartbeat is not None:
            heartbeat, self._heartbeat = self._heartbeat, None
            return agent_pb2.AgentMessage(heartbeat=heartbeat)
        if self._logs:
            return agent_pb2.AgentMessage(log=self._logs.popleft())
        if self._questions:
            return agent_pb2.AgentMessage(read_checkpoint=self._questions.popleft())
        if self._checkpoints:
            return agent_pb2.AgentMessage(checkpoint_data=self._checkpoints.popleft())
        if self._frames:
            return agent_pb2.AgentMessage(channel=self._next_frame())
        return None

    def _next_frame(self) -> channel_pb2.ChannelOutput:
        channel = next(iter(self._frames))
        waiting = self._frames.pop(channel)
        frame = waiting.popleft()
        if waiting:
            self._frames[channel] = waiting
        return frame
