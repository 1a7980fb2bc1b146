"""Writes and reads sealed files: whole or not there, unchanged since, and of this account alone.

A sealed file is a line with a digest, a line of JSON with facts, and the content. It appears under its name by one
rename once all of it is on disk. Who reads one gets an error unless the digest matches, and unless file and directory
belong to this account and no other account can write them: what they hold may be code (a pickle) that is about to run.
"""

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide import regular

LARGEST_BYTES = 256 * 1024 * 1024
"""Most bytes of one sealed content: it is held in memory, at times twice. Larger data belongs into files of its own."""

_MARK = b"ebbtide-sealed-1 "
_HEAD_BYTES = 16 * 1024 * 1024  # of the mark and the facts
_OF_OTHERS = 0o022


class NotSealed(Exception):
    """A file is not what was sealed, or another account could have written it; the message is one line."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """What was sealed: `facts`, which JSON can express, and `content`."""

    facts: dict[str, Any]
    content: bytes


def write(folder: Path, name: str, facts: Mapping[str, object], content: bytes) -> None:
    """Seal `facts` and `content` in the file `name` of `folder`, which only this account can read then.

    Raises OSError; what was there before stays untouched then. Raises NotSealed for a folder of another account.
    """
    body = json.dumps(dict(facts)).encode() + b"\n" + content
    with _entered(folder) as directory:
        draft = f".{name}-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(draft, flags, 0o600, dir_fd=directory), "wb") as file:
                file.write(_MARK + hashlib.sha256(body).hexdigest().encode() + b"\n")
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=directory)
            raise
        os.fsync(directory)


def read(folder: Path, name: str) -> Sealed:
    """Return what was sealed in the file `name` of `folder`.

    Raises FileNotFoundError if there is none, NotSealed if it is not to be trusted or not whole, and OSError.
    """
    with _entered(folder) as directory:
        descriptor = regular.open_regular(name, dir_fd=directory)
        with open(descriptor, "rb") as file:
            size = _check(folder / name, os.fstat(descriptor))
            if size > LARGEST_BYTES + _HEAD_BYTES:
                raise NotSealed(f"{folder / name}: {size} bytes are over the limit of {LARGEST_BYTES}")
            mark, _, body = file.read(size + 1).partition(b"\n")
    if mark != _MARK + hashlib.sha256(body).hexdigest().encode():
        raise NotSealed(f"{folder / name}: is not whole: its SHA-256 digest is not the one in its first line")
    facts, _, content = body.partition(b"\n")
    return Sealed(json.loads(facts), content)


def read_part(folder: Path, name: str, offset: int, size: int, digest: str) -> bytes:
    """Return `size` bytes from `offset` on of the file `name`, whose SHA-256 digest is `digest`; raises as `read`."""
    with _entered(folder) as directory:
        descriptor = regular.open_regular(name, dir_fd=directory)
        with open(descriptor, "rb") as file:
            _check(folder / name, os.fstat(descriptor))
            file.seek(offset)
            content = file.read(size)
    if hashlib.sha256(content).hexdigest() != digest:
        raise NotSealed(f"{folder / name}: is not whole: its bytes {offset} to {offset + size} have changed")
    return content


@contextmanager
def _entered(folder: Path) -> Iterator[int]:
    """Open the directory. A descriptor of a directory that no other account can write leads to own files only."""
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise NotSealed(f"{folder}: is no directory") from None
        raise
    try:
        _check(folder, os.fstat(directory))
        yield directory
    finally:
        os.close(directory)


def _check(path: Path, facts: os.stat_result) -> int:
    """Return the size; raises NotSealed unless this account owns it, and no other can write it."""
    if facts.st_uid != os.geteuid():
        raise NotSealed(f"{path}: belongs to uid {facts.st_uid}, and this is uid {os.geteuid()}")
    if stat.S_IMODE(facts.st_mode) & _OF_OTHERS:
        raise NotSealed(f"{path}: can be written by others: chmod go-w {path}")
    return facts.st_size
