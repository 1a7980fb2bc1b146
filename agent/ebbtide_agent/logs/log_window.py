"""Reads windows of an attempt's log file, which may still grow, or not exist yet."""

import asyncio
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.logs.log_edges import LogEdge, edge_of
from ebbtide_agent.logs.log_file import Window, read_window

# One answer must fit into one message.
_LARGEST = 1024 * 1024
# A line is seen soon after it is written, yet a quiet log costs next to nothing.
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.05
_PAUSE_GROWTH = 1.3


async def read(
    path: Path, offset: int, max_bytes: int, wait_s: float, is_over: Callable[[], bool]
) -> agent_pb2.LogData:
    """Return at most `max_bytes` of the log from `offset` on, as soon as there is data.

    Return nothing if `is_over` says that no more will come, or after `wait_s` seconds without data.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    pause_s = _FIRST_PAUSE_S
    while True:
        window = _read(path, offset, min(max_bytes, _LARGEST), is_over)
        if window.data or window.end or window.error or loop.time() >= deadline:
            return window
        await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))
        pause_s = min(pause_s * _PAUSE_GROWTH, _LONGEST_PAUSE_S)


async def find(path: Path, edge: LogEdge) -> agent_pb2.LogData:
    """Return where the edge is in the log, without the data that begins there."""
    try:
        begin = await on_daemon_thread(partial(edge_of, path, edge))
    except OSError as error:
        return agent_pb2.LogData(error=f"the log cannot be read: {error.strerror}")
    return agent_pb2.LogData(next=begin.offset, lines=begin.lines)


def _read(path: Path, offset: int, max_bytes: int, is_over: Callable[[], bool]) -> agent_pb2.LogData:
    # Ask before reading: if the job is over by now, nothing is written any more, and the end that is read is final.
    over = is_over()
    try:
        # The log belongs to its job, which must not make the agent wait by a lease on it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except BlockingIOError:
        return agent_pb2.LogData()
    except FileNotFoundError:
        return agent_pb2.LogData(end=over, error="the log is gone" if over else "")
    except OSError as error:
        return agent_pb2.LogData(error=f"the log cannot be read: {error.strerror}")
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return agent_pb2.LogData(error="the log cannot be read: it is no file")
        size = os.fstat(descriptor).st_size
        window = read_window(descriptor, offset, max_bytes) if offset < size else Window(b"", offset)
    except OSError as error:
        return agent_pb2.LogData(error=f"the log cannot be read: {error.strerror}")
    finally:
        os.close(descriptor)
    return agent_pb2.LogData(data=window.data, end=over and window.next >= size, next=window.next)
