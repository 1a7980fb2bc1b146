"""Makes the few Linux calls that Python lacks, bound once in the spawner so that no supervisor pays for it."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2

_libc = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends. Not inherited. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def renounce_new_privileges() -> None:
    """Let no program that is executed from here on gain rights, not even by a set-user-id bit. Raises OSError."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends. Not inherited. Raises OSError."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def set_process_name(name: str) -> None:
    """Set the name that `ps -o comm` and `top` show, cut to 15 bytes. Raises OSError."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]))


def punch_hole(descriptor: int, offset: int, length: int) -> None:
    """Give bytes of a file back to the disk; they read as zeros, and the file keeps its length. Raises OSError."""
    mode = _FALLOC_FL_KEEP_SIZE | _FALLOC_FL_PUNCH_HOLE
    if _libc.fallocate(descriptor, mode, ctypes.c_int64(offset), ctypes.c_int64(length)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _prctl(option: int, value: int | ctypes.c_char_p) -> None:
    argument = ctypes.c_ulong(value) if isinstance(value, int) else value
    none = ctypes.c_ulong(0)
    if _libc.prctl(option, argument, none, none, none) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
