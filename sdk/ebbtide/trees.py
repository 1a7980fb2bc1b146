"""Walks and removes directory trees of any depth by descriptors, never through a link, with one directory open.

Nothing is skipped in silence: every error of the system about a directory or an entry is raised, so that no caller
takes a part of a tree for all of it.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ebbtide.regular import flags

ENTRIES = 10_000_000
"""Most entries of one tree; a walk that meets more raises OSError."""

_PATH_BYTES = 4096
_FLAGS = os.O_RDONLY | flags("O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")


@dataclass(frozen=True, slots=True)
class Folder:
    """One directory of a tree, while it is open; the walk does not enter names that are removed from `folders`."""

    path: str  # below the root, which is ""
    descriptor: int
    files: list[str]  # everything that is not a directory
    folders: list[str]

    def below(self, name: str) -> str:
        """Return the path of this entry, relative to the root."""
        return f"{self.path}/{name}" if self.path else name


def walk(root: Path, *, entries: int = ENTRIES, changing: bool = False) -> Iterator[Folder]:
    """Yield every directory from the root downwards, names in order.

    Raises OSError, also if the tree has more than `entries` entries, or a path that is longer than the system takes.
    With `changing`, a directory that is gone before it is entered is no error.
    """
    left = entries
    with _Cursor(root) as cursor:
        todo: list[list[str]] = [[]]
        going_in = True
        while True:
            if going_in:
                folder = _listed(cursor, left)
                left -= len(folder.files) + len(folder.folders)
                yield folder
                todo[-1] = folder.folders[::-1]
            if todo[-1]:
                going_in = cursor.enter(todo[-1].pop(), missing_ok=changing)
                if going_in:
                    todo.append([])
                continue
            todo.pop()
            if not todo:
                return
            cursor.leave()
            going_in = False


def remove(root: Path) -> None:
    """Remove the directory with all that is below it. Raises OSError; an entry that is gone meanwhile is no error."""
    with _Cursor(root) as cursor:
        todo = [_names(cursor.descriptor)]
        while True:
            if todo[-1]:
                name = todo[-1].pop()
                with suppress(FileNotFoundError):
                    if _unlinked(name, cursor.descriptor):
                        continue
                if cursor.enter(name, missing_ok=True):
                    todo.append(_names(cursor.descriptor))
                continue
            todo.pop()
            if not todo:
                break
            emptied = cursor.leave()
            with suppress(FileNotFoundError):
                os.rmdir(emptied, dir_fd=cursor.descriptor)
    with suppress(FileNotFoundError):
        os.rmdir(root)


@dataclass(slots=True)
class _Cursor:
    """One open directory of a tree, and the way back up from it."""

    root: Path
    descriptor: int = -1
    names: list[str] = field(default_factory=list)
    _above: list[tuple[int, int]] = field(default_factory=list)

    def __enter__(self) -> "_Cursor":
        self.descriptor = os.open(self.root, _FLAGS)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    @property
    def path(self) -> str:
        return "/".join(self.names)

    def enter(self, name: str, *, missing_ok: bool) -> bool:
        """Go down into this directory; return False if it is gone and `missing_ok`. Raises OSError."""
        try:
            below = os.open(name, _FLAGS, dir_fd=self.descriptor)
        except OSError as error:
            if missing_ok and isinstance(error, FileNotFoundError):
                return False
            error.filename = os.path.join(self.root, *self.names, name)
            raise
        self._above.append(_identity(self.descriptor))
        self.names.append(name)
        self._move(below)
        return True

    def leave(self) -> str:
        """Go up again, and return the name of the directory that was left. Raises OSError if it was moved elsewhere."""
        above = os.open("..", _FLAGS, dir_fd=self.descriptor)
        self._move(above)
        if _identity(above) != self._above.pop():
            raise OSError(errno.ESTALE, "was moved while it was looked at", f"{self.root}/{self.path}")
        return self.names.pop()

    def _move(self, descriptor: int) -> None:
        os.close(self.descriptor)
        self.descriptor = descriptor


def _identity(descriptor: int) -> tuple[int, int]:
    facts = os.fstat(descriptor)
    return facts.st_dev, facts.st_ino


def _listed(cursor: _Cursor, left: int) -> Folder:
    path = cursor.path
    folder = Folder(path, cursor.descriptor, [], [])
    with os.scandir(cursor.descriptor) as found:
        for entry in found:
            left -= 1
            if left < 0:
                raise OSError(errno.E2BIG, "more entries than anybody looks at", f"{cursor.root}/{path}")
            (folder.folders if entry.is_dir(follow_symlinks=False) else folder.files).append(entry.name)
    longest = max(map(len, map(os.fsencode, (*folder.files, *folder.folders))), default=0)
    if len(os.fsencode(path)) + longest + 1 >= _PATH_BYTES:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), f"{cursor.root}/{path[:80]}…")
    folder.files.sort()
    folder.folders.sort()
    return folder


def _names(directory: int) -> list[str]:
    return os.listdir(directory)


def _unlinked(name: str, directory: int) -> bool:
    """Remove the entry unless it is a directory, and return whether it was removed."""
    if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=directory)
    return True
