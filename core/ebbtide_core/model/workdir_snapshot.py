"""Names the archive of a working directory that was packed at submit; every attempt of the job begins with it."""

import re
from typing import Final

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.limits import MIB

MAX_SNAPSHOT_BYTES: Final = 1024 * MIB
"""Bytes of an unpacked archive."""
_DIGEST: Final = r"[0-9a-f]{64}"


@frozen
class SnapshotRef:
    """An archive, named by the SHA-256 digest and the size of its contents before compression."""

    digest: str
    bytes: int


def is_digest(text: str) -> bool:
    """Return whether ``text`` can be the digest of an archive, and so a part of a path."""
    return re.fullmatch(_DIGEST, text) is not None


def check(snapshot: SnapshotRef) -> None:
    """Raise ``ValueError`` if no archive can have this digest and size."""
    if not is_digest(snapshot.digest):
        raise ValueError(f"{snapshot.digest[:80]!r} is not a SHA-256 digest")
    if not 0 < snapshot.bytes <= MAX_SNAPSHOT_BYTES:
        raise ValueError(f"{snapshot.bytes} bytes are over the limit of {MAX_SNAPSHOT_BYTES}")
