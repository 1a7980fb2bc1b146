"""Reads small JSON files, and writes them so that a crash leaves either the old or the new file whole."""

import errno
import json
import os
from pathlib import Path
from typing import Any, Final

DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""The numbers of the errors with which a write fails while there is no room for it."""


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace the file durably; the new content is on disk when this returns. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _replace(path, content, draft, os.O_TRUNC)
    except BaseException:  # leave no draft after any failure, such as a full disk or a cancelled task
        draft.unlink(missing_ok=True)
        raise


def reserve(room: Path, size: int) -> None:
    """Make a file that has `size` bytes of the disk, where the file system can promise that. Raises OSError."""
    handle = os.open(room, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
    finally:
        os.close(handle)


def write_json_into(room: Path, path: Path, content: dict[str, Any]) -> None:
    """Replace the file durably by what was reserved, which a failure leaves; without it, the disk must have room."""
    _replace(path, content, room, 0)


def _replace(path: Path, content: dict[str, Any], draft: Path, flags: int) -> None:
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o600), "w") as file:
        json.dump(content, file)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync_directory(path.parent)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the file's object; None if there is no file. Raises ValueError naming a file that holds no JSON object."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    return content


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
