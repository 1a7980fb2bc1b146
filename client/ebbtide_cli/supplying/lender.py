"""Define what a supply asks of a lender, whoever that is."""

import sys
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


def pilot_command(borrowing: Borrowing, id: str, invitation: Path, kept: bool) -> list[str]:
    """Return the command of a loan's pilot. No secret is in it: it names the file that the invitation is in."""
    root = borrowing.checkpoint_root
    return [
        *EBB,
        *("agent", "pilot", "--name", id, "--pool", borrowing.pool, "--label", f"{SUPPLY_LABEL}={borrowing.name}"),
        *("--invitation", str(invitation)),
        *([] if kept else ["--idle", f"{borrowing.idle_s:.0f}s"]),
        *(["--checkpoint-root", str(root)] if root else []),
        *borrowing.agent,
    ]


def log_of(folder: Path, id: str) -> Path:
    """Return the file with what a loan's pilot printed."""
    return folder / f"{id}.log"


def last_line(text: str) -> str:
    """Return the last line of what a command printed that is not empty; empty if there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
