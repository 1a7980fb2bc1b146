"""Opens the directory in which somebody else's process is to begin, on a way that they could go themselves.

Links in /proc such as /proc/self/cwd do not lead along a path: they open what the process has that looks, which is
ours, whoever may enter it. So no way leads through them.
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
    """The way leads through a link of /proc's."""


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_workdir(path: str) -> int:
    """A descriptor of the directory, opened with the rights that this thread has. Raises OSError."""
    how = _OpenHow(_FLAGS, 0, _NO_MAGIC_LINKS)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    descriptor = _libc.syscall(
        ctypes.c_long(_OPENAT2), ctypes.c_long(_AT_FDCWD), os.fsencode(path), ctypes.byref(how), size
    )
    if descriptor >= 0:
        return int(descriptor)
    code = ctypes.get_errno()
    if code == errno.ENOSYS:  # before Linux 5.6; then where the links lead must be reached along its path as well
        return os.open(os.path.realpath(path), _FLAGS)
    if code == errno.ELOOP:
        raise MagicLink(code, "leads through links of /proc, or through too many", path)
    raise OSError(code, os.strerror(code), path)
