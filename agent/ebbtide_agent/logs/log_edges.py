"""Where in a log its last lines begin, or what was printed since some time.

Nothing that a job prints has a time. While it runs, its supervisor notes now and then how long the log is
(`ebbtide_agent.supervisor.log_times`); so what is looked for is found up to some seconds too early, and never too late.
"""

import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_agent.logs.log_file import first_data

BLOCK: Final = 64 * 1024
TAIL_BYTES: Final = 16 * 1024 * 1024
"""Of the end of a log in which lines are looked for."""
LINE_BYTES: Final = 4096
"""Of a line that was being printed at that time; of a longer one the beginning is left out."""


@dataclass(frozen=True, slots=True)
class LogEdge:
    """The last so many lines, or what was printed since that time, in Unix seconds; either is 0."""

    tail: int = 0
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Begin:
    """An offset in a log, and of the last lines, how many follow."""

    offset: int
    lines: int = 0


def times_path(log: Path) -> Path:
    """Where it is noted how long the log was when."""
    return log.with_name(f"{log.name}.times")


def edge_of(log: Path, edge: LogEdge) -> Begin:
    """Where that is; at the end of a log that does not exist. Blocks. Raises OSError."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return Begin(0)
    try:
        return _tail(descriptor, edge.tail) if edge.tail else Begin(_since(descriptor, log, edge.since))
    finally:
        os.close(descriptor)


def _tail(descriptor: int, lines: int) -> Begin:
    size = os.fstat(descriptor).st_size
    begin = end = size
    found = 0  # ends of lines behind `end`, but for that of the very last line
    while end > max(0, size - TAIL_BYTES):
        start = (end - 1) // BLOCK * BLOCK
        if first_data(descriptor, start) > start:  # what was before is not kept
            break
        block = os.pread(descriptor, end - start, start)
        at = len(block) - 1 if end == size and block.endswith(b"\n") else len(block)
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            found, begin = found + 1, start + at + 1
            if found == lines:
                return Begin(begin, lines)
        end = start
    return Begin(end, found + (end < begin))


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
    """When it was looked how long the log was, and how long; a line that is not whole counts for nothing."""
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
