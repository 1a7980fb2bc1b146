"""Note a log's size at points in time, so that the output since a time can be found (`logs.log_edges`)."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ebbtide_agent.logs.log_edges import times_path

APART_S: Final = 10.0
"""Least seconds between two notes about a log. A log that does not grow gets none, nor does a shorter attempt's."""


class LogTimes:
    """Notes the sizes of one attempt's log files. The notes are hints: when the disk is full, there are none."""

    def __init__(self, logs: Sequence[Path], now: Callable[[], float] = time.time) -> None:
        self._noted = dict.fromkeys(logs, (now(), 0))  # time and size of the last note
        self._now = now

    def look(self, *, final: bool = False) -> bool:
        """Note the size of each log that has grown. Return False, because growth alone asks for no earlier look."""
        now = self._now()
        for log, (at, before) in self._noted.items():
            with suppress(OSError):
                size = os.lstat(log).st_size
                if size > before and abs(now - at) >= APART_S:
                    _append(times_path(log), f"{now:.1f} {size}\n")
                    self._noted[log] = now, size
        return False


def _append(path: Path, line: str) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
