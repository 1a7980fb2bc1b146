"""Ends the process of a suspended job: runs all that Python owes the script, but does not take torch apart.

Taking torch apart would last a tenth of a second and more, while the GPU stays in use; the kernel needs less.
"""

import atexit
import os
import stat
import sys
import weakref
from contextlib import suppress

with suppress(ImportError):  # Windows has none, and no process leaves a job there
    import fcntl

SUSPENDED = 85  # the exit code of a job that has saved and is to be run again later

# These modules finish their work in exit handlers of C, which only an ordinary exit calls.
_NEED_AN_ORDINARY_EXIT = frozenset({"mpi4py.MPI"})


class Leave(SystemExit):
    """Ends the process with exit code 85, and skips the interpreter's own shutdown if nothing is lost by that.

    A script may catch it and go on, or end with another code. As after every SystemExit, `finally` blocks run,
    non-daemon threads are waited for, atexit handlers run, and standard output is flushed.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(SUSPENDED)
        self._job_id = job_id

    @property
    def code(self) -> int:  # type: ignore[override]  # it is only ever read
        """Return 85. If no Python frame reads it, the interpreter does, and then ends the process with it."""
        if sys._getframe().f_back is None:
            atexit.register(self._leave)  # the handler that is registered last is called first
        return SUSPENDED

    def _leave(self) -> None:
        atexit.unregister(self._leave)
        _spare_torch()
        atexit._run_exitfuncs()
        if _NEED_AN_ORDINARY_EXIT & sys.modules.keys() or _may_lose_data(f"/{self._job_id}.lock"):
            return
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        _flush_c()
        os._exit(SUSPENDED)


def _spare_torch() -> None:
    """Keep torch from taking its table of operators apart at exit, one by one."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and getattr(found[1], "__module__", "") == "torch.library":
            finalizer.atexit = False


def _may_lose_data(lock: str) -> bool:
    """Return whether a file is open for writing: data that is buffered, or the file's end, may not be in it yet.

    The job's lock does not count: every process of the job inherits it, and no script writes it.
    """
    try:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return True  # not Linux
    return any(_is_written(descriptor) and not _name(descriptor).endswith(lock) for descriptor in descriptors)


def _is_written(descriptor: int) -> bool:
    try:
        facts = os.fstat(descriptor)
        mode = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:
        return False  # the descriptor that listed the others, closed by now
    # A file without a name is removed when its last process ends, so nothing in it can be lost.
    return descriptor > 2 and stat.S_ISREG(facts.st_mode) and facts.st_nlink > 0 and mode != os.O_RDONLY


def _name(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _flush_c() -> None:
    """Flush what libraries print through C's own buffers."""
    try:
        import ctypes
    except ImportError:
        return
    ctypes.CDLL(None).fflush(None)
