"""However much a job prints: the disk that its log takes is bounded, the job goes on, readers see both ends."""

import asyncio
import os

import pytest
from ebbtide_agent.logs.log_file import read_window
from ebbtide_agent.supervisor.streams.log_cap import LogCap
from ebbtide_agent.supervisor.streams.output_file import OutputFile
from ebbtide_agent.supervisor.streams.ranks_output import RanksOutput
from ebbtide_protos.v1 import job_pb2

from tests.agent.supervisor.node import Node, gpus, order, python

MIB = 2**20
BLOCK = 64 * 1024
LINE = 64


class Log:
    """A log that something prints numbered lines into."""

    def __init__(self, path):
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lines = 0

    def grow(self, size):
        """Print so many bytes of lines that say where they stand."""
        lines = range(self._lines, self._lines + size // LINE)
        self._lines = lines.stop
        os.write(self._file, b"".join(b"%063d\n" % number for number in lines))

    @property
    def taken(self):
        return os.stat(self.path).st_blocks * 512

    @property
    def size(self):
        return self._lines * LINE

    def read(self, window=100_000):
        """All that a reader gets from the beginning on."""
        descriptor, offset, read = os.open(self.path, os.O_RDONLY), 0, b""
        while found := read_window(descriptor, offset, window):
            if not found.data:
                break
            assert found.next - offset == (found.dropped or len(found.data))
            offset, read = found.next, read + found.data
        os.close(descriptor)
        return read, offset

    def close(self):
        os.close(self._file)


@pytest.fixture
def log(tmp_path):
    found = Log(tmp_path / "output.log")
    yield found
    found.close()


def test_a_log_takes_no_more_than_its_limit_and_both_its_ends_are_kept(log):
    cap = LogCap([log.path], MIB)
    for _ in range(50):
        log.grow(MIB // 8)
        cap.look()
        assert log.taken <= MIB + MIB // 8
    text, end = log.read()
    head, _, tail = text.partition(b"\n[ebb: ")
    assert end == log.size
    assert head.startswith(b"%063d\n" % 0)
    assert len(head) >= MIB // 4 - BLOCK
    assert b"bytes of output are not kept" in tail
    assert tail.endswith(b"%063d\n" % (log.size // LINE - 1))
    assert len(tail) >= MIB // 2


def test_what_is_there_stands_where_it_was_printed(log):
    cap = LogCap([log.path], MIB)
    for _ in range(20):
        log.grow(MIB // 4)
        cap.look()
    descriptor = os.open(log.path, os.O_RDONLY)
    for offset in (0, MIB // 8 // LINE * LINE, log.size - MIB // 4):
        assert read_window(descriptor, offset, LINE).data == b"%063d\n" % (offset // LINE)
    os.close(descriptor)


def test_what_is_printed_behind_a_hole_at_the_end_is_read_from_there_on(log):
    log.grow(BLOCK)
    os.ftruncate(log._file, 10 * BLOCK)
    text, end = log.read()
    assert (end, text.count(b"bytes of output are not kept")) == (10 * BLOCK, 1)
    os.write(log._file, b"more\n")
    descriptor = os.open(log.path, os.O_RDONLY)
    assert read_window(descriptor, end, MIB).data == b"more\n"
    assert read_window(descriptor, end + BLOCK, MIB).data == b""
    os.close(descriptor)


def test_a_short_log_is_left_as_it_is(log):
    log.grow(MIB // 2)
    assert LogCap([log.path], MIB).look() in (True, False)
    assert log.read()[0] == log.path.read_bytes()
    assert log.taken >= MIB // 2


def test_on_a_disk_that_fills_up_less_is_kept(log):
    """Whoever prints leaves room for others who do."""
    left = 100 * MIB
    cap = LogCap([log.path], 64 * MIB, room=lambda _: left)
    log.grow(8 * MIB)
    cap.look()
    assert log.taken >= 8 * MIB
    left = MIB
    log.grow(MIB)
    cap.look()
    assert log.taken <= 6 * MIB
    left = 0
    for _ in range(10):
        log.grow(MIB)
        cap.look()
    assert log.taken <= 2 * MIB
    text, end = log.read()
    assert (end, b"or the disk is full" in text) == (log.size, True)


def test_a_reader_who_keeps_up_misses_nothing(log):
    cap = LogCap([log.path], MIB)
    descriptor, offset, read = os.open(log.path, os.O_RDONLY), 0, b""
    for _ in range(40):
        log.grow(MIB // 8)
        while (window := read_window(descriptor, offset, MIB)).data:
            offset, read = window.next, read + window.data
        cap.look()
    os.close(descriptor)
    assert read == b"".join(b"%063d\n" % number for number in range(log.size // LINE))


def test_a_file_that_the_output_is_copied_to_says_what_it_missed(log, tmp_path):
    copy = OutputFile(log.path, tmp_path / "copy")
    cap = LogCap([log.path], MIB)
    for _ in range(4):
        log.grow(2 * MIB)
        cap.look()
    copy.look(final=True)
    copy.close()
    text = (tmp_path / "copy").read_bytes()
    assert b"\0" not in text
    assert text.count(b"bytes of output are not kept") == 1
    assert text.endswith(b"%063d\n" % (log.size // LINE - 1))


def test_a_rank_that_prints_faster_than_the_ranks_are_put_together_is_said_to_be_cut(log, tmp_path):
    ranks = RanksOutput([("", log.path)], tmp_path / "all.log", tmp_path / "record")
    cap = LogCap([log.path], MIB)
    for _ in range(4):
        log.grow(2 * MIB)
        ranks.look()
        cap.look()
    ranks.look(final=True)
    ranks.close()
    text = (tmp_path / "all.log").read_bytes()
    assert b"\0" not in text
    assert b"bytes of output are not kept" in text
    assert text.endswith(b"%063d\n" % (log.size // LINE - 1))


def test_a_file_that_is_gone_or_a_link_harms_nobody(tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    assert LogCap([tmp_path / "gone", tmp_path / "link"], MIB).look() is False
    assert (tmp_path / "secret").read_text() == "secret"


FLOOD = """
import os, sys, time
line = b"x" * 1023 + b"\\n"
while not os.path.exists(sys.argv[1]):
    os.write(1, line * 64)
    time.sleep(0.005)
os.write(1, b"the end\\n")
"""


async def read_all(node: Node):
    """All that a reader gets, and where the log ends; as long as there is more to read, others have their turns."""
    offset, read = 0, bytearray()
    while True:
        window = await node.attempts.access.read_log("1", 1, offset, 256 * 1024, 5.0)
        assert window.error == ""
        offset = window.next
        read += window.data
        if window.end:
            return read, offset
        await asyncio.sleep(0)


async def test_a_job_that_prints_without_end_is_not_held_up_and_its_log_is_bounded(agent, tmp_path):
    async with agent() as node:
        gate = tmp_path / "gate"
        launch = order(python(FLOOD, str(gate)))
        launch.log_bytes = 2 * MIB
        await node.attempts.launch(launch)
        log = node.place().output
        await node.until(lambda: log.exists() and log.stat().st_size > 8 * MIB)
        following = asyncio.create_task(read_all(node))
        await node.until(lambda: log.stat().st_blocks * 512 < log.stat().st_size // 2)
        gate.touch()
        status = await node.end()
        assert (status.exit.exit_code, status.lost) == (0, False)
        assert log.stat().st_blocks * 512 <= 2 * MIB
        assert (await following)[1] == log.stat().st_size
        text, end = await read_all(node)
        assert end == log.stat().st_size
        assert text.startswith(b"xxx")
        assert text.endswith(b"x\nthe end\n")
        assert text.count(b"bytes of output are not kept") == 1


async def test_the_logs_of_all_ranks_share_one_limit(agent, tmp_path):
    async with agent() as node:
        code = "import os\nfor _ in range(64): os.write(1, (b'x' * 1023 + b'\\n') * 64)\n"
        launch = order(python(code), gpus=gpus(2), launch=job_pb2.LAUNCH_MODE_DDP)
        launch.log_bytes = 3 * MIB
        await node.attempts.launch(launch)
        await node.end()
        logs = [node.place().output, *node.place().path.glob("rank-*.log")]
        assert len(logs) == 3
        assert sum(path.stat().st_blocks * 512 for path in logs) <= 3 * MIB


def test_an_endless_line_comes_in_bounded_pieces_and_zeros_are_what_was_printed(log, tmp_path):
    os.write(log._file, b"\0" * (4 * MIB) + b"\x1b[2J" + b"y" * (4 * MIB))
    descriptor, offset, pieces = os.open(log.path, os.O_RDONLY), 0, []
    while (window := read_window(descriptor, offset, 256 * 1024)).data:
        assert window.dropped == 0
        offset, pieces = window.next, [*pieces, len(window.data)]
    os.close(descriptor)
    assert (max(pieces), sum(pieces)) == (256 * 1024, 8 * MIB + 4)
    ranks = RanksOutput([("[0] ", log.path)], tmp_path / "all.log", tmp_path / "record")
    ranks.look(final=True)
    ranks.close()
    assert (tmp_path / "all.log").read_bytes().replace(b"[0] ", b"") == log.path.read_bytes()
