"""A file system that never answers, as a server of NFS that is gone, laid over a directory."""

import contextlib
import ctypes
import os
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

_NOSUID, _NODEV = 2, 4
_FORCE, _DETACH = 1, 2
_INIT = 26
_HEAD = struct.Struct("<IIQQIIII")
"""Of a request of FUSE: length, operation, number, node, uid, gid, pid, nothing."""


@contextlib.contextmanager
def hung(folder: Path, *, deeply: bool = False) -> Iterator[set[int]]:
    """Whoever looks into the folder waits until the block ends, and then gets an error.

    ``deeply``: what they ask is taken, and so not even SIGKILL ends them before; yields whose questions were.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    taken = set[int]()
    taking = threading.Thread(target=_take_all, args=(device, taken), daemon=True)
    try:
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
        if libc.mount(b"hung", os.fsencode(folder), b"fuse", _NOSUID | _NODEV, options):
            raise OSError(ctypes.get_errno(), "cannot mount a file system of FUSE", str(folder))
        answers = threading.Thread(target=_say_hello, args=(device,))
        answers.start()
        try:
            answers.join()
            if deeply:
                taking.start()
            yield taken
        finally:
            libc.umount2(os.fsencode(folder), _FORCE)
            libc.umount2(os.fsencode(folder), _DETACH)
            if taking.ident is not None:
                taking.join()  # or it reads from whoever gets its descriptor next
    finally:
        os.close(device)  # who waits gets an error now


def can_hang() -> bool:
    """Whether this machine lets us mount such a file system."""
    if os.geteuid() or not shutil.which("unshare") or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return False
    command = ["unshare", "--mount", "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


def _say_hello(device: int) -> None:
    """Answer the first request, which the kernel makes of every new file system; then never again."""
    request = os.read(device, 1 << 17)
    _, operation, number, *_ = _HEAD.unpack_from(request)
    assert operation == _INIT, operation
    body = struct.pack("<IIIIHHIIHHI", 7, 31, 65536, 0, 16, 12, 4096, 1, 0, 0, 0) + bytes(28)
    os.write(device, struct.pack("<IiQ", 16 + len(body), 0, number) + body)


def _take_all(device: int, taken: set[int]) -> None:
    """Take whatever is asked, until the file system is gone; note who asks."""
    with contextlib.suppress(OSError):
        while request := os.read(device, 1 << 17):
            taken.add(_HEAD.unpack_from(request)[6])
