"""What the attempt prints: looked through, put together from its ranks, copied to where it is wanted.

A job's processes write to files themselves: nothing that could end before them stands between. What is done with it
beyond that is done here, a little later.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from ebbtide_agent.attempt_dir import AttemptDir
from ebbtide_agent.supervisor.intent import Intent
from ebbtide_agent.supervisor.log_rules import LogRules
from ebbtide_agent.supervisor.status import LogMatch

# How soon a line is noticed, and how often a quiet log is looked at.
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 2.0
_PAUSE_GROWTH = 1.5


class Output:
    """All that one attempt prints on this node."""

    def __init__(self, intent: Intent, place: AttemptDir) -> None:
        self._rules = LogRules(intent.log_rules, _printers(intent, place))
        self._pause_s = _FIRST_PAUSE_S
        self.next_at = _FIRST_PAUSE_S if intent.log_rules else math.inf

    @property
    def matches(self) -> Sequence[LogMatch]:
        """The rules that were found so far."""
        return self._rules.matches

    def begin(self, now: float) -> None:
        """The first look comes a moment after monotonic time `now`."""
        self.next_at += now

    def look(self, now: float) -> bool:
        """Look at what was printed, if it is time to; whether a rule was found."""
        if now < self.next_at:
            return False
        known = len(self._rules.matches)
        busy = self._rules.look()
        self._pause_s = _FIRST_PAUSE_S if busy else min(_PAUSE_GROWTH * self._pause_s, _LONGEST_PAUSE_S)
        self.next_at = now + self._pause_s
        return len(self._rules.matches) > known

    def finish(self) -> None:
        """Look at all that is left; nobody prints any more."""
        self._rules.look(final=True)


def open_files(intent: Intent, place: AttemptDir) -> list[int]:
    """The files that the attempt's processes write to, one for each. Raises OSError."""
    return [_open(path) for path, _ in _printers(intent, place)]


def _printers(intent: Intent, place: AttemptDir) -> list[tuple[Path, tuple[str, ...]]]:
    """Each file that is written to, and the GPUs of whoever does."""
    return [(place.output, tuple(gpu.uuid for gpu in intent.gpus))]


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)
