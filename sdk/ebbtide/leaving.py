"""The way out of a job that is suspended: with all that Python owes the script, and without taking torch apart.

That would take a tenth of a second and more, in which the GPU stays taken; the kernel does it in less.
"""

import atexit
import fcntl
import os
import stat
import sys
import weakref

SUSPENDED = 85  # the exit code that says: saved, run me again later

# These finish their work in handlers of C, which only an ordinary exit calls.
_NEED_AN_ORDINARY_EXIT = frozenset({"mpi4py.MPI"})


class Leave(SystemExit):
    """Ends the process with 85, and saves it the interpreter's own end if nothing is lost by that.

    Anybody may catch it and go on, or end with another code. `finally` blocks, threads that are waited for and atexit
    handlers have their turn as after every SystemExit, and standard output is flushed.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__(SUSPENDED)
        self._job_id = job_id

    @property
    def code(self) -> int:  # type: ignore[override]  # it is only ever read
        """85. Read from below all frames it is read by the interpreter, which then ends the process with it."""
        if sys._getframe().f_back is None:
            atexit.register(self._leave)  # the last to be registered is the first to be called
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
    """Have torch not take its table of operators apart at exit, one by one."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        found = finalizer.peek()
        if found is not None and getattr(found[1], "__module__", "") == "torch.library":
            finalizer.atexit = False


def _may_lose_data(lock: str) -> bool:
    """Whether a file is being written: what is buffered for it, or the end that it still lacks, may not be in it.

    The job's lock, which every process of it inherits, is none of the script's.
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
        return False  # the one that listed the others
    # A file without a name is gone when its last process is.
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
