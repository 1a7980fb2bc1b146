"""Counts the launches of a job that were refused because what it has saved cannot be read just now.

Each leaves a note in the job's directory, which all its nodes share, with the attempt that could not be read. A launch
that is refused for another reason, or before it looks there, leaves none.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

# After so many such launches, what cannot be read is passed over.
_LAUNCHES: Final = 3
_NOTE: Final = re.compile(r"\.attempt-(\d+)-unreadable-(\d+)")
_ATTEMPT: Final = re.compile(r"attempt-(\d+)")


def is_over(job_dir: Path, launch: int, error: OSError) -> bool:
    """Return whether enough launches before this one were refused for what this error names, or for what is newer.

    So what is newer than all that was passed over is waited for again. Raises OSError.
    """
    unreadable = _unreadable(job_dir, error)
    refused = {earlier for earlier, number in _notes(job_dir) if earlier < launch and number >= unreadable}
    return len(refused) >= _LAUNCHES


def note(job_dir: Path, launch: int, error: OSError) -> None:
    """Note that this launch is refused for the error. Where there can be no note, there can be no attempt either."""
    with suppress(OSError):
        job_dir.joinpath(f".attempt-{launch}-unreadable-{_unreadable(job_dir, error)}").touch()


def drop(job_dir: Path) -> None:
    """Remove the notes, because everything can be read again."""
    with suppress(OSError):
        for path in _notes(job_dir).values():
            path.unlink()


def _unreadable(job_dir: Path, error: OSError) -> int:
    """Return the attempt below whose directory the error is; 0 if it is elsewhere."""
    match = _ATTEMPT.match(str(error.filename).removeprefix(f"{job_dir}/"))
    return int(match[1]) if match else 0


def _notes(job_dir: Path) -> dict[tuple[int, int], Path]:
    try:
        names = os.listdir(job_dir)
    except FileNotFoundError:
        return {}
    return {(int(match[1]), int(match[2])): job_dir / match[0] for match in map(_NOTE.fullmatch, names) if match}
