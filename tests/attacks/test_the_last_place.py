"""What a node has for all of its users, one of whom takes all that can be had."""

import asyncio
from pathlib import Path

import pytest
from ebbtide_core.model import limits
from ebbtide_core.model.types import NodeId
from ebbtide_master.loop import RefusedError
from ebbtide_master.nodes import sessions
from ebbtide_master.nodes.channels import Channel, Channels
from ebbtide_master.throttle.fair_queue import use_queue
from ebbtide_protos.v1 import agent_pb2, channel_pb2, client_pb2

from tests.master.world import a_master


class Stream:
    def send_frame(self, frame: channel_pb2.ChannelInput) -> None:
        pass


async def test_one_user_does_not_take_the_last_channels_of_a_node() -> None:
    channels, stream, taken = Channels(), Stream(), list[Channel]()

    async def take(user: str, most: int) -> int:
        """As many as the user gets."""
        use_queue(user)
        for number in range(most):
            try:
                job = f"{user}{number // limits.MAX_CHANNELS_PER_JOB}"
                taken.append(channels.open(stream, NodeId("n1"), channel_pb2.OpenChannel(job_id=job)))
            except RefusedError:
                return number
        return most

    most = limits.MAX_CHANNELS_PER_NODE
    assert await take("eve", most) == most // 2
    assert await take("ann", most) == most // 4
    assert [await take(f"user{number}", 1) for number in range(10)] == [1] * 10
    channels.leave(taken[0])
    assert await take("eve", 1) == 0


async def test_one_user_who_follows_all_logs_does_not_keep_others_from_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_LOG_WAITS_PER_NODE", 2)
    monkeypatch.setattr(sessions, "LOG_PAUSE_S", 0.01)
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1")
        job = await master.running(agent)
        follow = client_pb2.ReadLogsRequest(job_id=job, follow=True)
        streams = [master.ask.ReadLogs(follow) for _ in range(2)]
        reading = [asyncio.ensure_future(stream.read()) for stream in streams]
        asked = [await agent.receive("read_log") for _ in reading]
        assert [request.wait for request in asked] == [True, False]
        for request in asked:
            data = agent_pb2.LogData(request_id=request.request_id, data=b"a line\n", next=7)
            await agent.send(log=data)
        assert [(await chunk).data for chunk in reading] == [b"a line\n"] * 2
        for stream in streams:
            stream.cancel()
