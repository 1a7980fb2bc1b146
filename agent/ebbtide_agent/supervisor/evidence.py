"""Whether the attempt wrote a checkpoint after it was asked to stop. No clock is compared: what is there, and was not
there before the request, was written after it."""

import os
from dataclasses import dataclass
from pathlib import Path

from ebbtide import checkpoints

from ebbtide_agent.supervisor.status import Checkpointed

_File = tuple[str, int, int]  # path below the directory, size, time of the last change


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of a checkpoint directory at one moment."""

    files: frozenset[_File]

    @classmethod
    def of(cls, directory: Path) -> "Contents":
        return cls(frozenset(_list(directory)))


def judge(
    directory: Path, before: Contents, *, killed: bool, handled: bool, uses_sdk: bool, sealed: bool
) -> Checkpointed:
    """What the directory says, now that no process of the attempt lives.

    `sealed`: the script wrote here without the SDK, and the supervisor sealed it. `handled`: the job was signalled and
    had a handler, without which nothing could be saved.
    """
    changed = {path for path, _, _ in Contents.of(directory).files - before.files}
    if any(_is_published(directory, path) for path in changed):
        return Checkpointed.YES
    if sealed and changed - {checkpoints.MANIFEST}:
        return Checkpointed.UNKNOWN if killed else Checkpointed.YES
    return Checkpointed.NO if uses_sdk or not handled else Checkpointed.UNKNOWN


def _is_published(directory: Path, path: str) -> bool:
    """Whether this file completes a checkpoint that the SDK published in the directory."""
    parent, _, name = path.rpartition("/")
    if name != checkpoints.MANIFEST or not parent or parent.startswith("."):
        return False
    try:
        checkpoints.inspect(directory / parent)
    except checkpoints.InvalidCheckpoint:
        return False
    return True


def _list(directory: Path) -> list[_File]:
    found: list[_File] = []
    for parent, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(parent, name)
            try:
                stat = os.lstat(path)
            except OSError:  # e.g. a draft that was renamed meanwhile
                continue
            found.append((os.path.relpath(path, directory), stat.st_size, stat.st_mtime_ns))
    return found
