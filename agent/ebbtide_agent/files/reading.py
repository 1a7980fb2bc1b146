"""Answer other nodes' questions about a job's checkpoints, in a helper process that runs as the job's account."""

import base64
import os
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebbtide import checkpoints

WINDOW_BYTES = 1024 * 1024
"""The most bytes in one answer, which must fit into one message."""
_CHECKPOINT = re.compile(r"attempt-\d{1,18}(/step-\d{12,18}(\.\d{1,9})?)?")


def checkpoint_below(job_dir: Path, name: str) -> Path:
    """Return the directory of the checkpoint. Raises ValueError if `name` is not a checkpoint's."""
    if _CHECKPOINT.fullmatch(name) is None:
        raise ValueError(f"{name[:80]!r} is not a checkpoint")
    return job_dir / name


def owner_of(path: str) -> list[int] | None:
    """Return the ids of the user and the group that own the directory; None if there is no directory."""
    try:
        facts = os.lstat(path)
    except FileNotFoundError:
        return None
    return [facts.st_uid, facts.st_gid]


def read(job_dir: str, attempt: int, checkpoint: str, file: str, offset: int, max_bytes: int) -> dict[str, Any]:
    """Return a window of a file of the named checkpoint, or, if none is named, the name of the newest one before the
    attempt, after verifying it. Raises OSError."""
    folder = Path(job_dir)
    if not checkpoint:
        newest = checkpoints.newest_valid(folder, before_attempt=attempt)
        return {"checkpoint": "" if newest is None else newest.path.relative_to(folder).as_posix()}
    with suppress(ValueError, FileNotFoundError):
        below = checkpoint_below(folder, checkpoint).resolve(strict=True)
        path = below.joinpath(file).resolve(strict=True)
        # The job could have put a link there that leads out of its directory.
        if path.is_relative_to(below) and below.is_relative_to(folder.resolve()):
            found = _window(path, offset, min(max_bytes, WINDOW_BYTES))
            if found is not None:
                return found
    return {"error": f"there is no file {file[:200]!r} in {checkpoint[:80]!r}"}


def _window(path: Path, offset: int, max_bytes: int) -> dict[str, Any] | None:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        data = b""
        while len(data) < max_bytes and (more := os.pread(handle, max_bytes - len(data), offset + len(data))):
            data += more
        return {"data": base64.b64encode(data).decode(), "end": len(data) < max_bytes}
    finally:
        os.close(handle)
