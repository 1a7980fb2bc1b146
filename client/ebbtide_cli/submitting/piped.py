"""What is given to `ebb run` on standard input, which no job has: it is refused, or said to be lost."""

import fcntl
import os
import stat
import struct
import termios

from ebbtide_cli.errors import USAGE, Failure

_STDIN = 0


def refuse_input() -> None:
    """Raise `Failure` if a pipe or file on standard input has something that the job would not get."""
    if is_input_waiting():
        raise Failure(
            "run: a job gets no standard input, and something was given: name a file in its command, pipe into "
            "'ebb exec ID -- CMD' once a job runs, or add </dev/null to do without",
            USAGE,
        )


def is_input_waiting() -> bool:
    """Whether a pipe or file on standard input has something to read now, which is left where it is."""
    try:
        facts = os.fstat(_STDIN)
        if stat.S_ISREG(facts.st_mode):
            return facts.st_size > os.lseek(_STDIN, 0, os.SEEK_CUR)
        if not (stat.S_ISFIFO(facts.st_mode) or stat.S_ISSOCK(facts.st_mode)):
            return False
        (count,) = struct.unpack("i", fcntl.ioctl(_STDIN, termios.FIONREAD, bytes(4)))
    except OSError:  # it is closed, or cannot be asked
        return False
    return bool(count > 0)
