"""Scripts of a job that were changed between its submit and a start: nothing is refused for it, but it is said."""

from collections.abc import Sequence


def running(edited: Sequence[str]) -> str:
    """Why a job is in the state that it is in while it runs."""
    return f"running; {changed(edited)}" if edited else "running"


def changed(edited: Sequence[str]) -> str:
    """``train.py was edited since submit``."""
    return f"{', '.join(edited)} {'was' if len(edited) == 1 else 'were'} edited since submit"
