"""Room on the disk that is kept for when there is none: what was accepted can still be told of, and ended."""

import os
from pathlib import Path
from typing import Final

from ebbtide_core.model.limits import MIB

RESERVE_BYTES: Final = 8 * MIB
"""Enough for a thousand commits."""


class Reserve:
    """A file at ``path`` that takes the room; given up when nothing else is left, and taken again when there is."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def held(self) -> bool:
        """Whether it has not been given up."""
        return self._path.exists()

    def take(self, beside: int) -> None:
        """Keep the room, if the disk has so many bytes more."""
        if self.held or free_bytes(self._path.parent) < beside + RESERVE_BYTES:
            return
        draft = self._path.with_suffix(".tmp")
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            draft.rename(self._path)
        except OSError:  # somebody else was faster: there will be another time
            draft.unlink()
        finally:
            os.close(descriptor)

    def give_up(self) -> bool:
        """Give the room back; whether there was any."""
        held = self.held
        self._path.unlink(missing_ok=True)
        return held


def free_bytes(folder: Path) -> int:
    """Bytes that an ordinary account may still write there."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
