"""Writes files of a job as a tar archive to standard output, in a process of its own so that reading blocks nothing.

The request is one JSON object on standard input; the first line of the output says how many bytes of files follow, or
what is wrong. Files that cannot be read, or not to their end, are named on standard error. It imports the standard
library only.
"""

import itertools
import json
import os
import stat
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_COPY_BYTES = 256 * 1024
_MOST_ENTRIES = 2_000_000


class NotReadable(Exception):
    """The requested paths cannot be sent; the message is one line."""


@dataclass(frozen=True, slots=True)
class ArchiveSource:
    """A requested path and its name in the archive."""

    path: Path
    name: str

    def entries(self) -> Iterator[tuple[Path, str]]:
        """Yield the path and all paths below it, parents first, at any depth; links are not followed."""
        todo = [(self.path, self.name)]
        while todo:
            path, name = todo.pop()
            yield path, name
            try:
                below = sorted(os.listdir(path), reverse=True) if stat.S_ISDIR(os.lstat(path).st_mode) else []
            except FileNotFoundError:
                continue  # deleted meanwhile
            except OSError as error:
                _complain(error)
                continue
            todo += [(path / entry, f"{name}/{entry}") for entry in below]


def main() -> int:
    """Answer the request on standard input, and return the exit code."""
    request = json.load(sys.stdin)
    out = sys.stdout.buffer
    try:
        sources = find(request["paths"], request["roots"], request["workdir"])
        if request["one_file"]:
            _send_file(sources, out)
        else:
            _send_archive(sources, out)
        out.flush()
    except (NotReadable, OSError) as error:
        _say(out, {"error": _words(error)})
        return 1
    return 0


def find(paths: Sequence[str], roots: Mapping[str, str], workdir: str) -> list[ArchiveSource]:
    """Resolve the paths: relative ones below ``workdir``, ``{name}/…`` below one of ``roots``. Raises NotReadable."""
    allowed = [os.path.realpath(root) for root in (workdir, *roots.values())]
    return [ArchiveSource(_find(path, roots, workdir, allowed), str(index)) for index, path in enumerate(paths)]


def _find(path: str, roots: Mapping[str, str], workdir: str, allowed: Sequence[str]) -> Path:
    head, _, rest = path.partition("/")
    root = roots.get(head.removeprefix("{").removesuffix("}")) if head.startswith("{") and head.endswith("}") else None
    real = os.path.realpath(os.path.join(root, rest) if root is not None else os.path.join(workdir, path))
    if not any(Path(real).is_relative_to(root) for root in allowed):
        below = ", ".join(["its working directory", *(f"{{{name}}}" for name in roots)])
        raise NotReadable(f"{path}: is not below what a job's files are copied from: {below}")
    if not os.path.lexists(real):
        raise NotReadable(f"{path}: no such file or directory")
    return Path(real)


def _send_archive(sources: Sequence[ArchiveSource], out: BinaryIO) -> None:
    entries = list(itertools.islice((entry for source in sources for entry in source.entries()), _MOST_ENTRIES + 1))
    if len(entries) > _MOST_ENTRIES:
        raise NotReadable(f"more than {_MOST_ENTRIES} files and directories")
    total = sum(_size(path) for path, _ in entries)
    _say(out, {"total": total})
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_COPY_BYTES) as archive:
        for path, name in entries:
            _add(archive, path, name)


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file, a directory or a link. A file is added with its present size, whatever becomes of it meanwhile."""
    archive.inodes = {}  # type: ignore[attr-defined]  # add a file with two names twice: a reader may skip one
    try:
        file = _open(path) if stat.S_ISREG(os.lstat(path).st_mode) else None
        try:
            member = archive.gettarinfo(path, name, file) if file else archive.gettarinfo(path, name)
            if member is not None and (member.isreg() or member.isdir() or member.issym()):
                archive.addfile(member, _Padded(path, file) if file else None)
            else:
                sys.stderr.write(f"{path}: neither a file nor a directory nor a link\n")
        finally:
            if file:
                file.close()
    except (PermissionError, BlockingIOError) as error:
        _complain(error)
    except FileNotFoundError:
        return  # deleted meanwhile


class _Padded:
    """Reads a file that has as many bytes as are asked for: zeros stand for what cannot be read of it any more."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._has_ended = False

    def read(self, size: int = -1) -> bytes:
        data = b""
        if not self._has_ended:
            try:
                data, why = self._file.read(size), "it became shorter"
            except OSError as error:
                why = error.strerror or str(error)
            self._has_ended = len(data) < size
            if self._has_ended:
                sys.stderr.write(f"{self._path}: its end, which is zeros in the copy: {why}\n")
        return data.ljust(size, b"\0")


def _open(path: Path) -> BinaryIO:
    """Open the file without blocking, because a pipe without a writer, or a leased file, may be in its place by now."""
    return open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")


def _size(path: Path) -> int:
    try:
        facts = os.lstat(path)
    except OSError:
        return 0
    return facts.st_size if stat.S_ISREG(facts.st_mode) else 0


def _send_file(sources: Sequence[ArchiveSource], out: BinaryIO) -> None:
    if len(sources) != 1 or not sources[0].path.is_file():
        raise NotReadable(f"{sources[0].path.name}: is not one file")
    with _open(sources[0].path) as file:
        _say(out, {"total": os.fstat(file.fileno()).st_size})
        while data := file.read(_COPY_BYTES):
            out.write(data)


def _say(out: BinaryIO, content: dict[str, Any]) -> None:
    out.write(json.dumps(content).encode() + b"\n")


def _complain(error: OSError) -> None:
    sys.stderr.write(f"{error.filename}: {error.strerror}\n")


def _words(error: Exception) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)


if __name__ == "__main__":
    sys.exit(main())
