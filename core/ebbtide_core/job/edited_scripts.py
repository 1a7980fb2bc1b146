"""Says which scripts of a job were edited between its submit and a start. The job starts all the same."""

from collections.abc import Sequence


def running(edited: Sequence[str]) -> str:
    """Return the reason that a running job shows."""
    return f"running; {changed(edited)}" if edited else "running"


def changed(edited: Sequence[str]) -> str:
    """Return ``train.py was edited since submit``."""
    return f"{', '.join(edited)} {'was' if len(edited) == 1 else 'were'} edited since submit"
