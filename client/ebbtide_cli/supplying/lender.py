"""Define what a supply asks of a lender, whoever that is."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from ebbtide_core.supply.supply import SUPPLY_LABEL, LenderFacts

from ebbtide_cli.supplying.settings import Borrowing

ANSWER_S: Final = 30.0
"""Seconds within which a lender answers, or counts as away."""
EBB: Final = (sys.executable, "-P", "-m", "ebbtide_cli.main")
"""The command that runs ``ebb`` as this process does."""


class LenderAwayError(Exception):
    """The lender does not answer: nothing is known."""


class LenderRefusedError(Exception):
    """The lender refuses a loan; the message says why, in one line."""


class Lender(Protocol):
    """Whom nodes are borrowed from. Every method may raise LenderAwayError."""

    def ask(self, id: str, invitation: Path, kept: bool) -> str:
        """Ask for a loan; return the lender's name for it. Raises LenderRefusedError."""
        ...

    def look(self) -> dict[str, LenderFacts]:
        """Return all loans that the lender knows, by their ids."""
        ...

    def call_off(self, id: str, job: str) -> None:
        """End a loan, which the lender knows as ``job``."""
        ...

    def preview(self, id: str, invitation: Path) -> Iterator[str]:
        """Yield what a loan would be, and what the lender would do with it. Raises LenderRefusedError."""
        ...

    def log(self, id: str) -> str:
        """Return what the pilot of a loan has printed. Raises LenderRefusedError if there is nothing."""
        ...


def pilot_arguments(borrowing: Borrowing, id: str, invitation: Path, kept: bool) -> list[str]:
    """Return the arguments with which ``ebb`` is a loan's pilot; they name the file of its invitation."""
    root, notice_s = borrowing.checkpoint_root, borrowing.notice_s
    return [
        *("agent", "pilot", "--name", id, "--pool", borrowing.pool, "--label", f"{SUPPLY_LABEL}={borrowing.name}"),
        *("--invitation", str(invitation)),
        *([] if kept else ["--idle", f"{borrowing.idle_s:.0f}s"]),
        *([] if notice_s is None else ["--notice", f"{notice_s:.0f}s"]),
        *(["--checkpoint-root", str(root)] if root else []),
        *borrowing.agent,
    ]


def pilot_command(borrowing: Borrowing, id: str, invitation: Path, kept: bool) -> list[str]:
    """Return the command of a loan's pilot where Ebbtide is installed as it is here."""
    return [*EBB, *pilot_arguments(borrowing, id, invitation, kept)]


def log_of(folder: Path, id: str) -> Path:
    """Return the file with what a loan's pilot printed."""
    return folder / f"{id}.log"


def read_log(folder: Path, id: str) -> str:
    """Return what a loan's pilot has printed into its file. Raises LenderRefusedError."""
    try:
        return log_of(folder, id).read_text(errors="replace")
    except FileNotFoundError:
        raise LenderRefusedError(f"there is no {log_of(folder, id)}: the lender has not started {id}") from None


def last_line(text: str) -> str:
    """Return the last line of what a command printed that is not empty; empty if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
