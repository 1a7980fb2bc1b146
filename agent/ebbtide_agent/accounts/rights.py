"""Acts with an account's rights in place of root's: for a moment in one thread, or for ever in a new process.

A user can put links and directories into their own directories, and must not lead root through them, so files there are
touched with the user's rights only. The real uid stays root's meanwhile, so the user cannot signal or trace the thread.
"""

import ctypes
import encodings.ascii
import encodings.latin_1  # noqa: F401  imported early, because the account may not be able to read these files later
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from ebbtide_agent.accounts.accounts import Account

T = TypeVar("T")

_KEPT = -1
# Numbers of setgroups, setresgid and setresuid, whose C functions would change all threads of the process.
_CALLS: Final = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def rights_of(account: Account | None) -> Iterator[None]:
    """Let this thread act with the rights of the account until the block ends; None: with its own. Raises OSError."""
    if account is None:
        yield
        return
    before = os.getgroups()
    _call(0, len(account.groups), (ctypes.c_uint32 * len(account.groups))(*account.groups))
    try:
        _call(1, _KEPT, account.gid, _KEPT)
        _call(2, _KEPT, account.uid, _KEPT)
        yield
    finally:
        _call(2, _KEPT, 0, _KEPT)
        _call(1, _KEPT, 0, _KEPT)
        _call(0, len(before), (ctypes.c_uint32 * len(before))(*before))


def with_rights(account: Account | None, call: Callable[[], T]) -> T:
    """Make the call with the rights of the account, and return its result. Raises OSError, and what the call raises."""
    with rights_of(account):
        return call()


def become(account: Account) -> None:
    """Become a process of the account, without a way back; this process must have one thread only."""
    os.setgroups(account.groups)
    os.setresgid(account.gid, account.gid, account.gid)
    os.setresuid(account.uid, account.uid, account.uid)
    os.umask(0o077)


def _call(which: int, *arguments: object) -> None:
    numbers = _CALLS.get(platform.machine())
    if numbers is None:
        raise OSError(f"jobs of other accounts cannot be run on {platform.machine()}")
    passed = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    if _libc.syscall(ctypes.c_long(numbers[which]), *passed) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot act with another account's rights: {os.strerror(code)}")
