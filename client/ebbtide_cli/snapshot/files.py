"""List the files of a working directory: those that git would keep, and no others.

In a git repository, git lists them; elsewhere, what ``.gitignore`` files name is left out all the same. ``.ebbignore``
files, in the same format, leave out more.
"""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from pathspec import GitIgnoreSpec

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.terminal.text import printable

MOST_FILES: Final = 100_000
_GIT_S: Final = 60.0
_IGNORED: Final = ".ebbignore"
_ALWAYS: Final = frozenset({".git"})


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, or a symbolic link to ``link``; ``path`` is relative to the directory, ``size`` in bytes."""

    path: str
    size: int
    executable: bool = False
    link: str | None = None


def list_files(root: Path) -> list[Entry]:
    """Return the files below ``root``, sorted by path; `Failure` names a file that cannot be packed."""
    listed = _listed_by_git(root)
    if listed:
        rules = _Rules(root, (_IGNORED,))
        paths: Iterator[str] = (path for path in listed if not rules.ignore_below(path))
    else:  # not a repository, or git ignores this directory
        paths = _walk(root, _Rules(root, (".gitignore", _IGNORED)), "")
    entries: list[Entry] = []
    for path in paths:
        if (entry := _entry(root, path)) is not None:
            entries.append(entry)
        if len(entries) > MOST_FILES:
            raise Failure(
                f"submit: --snapshot: more than {MOST_FILES} files: name what is not needed in {_IGNORED}", USAGE
            )
    return sorted(entries, key=lambda entry: os.fsencode(entry.path))


class _Rules:
    """The rules of the files called ``names``, for everything in and below the directories of those files."""

    def __init__(self, root: Path, names: tuple[str, ...]) -> None:
        self._root = root
        self._names = names
        self._known: dict[str, GitIgnoreSpec | None] = {}

    def ignore(self, path: str) -> bool:
        """Whether to leave out ``path``, which ends with a slash if it is a directory; its parents are not checked."""
        folder = path.rstrip("/")
        while folder:
            folder = os.path.dirname(folder)
            spec = self._of(folder)
            found = None if spec is None else spec.check_file(path[len(folder) + 1 if folder else 0 :]).include
            if found is not None:  # the nearest rule wins
                return found
        return False

    def ignore_below(self, path: str) -> bool:
        """Whether to leave out ``path``, or one of the directories that it is in."""
        parts = path.split("/")
        above = ("/".join(parts[:count]) + "/" for count in range(1, len(parts)))
        return any(self.ignore(folder) for folder in above) or self.ignore(path)

    def _of(self, folder: str) -> GitIgnoreSpec | None:
        if folder not in self._known:
            lines = [line for name in self._names for line in _lines(self._root / folder / name)]
            self._known[folder] = GitIgnoreSpec.from_lines(lines) if lines else None
        return self._known[folder]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _listed_by_git(root: Path) -> list[str]:
    """List tracked files and new ones that are not ignored, also of repositories inside; empty without git.

    Of a submodule that is not initialised git lists ``./``, the folder itself, and nothing in it. Where a link or a
    file has taken the place of a tracked folder, git also lists what was in that.
    """
    command = ["git", "-c", "core.fsmonitor=false", "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        done = subprocess.run(
            command, cwd=root, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    listed, is_folder = done.stdout.split(b"\0"), _folders(root)
    paths = {path for path in map(os.fsdecode, listed) if path not in ("", "./") and is_folder(os.path.dirname(path))}
    inner = [path for path in paths if (root / path).is_dir() and not (root / path).is_symlink()]
    for folder in inner:
        paths.remove(folder)
        folder = folder.rstrip("/")
        paths |= {f"{folder}/{path}" for path in _listed_by_git(root / folder)}
    return sorted(paths)


def _folders(root: Path) -> Callable[[str], bool]:
    """Return a function that says whether a path below ``root`` is a folder that no link leads to."""

    @cache
    def is_folder(path: str) -> bool:
        try:
            return not path or (is_folder(os.path.dirname(path)) and stat.S_ISDIR(os.lstat(root / path).st_mode))
        except FileNotFoundError:
            return False
        except OSError:
            return True  # what is in it is refused as unreadable

    return is_folder


def _walk(root: Path, rules: _Rules, folder: str) -> Iterator[str]:
    try:
        found = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder or ".", error) from None
    for entry in found:
        path = f"{folder}/{entry.name}" if folder else entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name in _ALWAYS or rules.ignore(f"{path}/" if is_folder else path):
            continue
        if is_folder:
            yield from _walk(root, rules, path)
        else:
            yield path


def _entry(root: Path, path: str) -> Entry | None:
    """Return the entry of a path; None if the file is gone, because git also lists removed files."""
    try:
        facts = os.lstat(root / path)
        if stat.S_ISLNK(facts.st_mode):
            return Entry(path, 0, link=os.readlink(root / path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from None
    if not stat.S_ISREG(facts.st_mode):
        raise Failure(f"submit: --snapshot: {printable(path)} is neither a file nor a link: see {_IGNORED}", USAGE)
    return Entry(path, facts.st_size, bool(facts.st_mode & stat.S_IXUSR))


def _unreadable(path: str, error: OSError) -> Failure:
    return Failure(f"submit: --snapshot: {printable(path)}: {error.strerror}", USAGE)
