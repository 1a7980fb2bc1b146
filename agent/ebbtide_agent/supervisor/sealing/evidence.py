"""Judge whether the attempt saved when it was asked to stop: this module alone decides that.

It compares no clocks: a file that is there, and was not there before the request, was written after it.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide import checkpoints, trees

from ebbtide_agent.supervisor.status import WireCheckpointed

_LONGEST_COMMAND = 1024  # bytes of a command line that are read
_File = tuple[str, int, int]  # path below the directory, size, time of the last change


@dataclass(frozen=True, slots=True)
class CheckpointContents:
    """The files of a checkpoint directory at one moment."""

    files: frozenset[_File]

    @classmethod
    def of(cls, directory: Path) -> "CheckpointContents":
        """List the directory now. Raises OSError if it cannot be read, or is no directory."""
        return cls(frozenset(_list(directory)))

    @classmethod
    def from_json(cls, content: Iterable[Iterable[str | int]]) -> "CheckpointContents":
        """Read what a helper's process answered to `look`. Raises TypeError or ValueError."""
        return cls(frozenset((str(path), int(size), int(changed)) for path, size, changed in content))

    def paths(self) -> frozenset[str]:
        return frozenset(path for path, _, _ in self.files)


def look(directory: str, interpreters: Sequence[int] = ()) -> dict[str, Any]:
    """List a checkpoint directory and find its real path, in a helper's process. Raises OSError.

    Also read the command lines of the interpreters here, because reading those may take long, too.
    """
    real = os.path.realpath(directory)
    files = _list(Path(real))
    return {"real": real, "files": files, "arguments": {str(pid): _arguments(pid) for pid in interpreters}}


def _arguments(pid: int) -> list[str]:
    """Return the beginning of the process's command line; empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [word.decode(errors="replace") for word in file.read(_LONGEST_COMMAND).split(b"\0")]
    except OSError:
        return []


@dataclass(frozen=True, slots=True)
class StopConduct:
    """What the job did when it was asked to stop, as far as it bears on whether the job saved."""

    handled: bool  # a process was asked that could act on the request
    failed: bool = False  # every such process ended with an exit code that says that it failed
    vouches: bool = False  # the job said through the SDK that it has saved, and what it published that way is not older
    publishes: bool = False  # the job saves through the SDK, so anything unpublished was not saved


def judge(
    directory: Path,
    before: CheckpointContents | None,
    sealed: checkpoints.Checkpoint | None,
    conduct: StopConduct,
    *,
    cut_short: frozenset[str] = frozenset(),
    passed_over: bool = False,
) -> WireCheckpointed:
    """Judge what is certain, now that no process of the attempt lives; `before` is None if the earlier contents are
    unknown.

    `sealed` is what the script wrote here without the SDK. `passed_over`: the next attempt still goes on from an older
    checkpoint. `cut_short` are the files that the job was writing here when it was killed.
    """
    changed: set[str] = set()
    if before is not None:
        changed = {path for path, _, _ in CheckpointContents.of(directory).files - before.files}
    if conduct.vouches or any(_is_published(directory, path) for path in changed):
        return WireCheckpointed.YES
    if sealed is not None and changed - cut_short - {checkpoints.MANIFEST}:
        unsure = WireCheckpointed.NO if passed_over else WireCheckpointed.UNKNOWN
        return WireCheckpointed.YES if sealed.complete else unsure
    if not conduct.handled:
        return WireCheckpointed.NO
    if before is None:
        return WireCheckpointed.UNKNOWN
    return WireCheckpointed.NO if conduct.publishes or conduct.failed or cut_short else WireCheckpointed.UNKNOWN


def nothing_is_whole(directory: Path, cut_short: frozenset[str]) -> bool:
    """Return whether every file in the directory was being written when its writers were killed."""
    return bool(cut_short) and cut_short >= CheckpointContents.of(directory).paths()


def being_written(directory: Path, pids: Iterable[int]) -> frozenset[str]:
    """Return the paths below the directory that these processes have open for writing now, except append-only ones.

    Files that are only appended to are logs: they stay open all the time, and have no end that must be reached. The
    directory must be given by its real path, because resolving it here might never return.
    """
    prefix = f"{directory}/"
    found = (path for pid in pids for path in _open_for_writing(pid))
    return frozenset(path.removeprefix(prefix) for path in found if path.startswith(prefix))


def _open_for_writing(pid: int) -> list[str]:
    try:
        return [path for name in os.listdir(f"/proc/{pid}/fd") if (path := _written_through(pid, name))]
    except OSError:  # it is gone
        return []


def _written_through(pid: int, descriptor: str) -> str:
    """Return the path that the process may write to through this descriptor; empty if it may only read, or is gone."""
    try:
        path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        if not path.startswith("/"):
            return ""
        facts = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text()
    except OSError:
        return ""
    [flags] = [line.split()[1] for line in facts.splitlines() if line.startswith("flags:")]
    mode = int(flags, 8)
    return "" if mode & os.O_ACCMODE == os.O_RDONLY or mode & os.O_APPEND else path


def _is_published(directory: Path, path: str) -> bool:
    """Return whether this file completes a checkpoint that the SDK published in the directory."""
    parent, _, name = path.rpartition("/")
    if name != checkpoints.MANIFEST or not parent or parent.startswith("."):
        return False
    try:
        checkpoints.inspect(directory / parent)
    except (checkpoints.InvalidCheckpoint, OSError):
        return False
    return True


def _list(directory: Path) -> list[_File]:
    found: list[_File] = []
    try:
        for folder in trees.walk(directory, changing=True):
            for name in folder.files:
                with suppress(FileNotFoundError):  # e.g. a draft that was renamed meanwhile
                    facts = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
                    found.append((folder.below(name), facts.st_size, facts.st_mtime_ns))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return found
