"""A working directory that was packed at submit, and that every attempt of the job begins with."""

import re
from typing import Final

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.limits import MIB

MAX_SNAPSHOT_BYTES: Final = 1024 * MIB
"""Of an archive, unpacked."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@frozen
class SnapshotRef:
    """An archive by the SHA-256 digest and the size of what is in it before it is compressed."""

    digest: str
    bytes: int


def is_digest(text: str) -> bool:
    """Whether this can be the digest of one, and so a part of a path."""
    return _DIGEST.fullmatch(text) is not None


def check(snapshot: SnapshotRef) -> None:
    """``ValueError`` for what no archive can be."""
    if not is_digest(snapshot.digest):
        raise ValueError(f"{snapshot.digest[:80]!r} is not a SHA-256 digest")
    if not 0 < snapshot.bytes <= MAX_SNAPSHOT_BYTES:
        raise ValueError(f"{snapshot.bytes} bytes are over the limit of {MAX_SNAPSHOT_BYTES}")
