"""Open the directory in which another user's process is to begin, by a path that this user could follow.

Links in /proc such as /proc/self/cwd do not lead along a path: they open what the looking process, here the agent's,
has open, whether or not the user may enter it. So no path may lead through them.
"""

import ctypes
import errno
import os

_OPENAT2 = 437
_AT_FDCWD = -100
_NO_MAGIC_LINKS = 0x02
_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class MagicLink(OSError):
    """The path leads through a link of /proc."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_workdir(path: str) -> int:
    """Return a descriptor of the directory, opened with this thread's rights. Raises OSError."""
    how = _OpenHow(_FLAGS, 0, _NO_MAGIC_LINKS)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    descriptor = _libc.syscall(
        ctypes.c_long(_OPENAT2), ctypes.c_long(_AT_FDCWD), os.fsencode(path), ctypes.byref(how), size
    )
    if descriptor >= 0:
        return int(descriptor)
    code = ctypes.get_errno()
    if code == errno.ENOSYS:  # before Linux 5.6: the target of the links must then be reachable by its own path
        return os.open(os.path.realpath(path), _FLAGS)
    if code == errno.ELOOP:
        raise MagicLink(code, "leads through links of /proc, or through too many", path)
    raise OSError(code, os.strerror(code), path)
