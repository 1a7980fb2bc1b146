"""What waits to be sent to the master: a big copy delays nothing else."""

from ebbtide_agent.link.outbox import Outbox
from ebbtide_protos.v1 import agent_pb2, channel_pb2


async def test_statuses_and_heartbeats_overtake_frames_and_channels_take_turns():
    outbox = Outbox()
    for channel in (1, 1, 1, 2):
        outbox.put_frame(channel_pb2.ChannelOutput(channel=channel, data=b"x"))
    outbox.put_heartbeat(agent_pb2.Heartbeat())
    outbox.put_status(agent_pb2.AttemptStatus(job_id="1", attempt=1))
    taken = [await outbox.take() for _ in range(6)]
    assert [message.WhichOneof("body") for message in taken] == ["status", "heartbeat", *["channel"] * 4]
    assert [message.channel.channel for message in taken[2:]] == [1, 2, 1, 1]
