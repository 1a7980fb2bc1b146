"""Find out whether a pipe or file is given to `ebb run`, which is then the job's standard input."""

import fcntl
import os
import select
import stat
import sys
from contextlib import suppress
from typing import Final

STDIN: Final = 0


def is_given() -> bool:
    """Whether standard input has something for a job, or may have it later; nothing is read from it.

    A terminal and /dev/null have nothing, nor has an input that is closed or at its end.
    """
    if sys.stdin is None:  # it was closed, and another file may have its number by now
        return False
    try:
        facts = os.fstat(STDIN)
        readable = fcntl.fcntl(STDIN, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY
    except OSError:
        return False
    if not readable or os.isatty(STDIN):
        return False
    return not (os.path.samestat(facts, os.stat(os.devnull)) or _is_at_end(facts.st_mode))


def _is_at_end(mode: int) -> bool:
    if stat.S_ISREG(mode):
        with suppress(OSError):  # the error is reported when the input is read
            return not os.pread(STDIN, 1, os.lseek(STDIN, 0, os.SEEK_CUR))
        return False
    asked = select.poll()
    asked.register(STDIN, select.POLLIN)
    return any(found & select.POLLHUP and not found & select.POLLIN for _, found in asked.poll(0))
