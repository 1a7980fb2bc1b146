"""Pack a working directory into an archive that depends only on its files: sorted, without times and owners."""

import hashlib
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from ebbtide_core.model.workdir_snapshot import SnapshotRef

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.snapshot.files import Entry
from ebbtide_cli.terminal.text import printable
from ebbtide_cli.values import format_size

BLOCK: Final = tarfile.BLOCKSIZE
WINDOW_BYTES: Final = 512 * 1024
_GZIP: Final = 31
_FASTEST: Final = 1
_NAMED: Final = 5

Progress = Callable[[int, int], None]
"""A function that is called with the bytes that are done and the bytes in all."""


def check_size(entries: Sequence[Entry], limit: int) -> None:
    """Raise `Failure`, which names the largest files, if all together are over ``limit`` bytes."""
    total = sum(entry.size for entry in entries)
    if total <= limit:
        return
    largest = sorted(entries, key=lambda entry: entry.size, reverse=True)[:_NAMED]
    named = ", ".join(f"{printable(entry.path)} ({format_size(entry.size)})" for entry in largest)
    raise Failure(
        f"submit: --snapshot: {format_size(total)} are over the limit of {format_size(limit)}; the largest are {named}"
        ": name what is not needed in .gitignore or .ebbignore, or raise --snapshot-limit",
        USAGE,
    )


def take(root: Path, entries: Sequence[Entry], progress: Progress) -> SnapshotRef:
    """Compute the digest and the size of the archive."""
    digest, size = hashlib.sha256(), 0
    total = sum(entry.size for entry in entries)
    for block in archive(root, entries):
        digest.update(block)
        size += len(block)
        progress(min(size, total), total)
    return SnapshotRef(digest.hexdigest(), size)


def compressed(root: Path, entries: Sequence[Entry], progress: Progress) -> Iterator[bytes]:
    """Yield the archive, compressed for sending, in pieces of `WINDOW_BYTES`."""
    press, window, done = zlib.compressobj(_FASTEST, wbits=_GZIP), bytearray(), 0
    total = sum(entry.size for entry in entries)
    for block in archive(root, entries):
        window += press.compress(block)
        done += len(block)
        progress(min(done, total), total)
        while len(window) >= WINDOW_BYTES:
            yield bytes(window[:WINDOW_BYTES])
            del window[:WINDOW_BYTES]
    yield bytes(window + press.flush())


def archive(root: Path, entries: Sequence[Entry]) -> Iterator[bytes]:
    """Yield the bytes of the archive."""
    for entry in entries:
        if entry.link is not None:
            yield _header(entry, 0)
        else:
            yield from _file(root, entry)
    yield bytes(2 * BLOCK)


def _file(root: Path, entry: Entry) -> Iterator[bytes]:
    """Yield one file; read no more bytes of it than it had when it was opened."""
    try:
        with open(os.open(root / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            left = os.fstat(file.fileno()).st_size
            yield _header(entry, left)
            padding = -left % BLOCK
            while left:
                data = file.read(min(left, WINDOW_BYTES))
                if not data:
                    raise Failure(f"submit: --snapshot: {printable(entry.path)} became shorter while it was read")
                yield data
                left -= len(data)
    except OSError as error:
        raise Failure(f"submit: --snapshot: {printable(entry.path)}: {error.strerror}", USAGE) from None
    yield bytes(padding)


def _header(entry: Entry, size: int) -> bytes:
    info = tarfile.TarInfo(entry.path)
    info.size, info.mode = size, 0o755 if entry.executable else 0o644
    if entry.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, entry.link
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
