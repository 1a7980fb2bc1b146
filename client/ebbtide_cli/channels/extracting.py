"""Unpack the archive that a node sends; nothing is written outside the destinations, whatever the archive says.

tarfile's own extraction is not used, because its filters check a path first and use it later. Every name is opened
relative to its directory, and no link is followed, except in the path to a destination, which the user gave.
"""

import errno
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OUTSIDE: Final = "would lie outside the destination"
_LEADS_OUT: Final = "a link that leads out of what is copied"
_SPECIAL: Final = "neither a file nor a directory nor a link"


class NotAnArchive(Exception):
    """What arrived is not an archive, or not a complete one; the message is one line."""


class _LeftOut(Exception):
    """A member of the archive is skipped; the message says why."""


@dataclass(slots=True)
class Unpacked:
    """What has been unpacked of an archive so far, and what was skipped (``left_out``)."""

    files: int = 0
    bytes: int = 0
    left_out: list[str] = field(default_factory=list)


def unpack(source: BinaryIO, targets: Sequence[Path], seen: Callable[[Unpacked], None]) -> Unpacked:
    """Write each tree of the archive to its target: the first part of a member's name is the target's index.

    A member outside its target, a link that leads out of it, and a device are skipped. Raises NotAnArchive, OSError.
    """
    done = Unpacked()
    try:
        with ExitStack() as opened, tarfile.open(fileobj=source, mode="r|", errorlevel=1) as archive:
            roots: dict[Path, int] = {}
            for member in archive:
                target, parts = _placed(member, targets)
                try:
                    if not parts and not member.isdir():
                        with _opened(target.parent) as parent:
                            _write(archive, member, parent, target.name)
                    else:
                        if target not in roots:
                            target.mkdir(exist_ok=True)
                            roots[target] = opened.enter_context(_opened(target))
                        _make(archive, member, roots[target], parts)
                    done.files += member.isreg()
                    done.bytes += member.size * member.isreg()
                except _LeftOut as reason:
                    what = os.fsencode(target.joinpath(*parts)).decode(errors="replace")
                    done.left_out.append(f"{what}: {reason}")
                seen(done)
    except (tarfile.TarError, EOFError) as error:
        raise NotAnArchive(f"the archive is damaged or cut short: {error}") from None
    return done


def _placed(member: tarfile.TarInfo, targets: Sequence[Path]) -> tuple[Path, list[str]]:
    """Return the target of a member, and the parts of its name below the target."""
    index, _, rest = member.name.partition("/")
    if not index.isdecimal() or int(index) >= len(targets):
        raise NotAnArchive(f"the archive has a tree {index[:40]!r} that was not asked for")
    return targets[int(index)], rest.split("/") if rest else []


def _make(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int, parts: Sequence[str]) -> None:
    """Create the file, directory or link that the member describes, below the root."""
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise _LeftOut(_OUTSIDE)
    with _folder(root, parts if member.isdir() else parts[:-1]) as folder:
        if member.issym():
            _link(member.linkname, folder, parts)
        elif not member.isdir():
            _write(archive, member, folder, parts[-1])


@contextmanager
def _folder(root: int, parts: Sequence[str]) -> Iterator[int]:
    """Open the directory at ``parts`` below the root, creating it where needed, without following a link."""
    folder = os.dup(root)
    try:
        for part in parts:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
            try:
                below = os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise _LeftOut(_OUTSIDE) from None
                raise
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: int, name: str) -> None:
    """Write the file; remove it if that fails: half a file looks whole. Skip a sparse file: it could fill a disk."""
    content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None:
        raise _LeftOut(_SPECIAL)
    executable = 0o111 if member.mode & 0o100 else 0
    try:
        descriptor = os.open(name, _NEW_FILE, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _LeftOut(_OUTSIDE) from None
        raise
    try:
        with open(descriptor, "wb") as file:
            shutil.copyfileobj(content, file)
            file.flush()
            os.fchmod(descriptor, member.mode & (0o644 | executable) | 0o600)
            with suppress(OSError, OverflowError, ValueError):  # a time that no clock has shown
                os.utime(descriptor, (member.mtime, member.mtime))
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise


def _link(leads_to: str, folder: int, parts: Sequence[str]) -> None:
    """Create the link if its target stays below the root: leading ``..`` steps up to the root, then only downwards."""
    steps = leads_to.split("/")
    up = next((index for index, step in enumerate(steps) if step != ".."), len(steps))
    if not leads_to or leads_to.startswith("/") or "\0" in leads_to or up >= len(parts) or ".." in steps[up:]:
        raise _LeftOut(_LEADS_OUT)
    with suppress(FileNotFoundError):
        os.unlink(parts[-1], dir_fd=folder)
    os.symlink(leads_to, parts[-1], dir_fd=folder)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
