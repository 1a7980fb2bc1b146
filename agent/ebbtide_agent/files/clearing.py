"""Measure, mark and remove trees that jobs have made, in a helper process, without following links.

A tree may be of any depth and size, change meanwhile, and lie on a file system that does not answer.
"""

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from ebbtide import trees

from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.asking import ask

log = logging.getLogger(__name__)

REMOVED_WITHIN_S: Final = 600.0
"""What is not removed in this time is tried again when the node is tidied next."""
ANSWER_S: Final = 60.0
_GONE: Final = ".gone-"


async def clear(path: Path) -> bool:
    """Remove the directory with all that is below it, or the file; return whether it is gone. Failures are logged."""
    try:
        answer = await ask(remove, str(path), account=None, within_s=REMOVED_WITHIN_S)
    except OSError as error:
        answer = NoAnswer(str(error))
    if isinstance(answer, NoAnswer):
        log.warning("event=not-removed path=%r reason=%r", str(path), answer.reason)
    return not isinstance(answer, NoAnswer)


def remove(path: str) -> None:
    """Remove a tree or a file. Raises OSError."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            trees.remove(Path(path))
        else:
            os.unlink(path)
    except FileNotFoundError:
        return


def touch(path: str) -> bool:
    """Return whether the path is there, and if so set its time to now. Raises OSError."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def old_in(folder: str, before: float) -> list[str]:
    """Return the names of the folder's entries that were last changed before that time. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.stat(follow_symlinks=False).st_mtime < before]
    except FileNotFoundError:
        return []


def set_aside(folder: str, name: str, before: float) -> str:
    """Rename an entry, if it was still last changed before that time, so that no job begins with it; return the new
    path, or an empty one if the entry has changed since. Raises OSError."""
    path = os.path.join(folder, name)
    if os.lstat(path).st_mtime >= before:
        return ""
    if name.startswith(_GONE):
        return path
    gone = os.path.join(folder, f"{_GONE}{name}")
    remove(gone)
    os.rename(path, gone)
    return gone


def folders_in(folder: str) -> list[str]:
    """Return the names of the directories in the folder. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def names_in(folder: str) -> list[str]:
    """Return the names of all that is in the folder. Raises OSError."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def size(folder: str, *prefixes: str) -> int:
    """Return the bytes on disk of the regular files in the tree, each counted once. Raises OSError.

    With `prefixes`, only those of the folder's directories count whose names begin with one. A file that vanishes
    meanwhile does not count.
    """
    seen: dict[tuple[int, int], int] = {}
    for place in trees.walk(Path(folder), changing=True):
        if prefixes and not place.path:
            place.folders[:] = [name for name in place.folders if name.startswith(prefixes)]
            continue
        for name in place.files:
            with suppress(FileNotFoundError):
                found = os.stat(name, dir_fd=place.descriptor, follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(seen.values())
