"""Processes that somebody starts inside a running attempt."""

import os
import signal

from ebbtide_core.model import limits
from ebbtide_machine.process import Identity
from ebbtide_protos.v1 import channel_pb2

from tests.agent.channels.end import End
from tests.agent.supervisor.node import gpus, python

SLEEP = python("print('up', flush=True); import time; time.sleep(600)")
YIELDING = python(
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(85)); print('up', flush=True)\n"
    "while True: time.sleep(0.05)"
)


async def test_a_command_inside_has_the_jobs_environment_and_directory(agent):
    async with agent() as node:
        await node.launch(SLEEP, workdir="/usr", gpus=gpus(1), env={"PATH": os.environ["PATH"], "MINE": "yes"})
        await node.running(line="up")
        end = End(node)
        channel = end.run("sh", "-c", "pwd; echo $MINE $EBB_JOB_ID.$EBB_ATTEMPT $CUDA_VISIBLE_DEVICES $TERM",
                          env={"TERM": "vt100"})  # fmt: skip
        assert (await end.end(channel)).exit_code == 0
        assert end.out(channel) == b"/usr\nyes 1.1 GPU-0 vt100\n"


async def test_its_exit_code_is_passed_on_and_is_not_the_jobs(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        end = End(node)
        channel = end.run("sh", "-c", "echo out; echo err >&2; exit 7")
        assert (await end.end(channel)).exit_code == 7
        assert (end.out(channel), end.errors(channel)) == (b"out\n", b"err\n")
        killed = end.run("sh", "-c", "kill -9 $$")
        assert (await end.end(killed)).signal == signal.SIGKILL
        assert node.status().phase == (await node.running()).phase
        status = await node.stop()
        assert status.exit.signal == signal.SIGTERM


async def test_a_megabyte_of_anything_goes_through_unchanged(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        end, data = End(node), os.urandom(2**20)
        channel = end.run("cat")
        await end.feed(channel, data)
        assert (await end.end(channel)).exit_code == 0
        assert end.out(channel) == data


async def test_a_reader_that_acknowledges_nothing_gets_one_window(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        end = End(node)
        channel = end.run("head", "-c", "3000000", "/dev/zero", acknowledge=False)
        await end.until(lambda: len(end.out(channel)) >= limits.CHANNEL_WINDOW_BYTES)
        other = end.run("true")
        await end.end(other)
        assert len(end.out(channel)) == limits.CHANNEL_WINDOW_BYTES
        assert all(len(message.data) <= limits.CHANNEL_FRAME_BYTES for message in end.said[channel])
        end.acknowledges[channel] = True
        end.give(channel, consumed=limits.CHANNEL_WINDOW_BYTES)
        await end.end(channel)
        assert len(end.out(channel)) == 3000000


async def test_a_terminal_has_the_size_of_its_window_and_hears_of_another(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        end = End(node)
        size = channel_pb2.WindowSize(rows=33, columns=111)
        watch = "tty > /dev/null && stty size; trap 'stty size; exit' WINCH; echo up; while :; do sleep 0.01; done"
        channel = end.run("bash", "-c", watch, terminal=True, size=size)
        await end.until(lambda: b"up" in end.out(channel))
        end.give(channel, size=channel_pb2.WindowSize(rows=50, columns=60))
        await end.end(channel)
        assert end.out(channel) == b"33 111\r\nup\r\n50 60\r\n"


async def test_who_goes_away_hangs_up_on_the_process(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        end = End(node)
        for terminal in (True, False):
            channel = end.run("sh", "-c", "echo $$; sleep 600", terminal=terminal)
            await end.until(lambda channel=channel: end.out(channel).endswith(b"\n"))
            process = Identity.of(int(end.out(channel)))
            end.give(channel, close="gone")
            await end.until(lambda process=process: not process.is_alive())
        assert (await node.running()).pid


async def test_it_ends_with_the_attempt_whatever_it_ignores(agent):
    async with agent() as node:
        await node.launch(YIELDING)
        await node.running(line="up")
        end = End(node)
        channel = end.run("sh", "-c", "trap '' TERM HUP INT; echo up; while :; do sleep 1; done")
        await end.until(lambda: end.out(channel))
        status = await node.stop()
        assert (status.exit.exit_code, status.exit.caught, status.exit.killed) == (85, True, False)
        assert (await end.end(channel)).signal == signal.SIGKILL
        await node.until(lambda: not node.processes())


async def test_a_handler_of_its_own_does_not_answer_for_the_job(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        end = End(node)
        channel = end.run(*YIELDING)
        await end.until(lambda: end.out(channel))
        status = await node.stop()
        assert (status.exit.signal, status.exit.caught) == (signal.SIGTERM, False)


async def test_what_cannot_be_started_is_said_in_one_line(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        end = End(node)
        assert (await end.end(end.run("no-such-program"))).error == (
            "cannot start no-such-program: No such file or directory"
        )
        assert (await end.end(end.open(job_id="2", port=1))).error == "attempt 1 of job 2 does not run on this node"


async def test_many_channels_at_once_do_not_mix(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        end = End(node)
        channels = [end.run("sh", "-c", f"for i in 1 2 3; do echo {i}; done; cat") for i in range(20)]
        for i, channel in enumerate(channels):
            await end.feed(channel, b"%d" % i * 1000)
        for i, channel in enumerate(channels):
            await end.end(channel)
            assert end.out(channel) == b"%d\n" % i * 3 + b"%d" % i * 1000


async def test_the_end_of_the_stream_to_the_master_ends_every_channel(agent):
    async with agent() as node:
        await node.launch(SLEEP)
        await node.running(line="up")
        end = End(node)
        channel = end.run("sh", "-c", "echo $$; sleep 600")
        await end.until(lambda: end.out(channel))
        process = Identity.of(int(end.out(channel)))
        await end.channels.detach()
        await end.until(lambda: not process.is_alive())
