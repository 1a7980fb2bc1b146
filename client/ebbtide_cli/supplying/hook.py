"""Borrow nodes with commands of the administrator: one that starts a node, one that ends it, one that lists them.

Each command gets a JSON object on its standard input; docs/how-to/supplies-by-commands.md says which.
"""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ebbtide_core.supply.supply import LenderFacts, LenderState

from ebbtide_cli.supplying.lender import (
    ANSWER_S,
    LenderAwayError,
    LenderRefusedError,
    last_line,
    log_of,
    pilot_command,
    read_log,
)
from ebbtide_cli.supplying.settings import Borrowing, HookCommands

_STATES: Final = {"waiting": LenderState.WAITS, "running": LenderState.RUNS, "over": LenderState.OVER}


class Hook:
    """Asks the commands of one supply for its loans; ``folder`` has the logs."""

    def __init__(self, borrowing: Borrowing, commands: HookCommands, folder: Path) -> None:
        self._borrowing = borrowing
        self._commands = commands
        self._folder = folder

    def ask(self, id: str, invitation: Path, kept: bool) -> str:
        """Have a node started. Raises LenderRefusedError, LenderAwayError, OSError."""
        self._borrowing.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted = {
            "id": id,
            "pilot": pilot_command(self._borrowing, id, invitation, kept),
            "environment": {"EBB_HOME": str(self._borrowing.home)},
            "invitation": str(invitation),
            "log": str(log_of(self._folder, id)),
            "time_s": self._borrowing.time_s,
        }
        done = self._run(self._commands.grow, wanted)
        if done.returncode:
            why = last_line(done.stderr) or f"{self._commands.grow[0]} ended with exit code {done.returncode}"
            raise LenderRefusedError(why)
        return last_line(done.stdout) or id

    def look(self) -> dict[str, LenderFacts]:
        """Return all loans that are listed. Raises LenderAwayError."""
        done = self._run(self._commands.list, {"supply": self._borrowing.name})
        if done.returncode:
            raise LenderAwayError(last_line(done.stderr) or f"{self._commands.list[0]} failed")
        try:
            return {str(one["id"]): _facts(one) for one in json.loads(done.stdout)}
        except (ValueError, TypeError, KeyError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise LenderAwayError(f"{self._commands.list[0]} does not list loans: {what}") from None

    def call_off(self, id: str, job: str) -> None:
        """Have a node ended. Raises LenderAwayError."""
        self._run(self._commands.shrink, {"id": id, "job": job})

    def preview(self, id: str, invitation: Path) -> Iterator[str]:
        """Refuse: commands do what they do. Raises LenderRefusedError."""
        raise LenderRefusedError("it is of kind hook: run its commands by hand")

    def log(self, id: str) -> str:
        """Return what the pilot of a loan has printed. Raises LenderRefusedError."""
        return read_log(self._folder, id)

    def _run(self, command: Sequence[str], wanted: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command, input=json.dumps(wanted), capture_output=True, text=True, timeout=ANSWER_S, errors="replace"
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LenderAwayError(f"{command[0]}: {error}") from None


def _facts(one: Mapping[str, Any]) -> LenderFacts:
    until = one.get("until")
    return LenderFacts(
        _STATES[one["state"]],
        str(one.get("job") or one["id"]),
        str(one.get("reason") or ""),
        None if until is None else float(until),
        one.get("dead") is True,
    )
