"""Stores snapshots, the working directories that jobs were submitted with: one file each, named by its digest.

An upload is verified before it is kept. Nothing reads the remains of an upload that broke off, and the next master
removes them when it starts.
"""

import asyncio
import errno
import hashlib
import os
import secrets
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from ebbtide_core.cluster import Refusal, RefusalKind
from ebbtide_core.model import limits
from ebbtide_core.model.workdir_snapshot import SnapshotRef, is_digest

from ebbtide_master.loop import RefusedError
from ebbtide_master.store.reserve import free_bytes
from ebbtide_master.store.sqlite import RESERVED_BYTES

KEPT_S: Final = 24 * 3600.0
"""Seconds for which a snapshot is kept that no unfinished job needs: the next submit may have the same files."""
MOST_UPLOADS: Final = limits.MAX_UPLOADS
"""Uploads of all users at a time."""
WINDOW_BYTES: Final = 1024 * 1024
_GZIP: Final = 31
Needed = Mapping[str, Collection[str]]
"""The users whose unfinished jobs start from a snapshot, by its digest."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class SnapshotStore:
    """Keeps snapshots in ``folder``; a user may send ``per_user`` at a time, and have ``bytes_per_user`` in all."""

    def __init__(
        self,
        folder: Path,
        per_user: int = limits.MAX_UPLOADS_PER_USER,
        bytes_per_user: int = limits.SNAPSHOT_BYTES_PER_USER,
    ) -> None:
        self._folder = folder
        self._per_user = per_user
        self._bytes_per_user = bytes_per_user
        self._uploads: Counter[str] = Counter()
        self._arriving: Counter[str] = Counter()
        self._owners: dict[str, set[str]] = {}
        for part in folder.glob("*.part"):
            part.unlink()

    def has(self, snapshot: SnapshotRef, user: str) -> bool:
        """Whether ``snapshot`` is here, and ``user`` has sent it to this master; if so, it is kept for `KEPT_S` more.

        A user who knows a digest may not have the files, so each user has to send them once.
        """
        if user not in self._owners.get(snapshot.digest, ()):
            return False
        try:
            os.utime(self._path(snapshot.digest))
        except (OSError, ValueError):
            return False
        return True

    async def receive(
        self,
        snapshot: SnapshotRef,
        user: str,
        windows: AsyncIterator[bytes],
        needed: Needed,
    ) -> None:
        """Keep the archive that ``user`` sends if it is the ``snapshot``, else raise `RefusedError` and keep nothing.

        The snapshots that the user has sent to this master, and those ``needed`` by the user's unfinished jobs, count
        towards the user's bytes.
        """
        if self._uploads[user] >= self._per_user:
            raise _limited(f"{user} sends {self._per_user} at a time already, which is the limit")
        if self._uploads.total() >= MOST_UPLOADS:
            raise _limited(f"more than {MOST_UPLOADS} are sent at once")
        kept = self._make_room(user, needed)
        self._uploads[user] += 1
        arrived = 0
        part = self._folder / f"{snapshot.digest}.{secrets.token_hex(4)}.part"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with part.open("xb") as file:
                receiver = _Receiver(snapshot, file, self._folder)
                async for window in _prompt(windows):
                    arrived += len(window)
                    self._arriving[user] += len(window)
                    if (used := kept + self._arriving[user]) > self._bytes_per_user:
                        most = f"{self._bytes_per_user / limits.MIB:.0f} MiB"
                        raise _limited(f"{user} has {used / limits.MIB:.0f} MiB with this one: the limit is {most}")
                    await asyncio.to_thread(receiver.take, window)
                await asyncio.to_thread(receiver.finish)
            part.rename(self._path(snapshot.digest))
            self._owners.setdefault(snapshot.digest, set()).add(user)
        except OSError as error:
            if error.errno in _FULL:
                raise _disk_full() from None
            raise
        finally:
            self._uploads[user] -= 1
            self._arriving[user] -= arrived
            with suppress(FileNotFoundError):
                part.unlink()

    def _make_room(self, user: str, needed: Needed) -> int:
        """Return how many bytes ``user`` has here; above half the limit, remove first what no unfinished job needs."""
        theirs = {digest for whose in (self._owners, needed) for digest, users in whose.items() if user in users}
        sizes = {digest: self._size(digest) for digest in theirs}
        if sum(sizes.values()) > self._bytes_per_user // 2:
            for digest in theirs - needed.keys():
                if self._owners[digest] == {user}:
                    self._path(digest).unlink(missing_ok=True)
                    sizes[digest] = 0
                    del self._owners[digest]
        return sum(sizes.values())

    def _size(self, digest: str) -> int:
        try:
            return self._path(digest).stat().st_size
        except (OSError, ValueError):
            return 0

    def read(self, digest: str, offset: int, max_bytes: int) -> tuple[bytes, bool]:
        """Return a window of the compressed archive, and whether it is the last. Raises OSError, ValueError."""
        with self._path(digest).open("rb") as file:
            file.seek(offset)
            data = file.read(min(max_bytes, WINDOW_BYTES))
            return data, file.tell() == os.fstat(file.fileno()).st_size

    def collect(self, needed: Collection[str], now: float | None = None) -> None:
        """Remove the snapshots that are not among the ``needed`` digests and were not requested for `KEPT_S`."""
        limit = (time.time() if now is None else now) - KEPT_S
        for path in self._folder.glob("*.tar.gz"):
            with suppress(FileNotFoundError):
                if path.name.removesuffix(".tar.gz") not in needed and path.stat().st_mtime < limit:
                    path.unlink()
                    self._owners.pop(path.name.removesuffix(".tar.gz"), None)

    def _path(self, digest: str) -> Path:
        if not is_digest(digest):
            raise ValueError(f"{digest[:80]!r} is not a SHA-256 digest")
        return self._folder / f"{digest}.tar.gz"


class _Receiver:
    """Writes and unpacks what arrives, to verify size and digest, and stops at the announced size or at a full disk."""

    def __init__(self, snapshot: SnapshotRef, file: BinaryIO, folder: Path) -> None:
        self._snapshot = snapshot
        self._file = file
        self._folder = folder
        self._unpacked = 0
        self._digest = hashlib.sha256()
        self._unpack = zlib.decompressobj(_GZIP)

    def take(self, window: bytes) -> None:
        if free_bytes(self._folder) <= RESERVED_BYTES:  # its disk may be another one than the journal's
            raise _disk_full()
        self._file.write(window)
        while window:
            try:
                block = self._unpack.decompress(window, WINDOW_BYTES)
            except zlib.error as error:
                raise _damaged(f"it is not compressed as it should be: {error}") from None
            self._digest.update(block)
            self._unpacked += len(block)
            if self._unpacked > self._snapshot.bytes or self._unpack.unused_data:
                raise _damaged("it is larger than it was said to be")
            window = self._unpack.unconsumed_tail

    def finish(self) -> None:
        if not self._unpack.eof or self._unpacked != self._snapshot.bytes:
            raise _damaged(f"{self._unpacked} of {self._snapshot.bytes} bytes came")
        if self._digest.hexdigest() != self._snapshot.digest:
            raise _damaged("its digest differs: did files change during the upload?")
        self._file.flush()
        os.fsync(self._file.fileno())


async def _prompt(windows: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the same windows. Raises `RefusedError` if none comes for `limits.UPLOAD_IDLE_S`."""
    while True:
        try:
            async with asyncio.timeout(limits.UPLOAD_IDLE_S):
                window = await anext(windows, None)
        except TimeoutError:
            raise _limited(f"nothing was sent for {limits.UPLOAD_IDLE_S:g} s") from None
        if window is None:
            return
        yield window


def _disk_full() -> RefusedError:
    """Return the refusal of a snapshot for which the disk has no room."""
    return RefusedError(Refusal(RefusalKind.LIMIT, "the master's disk is full: no snapshot is taken for now"))


def _limited(why: str) -> RefusedError:
    return RefusedError(Refusal(RefusalKind.LIMIT, f"--snapshot: {why}"))


def _damaged(why: str) -> RefusedError:
    return RefusedError(Refusal(RefusalKind.CONFLICT, f"--snapshot: {why}"))
