"""Windows of a log that grows, ends, and is forgotten."""

import asyncio

import pytest

from tests.agent.supervisor.node import DEADLINE_S, Node, python

GATED = r"""
import os, sys, time
for n, gate in enumerate(sys.argv[1:]):
    os.write(1, b"line %d\n" % n)
    while not os.path.exists(gate):
        time.sleep(0.005)
os.write(1, b"end\n")
"""


async def read(node: Node, offset: int = 0, max_bytes: int = 1000, wait_s: float = 0.0, attempt: int = 1):
    window = await node.attempts.access.read_log("1", attempt, offset, max_bytes, wait_s)
    return window.data, window.end, window.error


async def test_a_finished_log_is_read_in_windows_up_to_its_end(agent):
    async with agent() as node:
        await node.run(["printf", "0123456789"])
        assert await read(node, 0, 4) == (b"0123", False, "")
        assert await read(node, 4, 4) == (b"4567", False, "")
        assert await read(node, 8, 4) == (b"89", True, "")
        assert await read(node, 10, 4) == (b"", True, "")
        assert await read(node, 999, 4) == (b"", True, "")


async def test_a_reader_that_waits_is_answered_when_a_line_is_written(agent, tmp_path):
    async with agent() as node:
        gate = tmp_path / "gate"
        await node.launch(python(GATED, str(gate)))
        assert await read(node, 0, wait_s=DEADLINE_S) == (b"line 0\n", False, "")
        waiting = asyncio.create_task(read(node, 7, wait_s=DEADLINE_S))
        gate.touch()
        data, _, _ = await waiting
        assert data == b"end\n"
        await node.end()
        assert await read(node, 11, wait_s=DEADLINE_S) == (b"", True, "")


async def test_a_reader_that_waits_at_the_end_is_told_when_the_attempt_is_over(agent, tmp_path):
    async with agent() as node:
        gate = tmp_path / "gate"
        await node.launch(["sh", "-c", 'while [ ! -e "$0" ]; do sleep 0.01; done', str(gate)])
        waiting = asyncio.create_task(read(node, 0, wait_s=DEADLINE_S))
        gate.touch()
        assert await waiting == (b"", True, "")


async def test_waiting_for_a_quiet_log_has_an_end(agent, tmp_path):
    async with agent() as node:
        await node.launch(python(GATED, str(tmp_path / "never")))
        await node.running(line="line 0")
        assert await read(node, 7, wait_s=0.05) == (b"", False, "")
        assert await read(node, 7) == (b"", False, "")


async def test_a_log_that_its_job_has_made_longer_than_what_it_printed_is_read_to_its_end(agent):
    size = 1 << 30
    async with agent() as node:
        await node.run(python(f"import os\nos.write(1, b'line\\n')\nos.truncate('/proc/self/fd/1', {size})"))
        printed = await node.attempts.access.read_log("1", 1, 0, 1 << 20, 0.0)
        assert printed.data.strip(b"\0") == b"line\n"  # with the rest of its block
        rest = await node.attempts.access.read_log("1", 1, printed.next, 1 << 20, 0.0)
        assert b"bytes of output are not kept" in rest.data
        assert (rest.next, rest.end) == (size, True)


async def test_bytes_that_are_no_text_come_through(agent):
    async with agent() as node:
        await node.run(["printf", r"\377\000\033[31m"])
        assert (await read(node))[0] == b"\xff\0\x1b[31m"


async def test_a_forgotten_attempts_log_can_be_read_by_a_later_agent(agent):
    async with agent() as node:
        await node.run(["echo", "kept"])
        await node.attempts.forget("1", 1)
        assert await read(node) == (b"kept\n", True, "")
    async with agent() as node:
        assert await read(node) == (b"kept\n", True, "")


async def test_the_log_of_a_refused_attempt_is_empty(agent):
    async with agent() as node:
        await node.run(["no-such-command"])
        assert await read(node, wait_s=DEADLINE_S) == (b"", True, "")


async def test_a_log_that_somebody_removed_is_said_to_be_gone(agent):
    async with agent() as node:
        await node.run(["echo", "x"])
        node.place().output.unlink()
        assert await read(node, wait_s=DEADLINE_S) == (b"", True, "the log is gone")


async def test_an_attempt_that_was_never_here_has_no_log(agent):
    async with agent() as node:
        assert (await read(node, attempt=9))[2] == "attempt 9 of job 1 was never on this node"


@pytest.mark.parametrize("job_id", ["..", "../..", "/etc", "1/../2", ""])
async def test_no_job_id_leads_out_of_the_attempts(agent, job_id):
    async with agent() as node:
        window = await node.attempts.access.read_log(job_id, 1, 0, 100, 0.0)
        assert "was never on this node" in window.error
        assert window.data == b""


async def test_a_link_in_place_of_a_log_is_not_followed(agent, tmp_path):
    async with agent() as node:
        await node.run(["echo", "x"])
        secret = tmp_path / "secret"
        secret.write_text("secret")
        node.place().output.unlink()
        node.place().output.symlink_to(secret)
        data, _, error = await read(node)
        assert data == b""
        assert "cannot be read" in error
