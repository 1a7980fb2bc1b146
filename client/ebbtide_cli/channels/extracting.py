"""Unpacks the archive that a node sends: below the destinations, whatever the archive says."""

import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO


class NotAnArchive(Exception):
    """What came is no archive, or not a whole one; the message is one line."""


@dataclass(slots=True)
class Unpacked:
    """What was made of an archive so far."""

    files: int = 0
    bytes: int = 0
    left_out: list[str] = field(default_factory=list)


def unpack(source: BinaryIO, targets: Sequence[Path], seen: Callable[[Unpacked], None]) -> Unpacked:
    """Write each of the archive's trees, the first part of whose names is a number, to the target of that number.

    What would be outside a target, a link that leads out of it, or a device is left out. Raises NotAnArchive, OSError.
    """
    done = Unpacked()
    current: Path | None = None
    try:
        with tarfile.open(fileobj=source, mode="r|", errorlevel=1) as archive:
            for member, target, name in _placed(archive, targets):
                current = target / name if member.isreg() else None
                _unpack_one(archive, member, target, name, done)
                current = None
                seen(done)
    except (tarfile.TarError, EOFError) as error:
        if current is not None:
            current.unlink(missing_ok=True)  # half a file looks like a whole one
        raise NotAnArchive(f"the archive is damaged or cut short: {error}") from None
    return done


def _placed(archive: tarfile.TarFile, targets: Sequence[Path]) -> Iterator[tuple[tarfile.TarInfo, Path, str]]:
    """Each member with the directory that it must not leave, and its name there."""
    for member in archive:
        index, _, rest = member.name.partition("/")
        if not index.isdecimal() or int(index) >= len(targets):
            raise NotAnArchive(f"the archive has a tree {index[:40]!r} that nobody asked for")
        target = targets[int(index)]
        if rest or member.isdir():
            yield member, target, rest or "."
        else:
            yield member, target.parent, target.name


def _unpack_one(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path, name: str, done: Unpacked) -> None:
    if member.isdir():
        (target / name).mkdir(parents=name == ".", exist_ok=True)
    try:
        archive.extract(member, target, filter=lambda found, into: tarfile.data_filter(found.replace(name=name), into))
    except tarfile.FilterError as error:
        what = os.fsencode(target / name).decode(errors="replace")
        done.left_out.append(f"{what}: {_reason(error)}")
        return
    if member.isreg():
        done.files += 1
        done.bytes += member.size


def _reason(error: tarfile.FilterError) -> str:
    match error:
        case tarfile.AbsoluteLinkError() | tarfile.LinkOutsideDestinationError():
            return "a link that leads out of what is copied"
        case tarfile.SpecialFileError():
            return "neither a file nor a directory nor a link"
        case _:
            return "would lie outside the destination"
