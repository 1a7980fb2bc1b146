"""Where the last lines of a log begin, and what was printed since some time."""

import os

import pytest
from ebbtide_agent.logs.log_edges import BLOCK, LogEdge, LogOffset, edge_of, times_path
from ebbtide_agent.processes.linux import punch_hole
from ebbtide_agent.supervisor.streams.log_times import APART_S, LogTimes


@pytest.mark.parametrize(
    ("text", "lines", "end"),
    [
        (b"", 3, b""),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc"),
        (b"a\nb\n", 5, b"a\nb\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"x" * 3 * BLOCK + b"\nlast\n", 1, b"last\n"),
        (b"first\n" + b"x" * 3 * BLOCK + b"\nlast", 2, b"x" * 3 * BLOCK + b"\nlast"),
    ],
)
def test_the_last_lines_are_found(tmp_path, text, lines, end):
    log = tmp_path / "output.log"
    log.write_bytes(text)
    assert edge_of(log, LogEdge(tail=lines)) == LogOffset(len(text) - len(end), min(lines, len(end.splitlines())))


def test_lines_that_are_not_kept_are_not_looked_for(tmp_path):
    log = tmp_path / "output.log"
    log.write_bytes(b"line\n" * BLOCK)
    with open(log, "r+b") as file:
        punch_hole(file.fileno(), BLOCK, BLOCK)
    found = edge_of(log, LogEdge(tail=10**6))
    assert found.offset == 2 * BLOCK
    assert found.lines > 0


def test_of_a_log_that_does_not_exist_the_end_is_its_begin(tmp_path):
    assert edge_of(tmp_path / "output.log", LogEdge(tail=3)) == LogOffset(0)


def test_what_was_printed_since_begins_with_a_whole_line_and_never_too_late(tmp_path):
    log = tmp_path / "output.log"
    now = 1000.0
    times = LogTimes([log], lambda: now)
    for _ in range(5):
        with open(log, "ab") as file:
            file.write(b"at %d\nnot yet" % now)
        now += APART_S
        times.look()
        with open(log, "ab") as file:
            file.write(b" whole\n")
    os.utime(log, (now, now))
    text = log.read_bytes()
    since = edge_of(log, LogEdge(since=1000.0 + 2 * APART_S + 1)).offset
    assert text[since:].startswith(b"not yet whole\nat 1020\n")
    assert edge_of(log, LogEdge(since=900.0)).offset == 0
    assert edge_of(log, LogEdge(since=now + 1)).offset == len(text)


def test_a_log_is_noted_now_and_then(tmp_path):
    log, now = tmp_path / "output.log", 1000.0
    times = LogTimes([log], lambda: now)
    for _ in range(100):
        with open(log, "ab") as file:
            file.write(b"x\n")
        times.look()
        now += APART_S / 10
    assert len(times_path(log).read_text().splitlines()) == 9


def test_notes_that_are_damaged_count_for_nothing(tmp_path):
    log = tmp_path / "output.log"
    log.write_bytes(b"one\ntwo\n")
    times_path(log).write_text("5.0 4\nnonsense\n7.0 999999\n1.0 2\n8.")
    assert edge_of(log, LogEdge(since=6.0)).offset == 4
    assert edge_of(log, LogEdge(since=7.5)).offset == 8


async def test_the_end_of_an_attempts_log_is_known_also_when_it_is_forgotten(agent):
    async with agent() as node:
        await node.run(["printf", "one\\ntwo\\nthree\\n"])
        times_path(node.place().output).write_text("5.0 4\n")
        await node.attempts.forget("1", 1)
        assert times_path(node.place().output).exists()
        found = await node.attempts.access.read_log("1", 1, LogEdge(tail=2), 0, 0.0)
        assert (found.next, found.lines, found.error) == (4, 2, "")
