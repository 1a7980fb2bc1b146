"""Finds where in a log its last lines begin, or what was printed since some time.

What a job prints carries no time. While it runs, its supervisor records now and then how long the log is
(`ebbtide_agent.supervisor.streams.log_times`), so the place is found up to some seconds too early, and never too late.
"""

import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_agent.logs.log_file import first_data

BLOCK: Final = 64 * 1024
TAIL_BYTES: Final = 16 * 1024 * 1024
"""Bytes at the end of a log in which the last lines are looked for."""
LINE_BYTES: Final = 4096
"""Bytes in which the beginning of the line is looked for that was being printed then; a longer line is cut off."""


@dataclass(frozen=True, slots=True)
class LogEdge:
    """The last `tail` lines, or what was printed since `since`, in Unix seconds; one of the two is 0."""

    tail: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class LogOffset:
    """An offset in a log, and how many lines follow, if the last lines were looked for."""

    offset: int
    lines: int = 0


def times_path(log: Path) -> Path:
    """Return the path of the file that records how long the log was at which time."""
    return log.with_name(f"{log.name}.times")


def edge_of(log: Path, edge: LogEdge) -> LogOffset:
    """Return where the edge is in the log; offset 0 if the log does not exist. Blocks. Raises OSError."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return LogOffset(0)
    try:
        return _tail(descriptor, edge.tail) if edge.tail else LogOffset(_since(descriptor, log, edge.since))
    finally:
        os.close(descriptor)


def _tail(descriptor: int, lines: int) -> LogOffset:
    size = os.fstat(descriptor).st_size
    begin = end = size
    found = 0  # ends of lines behind `end`, except that of the very last line
    while end > max(0, size - TAIL_BYTES):
        start = (end - 1) // BLOCK * BLOCK
        if first_data(descriptor, start) > start:  # what was before is not kept
            break
        block = os.pread(descriptor, end - start, start)
        at = len(block) - 1 if end == size and block.endswith(b"\n") else len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            found, begin = found + 1, start + at + 1
            if found == lines:
                return LogOffset(begin, lines)
        end = start
    return LogOffset(end, found + (end < begin))


def _since(descriptor: int, log: Path, since: float) -> int:
    facts = os.fstat(descriptor)
    if facts.st_mtime < since:
        return facts.st_size
    times, sizes = _noted(times_path(log))
    index = bisect_right(times, since)
    offset = min(sizes[index - 1], facts.st_size) if index else 0
    start = max(0, offset - LINE_BYTES)
    before = os.pread(descriptor, offset - start, start)
    end_of_line = before.rfind(b"\n")
    return start + end_of_line + 1 if end_of_line >= 0 or not start else offset


def _noted(path: Path) -> tuple[list[float], list[int]]:
    """Return the recorded times and the log's length at each; a line that is not whole is left out."""
    times, sizes = list[float](), list[int]()
    try:
        text = path.read_text()
    except FileNotFoundError:
        return times, sizes
    for line in text.splitlines():
        time, _, size = line.partition(" ")
        try:
            pair = float(time), int(size)
        except ValueError:
            continue
        if times and (pair[0] < times[-1] or pair[1] < sizes[-1]):  # a clock was set back
            continue
        times.append(pair[0])
        sizes.append(pair[1])
    return times, sizes
