"""Confines a process that was just forked, so that it may read a user's files: with their rights, and no others."""

import os
import resource
import signal
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.accounts.rights import become
from ebbtide_agent.processes import linux

_MEMORY_BYTES = 2 * 1024**3
HELPER: Final = "ebb:helper"
"""Name of such a process."""
_PATH = "/usr/local/bin:/usr/bin:/bin"


def confine(account: Account | None, kept: Collection[int], parent: int) -> None:
    """Become a process of the account (None: of the same one) with the standard streams and the `kept` descriptors.

    It dies with its parent, whose pid is `parent`. Raises OSError.
    """
    detach(kept)
    os.environ.clear()
    os.environ.update({"PATH": _PATH, "LANG": "C.UTF-8", **({} if account is None else account.environment)})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    room = _MEMORY_BYTES if most == resource.RLIM_INFINITY else min(most, _MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    linux.renounce_new_privileges()
    if account is not None:
        become(account)
    linux.die_with_parent()  # last, because a change of account cancels it
    if os.getppid() != parent:
        os._exit(0)


def detach(kept: Collection[int]) -> None:
    """Drop the parent's signal handlers, descriptors except the `kept` ones, directory and name. Raises OSError."""
    _forget_signals()
    _keep_only(kept)
    os.chdir("/")
    linux.set_process_name(HELPER)


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def _keep_only(kept: Collection[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with suppress(OSError):  # the listing's own descriptor is closed already
                os.close(int(name))
