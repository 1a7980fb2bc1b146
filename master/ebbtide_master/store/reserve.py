"""Reserves room on the disk, so that on a full disk accepted jobs can still be reported and ended."""

import os
from pathlib import Path
from typing import Final

from ebbtide_core.model.limits import MIB

RESERVE_BYTES: Final = 8 * MIB
"""Bytes that are enough for a thousand commits."""


class DiskReserve:
    """A file at ``path`` that holds the room. It is removed when the disk is full, and made again later."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def held(self) -> bool:
        """Whether the reserve exists."""
        return self._path.exists()

    def take(self, beside: int) -> None:
        """Make the reserve, if the disk has ``beside`` bytes more than it."""
        if self.held or free_bytes(self._path.parent) < beside + RESERVE_BYTES:
            return
        draft = self._path.with_suffix(".tmp")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            draft.rename(self._path)
        except OSError:  # another process took the room; a later call tries again
            draft.unlink()
        finally:
            os.close(descriptor)

    def give_up(self) -> bool:
        """Remove the reserve, and return whether it existed."""
        held = self.held
        self._path.unlink(missing_ok=True)
        return held


def free_bytes(folder: Path) -> int:
    """Return the bytes that an ordinary account may still write on the filesystem of ``folder``."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
