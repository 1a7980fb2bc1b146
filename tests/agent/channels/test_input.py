"""What is sent to an attempt as its standard input, through a node's channels."""

import os
import signal

from ebbtide_agent.processes import procfs
from ebbtide_core.model import limits
from ebbtide_machine.process import Identity
from ebbtide_protos.v1 import channel_pb2

from tests.agent.channels.end import End
from tests.agent.supervisor.node import python

COUNTS = python("import sys; d = sys.stdin.buffer.read(); print(len(d), sum(d))")
INPUT = {"input": channel_pb2.FeedInput()}


def taken(end: End, channel: int) -> int:
    """How much the attempt had when the channel was opened."""
    return next(message.opened.input_taken for message in end.said[channel] if message.WhichOneof("body") == "opened")


async def opened(end: End) -> int:
    channel = end.open(**INPUT)
    await end.until(lambda: end.said[channel])
    return channel


async def test_a_megabyte_is_read_as_it_was_sent_and_the_channel_is_closed_when_all_is_taken(agent):
    async with agent() as node:
        await node.launch(COUNTS, stdin=True)
        await node.running()
        end, data = End(node), os.urandom(2**20)
        channel = await opened(end)
        await end.feed(channel, data)
        assert await end.end(channel) == channel_pb2.ChannelClosed()
        assert (await node.end()).exit.exit_code == 0
        assert node.log() == f"{len(data)} {sum(data)}\n"


async def test_who_comes_back_goes_on_where_the_attempt_is(agent):
    async with agent() as node:
        await node.launch(COUNTS, stdin=True)
        await node.running()
        end, data = End(node), bytes(range(256)) * 500
        first = await opened(end)
        end.give(first, data=data[:1000])
        await end.until(lambda: end.consumed(first) == 1000)
        await end.channels.detach()  # the stream to the master breaks
        end.channels.attach(end._put)
        second = await opened(end)
        assert taken(end, second) == 1000
        await end.feed(second, data[1000:])
        await end.end(second)
        await node.end()
        assert node.log() == f"{len(data)} {sum(data)}\n"


async def test_a_process_that_does_not_read_gets_as_much_as_a_pipe_holds_and_is_stopped_all_the_same(agent):
    async with agent() as node:
        await node.launch(python("print('up', flush=True); import time; time.sleep(600)"), stdin=True)
        await node.running(line="up")
        end = End(node)
        channel = await opened(end)
        for _ in range(limits.CHANNEL_WINDOW_BYTES // limits.CHANNEL_FRAME_BYTES):
            end.give(channel, data=bytes(limits.CHANNEL_FRAME_BYTES))
        await end.until(lambda: end.consumed(channel))
        assert end.consumed(channel) == limits.CHANNEL_FRAME_BYTES
        status = await node.stop()
        assert (status.exit.stop_requested, status.exit.input_failure) == (True, "")
        await end.end(channel)


async def test_a_supervisor_that_is_killed_does_not_end_the_input_of_its_process(agent, tmp_path):
    """It would take half of it for all of it, before anybody could end it."""
    async with agent() as node:
        await node.launch(["sh", "-c", "cat > got; touch end"], stdin=True, workdir=str(tmp_path))
        await node.running()
        end = End(node)
        channel = await opened(end)
        end.give(channel, data=b"half")
        await end.until(lambda: (tmp_path / "got").exists() and (tmp_path / "got").read_bytes() == b"half")
        guards = [Identity.of(pid) for pid in procfs.children(node.supervisor().pid)]
        os.kill(node.supervisor().pid, signal.SIGKILL)
        status = await node.end()
        assert status.lost
        await end.until(lambda: not any(process and process.is_alive() for process in guards))
        assert not (tmp_path / "end").exists()


async def test_a_job_without_input_is_given_none(agent):
    async with agent() as node:
        await node.launch(python("import sys; print(repr(sys.stdin.read()), flush=True); import time; time.sleep(600)"))
        await node.running(line="''")
        end = End(node)
        closed = await end.end(end.open(**INPUT))
        assert closed.error.startswith("no process listens there")
