"""Counts the launches of a job that were refused in a row because what it has saved cannot be read just now.

Each leaves a note in the job's directory, which all its nodes share. A launch that is refused for another reason, or
before it looks there, leaves none.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from ebbtide import checkpoints

# After so many such launches, what cannot be read is passed over.
_LAUNCHES: Final = 3
_NOTE: Final = re.compile(r"\.attempt-(\d+)-unreadable")


def is_over(job_dir: Path, attempt: int) -> bool:
    """Return whether this attempt passes over what cannot be read. Raises OSError."""
    since = checkpoints.last_attempt(job_dir, attempt)  # an attempt that is refused for this has no directory yet
    return sum(since < number < attempt for number in _notes(job_dir)) >= _LAUNCHES


def note(job_dir: Path, attempt: int) -> None:
    """Note that this attempt's launch is refused. Where there can be no note, there can be no attempt either."""
    with suppress(OSError):
        job_dir.joinpath(f".attempt-{attempt}-unreadable").touch()


def drop(job_dir: Path) -> None:
    """Remove the notes, because everything can be read again."""
    with suppress(OSError):
        for path in _notes(job_dir).values():
            path.unlink()


def _notes(job_dir: Path) -> dict[int, Path]:
    try:
        names = os.listdir(job_dir)
    except FileNotFoundError:
        return {}
    return {int(match[1]): job_dir / match[0] for match in map(_NOTE.fullmatch, names) if match}
