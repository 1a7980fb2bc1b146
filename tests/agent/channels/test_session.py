"""The session of a shell: it stays when its user leaves."""

import os

from ebbtide_core.model import limits
from ebbtide_protos.v1 import channel_pb2, job_pb2

from tests.agent.channels.end import End

SHELL = {"kind": job_pb2.JOB_KIND_SHELL, "env": {"PATH": os.environ["PATH"], "PS1": "$ "}}
SIZE = channel_pb2.AttachSession(size=channel_pb2.WindowSize(rows=33, columns=111))


async def test_a_shell_has_the_size_of_the_window_and_ends_the_job_with_its_exit_code(agent):
    async with agent() as node:
        await node.launch(["sh"], **SHELL)
        await node.running()
        end = End(node)
        channel = end.open(session=SIZE)
        end.give(channel, data=b"stty size; exit 3\n")
        assert (await end.end(channel)).exit_code == 3
        assert b"33 111" in end.out(channel)
        assert (await node.end()).exit.exit_code == 3


async def test_who_comes_back_sees_what_was_shown_last_and_finds_the_same_shell(agent):
    async with agent() as node:
        await node.launch(["sh"], **SHELL)
        await node.running()
        end = End(node)
        first = end.open(session=SIZE)
        end.give(first, data=b"X=kept; echo see$((1+1))\n")
        await end.until(lambda: b"see2" in end.out(first))
        end.give(first, close="gone")
        again = end.open(session=SIZE)
        await end.until(lambda: b"see2" in end.out(again))
        end.give(again, data=b"echo $X; exit\n")
        assert (await end.end(again)).exit_code == 0
        assert b"kept\r\n" in end.out(again)


async def test_whoever_attaches_later_takes_the_session_over(agent):
    async with agent() as node:
        await node.launch(["cat"], **SHELL)
        await node.running()
        end = End(node)
        first = end.open(session=SIZE)
        end.give(first, data=b"hello\n")
        await end.until(lambda: b"hello" in end.out(first))
        second = end.open(session=SIZE)
        assert "taken over" in (await end.end(first)).error
        end.give(second, data=b"again\n\x04")
        assert (await end.end(second)).exit_code == 0


async def test_a_slow_reader_stops_the_shell_and_loses_nothing(agent):
    async with agent() as node:
        await node.launch(["sh", "-c", "stty raw -echo; echo up; read x; seq 200000; echo done"], **SHELL)
        await node.running()
        end = End(node)
        channel = end.open(acknowledge=False, session=SIZE)
        await end.until(lambda: b"up" in end.out(channel))
        end.give(channel, data=b"\n")
        await end.until(lambda: len(end.out(channel)) == limits.CHANNEL_WINDOW_BYTES)
        end.acknowledges[channel] = True
        end.give(channel, consumed=limits.CHANNEL_WINDOW_BYTES)
        assert (await end.end(channel)).exit_code == 0
        numbers = end.out(channel).partition(b"up\n")[2].split()
        assert numbers == [b"%d" % i for i in range(1, 200001)] + [b"done"]


async def test_a_stopped_session_hangs_up_on_its_shell(agent):
    async with agent() as node:
        await node.launch(
            ["sh", "-c", "trap 'echo hung up; exit 5' HUP; echo up; while :; do sleep 0.05; done"], **SHELL
        )
        await node.running()
        end = End(node)
        channel = end.open(session=SIZE)
        await end.until(lambda: b"up" in end.out(channel))
        status = await node.stop()
        assert (status.exit.exit_code, status.exit.killed) == (5, False)
        assert b"hung up" in end.out(channel)


async def test_a_shell_that_is_not_there_is_said(agent):
    async with agent() as node:
        await node.launch(["no-such-shell"], **SHELL)
        assert (await node.end()).exit.exit_code == 127
