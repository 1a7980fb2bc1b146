"""Process what an attempt prints: merge its ranks' logs, copy them to the user's file, search them, and cap them.

A job's processes write to log files directly, so that no process between them and the log can end first. This module
reads the logs a little later.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.supervisor.status import MatchedLine
from ebbtide_agent.supervisor.streams.log_cap import LogCap
from ebbtide_agent.supervisor.streams.log_rules import LogRules
from ebbtide_agent.supervisor.streams.log_times import LogTimes
from ebbtide_agent.supervisor.streams.output_file import OutputFile
from ebbtide_agent.supervisor.streams.ranks_output import RanksOutput


@dataclass(frozen=True, slots=True)
class _PollPause:
    """The pause between two looks at a log, in seconds: `first_s` after new output, growing while it is quiet."""

    first_s: float
    longest_s: float
    growth: float = 1.5

    def after(self, pause_s: float, *, busy: bool) -> float:
        return self.first_s if busy else min(self.growth * pause_s, self.longest_s)


_FOR_RULES = _PollPause(0.25, 2.0)
_FOR_READERS = _PollPause(0.05, 0.5)  # users watch the copies
_FOR_DISK = _PollPause(0.25, 5.0)  # a disk does not fill in a moment


class Output:
    """Follows all that one attempt prints on this node."""

    def __init__(self, intent: Intent, place: AttemptDir) -> None:
        """Raises OSError."""
        self._rules = LogRules(intent.log_rules, _printers(intent, place))
        self._ranks = _ranks_output(intent, place)
        self._file = None
        if intent.output:
            self._file = OutputFile(place.output, Path(intent.output), _header(intent), intent.account)
        copies = self._ranks is not None or self._file is not None
        self._cap = LogCap(_files(intent, place), intent.log_bytes) if intent.log_bytes else None
        self._times = LogTimes(_files(intent, place))
        self._pace = _FOR_READERS if copies else _FOR_RULES if intent.log_rules else _FOR_DISK
        self._pause_s = self.next_at = self._pace.first_s

    @property
    def matches(self) -> Sequence[MatchedLine]:
        """The rule matches that were found so far."""
        return self._rules.matches

    def begin(self, now: float) -> None:
        """Schedule the first look shortly after the monotonic time `now`."""
        self.next_at += now

    def look(self, now: float) -> bool:
        """Look at what was printed, if a look is due, and return whether a rule was found."""
        if now < self.next_at:
            return False
        known = len(self._rules.matches)
        self._pause_s = self._pace.after(self._pause_s, busy=self._look(final=False))
        self.next_at = now + self._pause_s
        return len(self._rules.matches) > known

    def finish(self, patience_s: float) -> None:
        """Look at all that is left, after the last process has ended. A copy may stall for `patience_s` seconds."""
        if self._file is not None:
            self._file.patience_s = patience_s
        self._look(final=True)
        for part in (self._ranks, self._file):
            if part is not None:
                part.close()

    def _look(self, *, final: bool) -> bool:
        # The ranks' logs are merged first, because the user's file is copied from the merged log.
        # The cap comes last, because it frees what the other parts have read.
        parts = (self._ranks, self._file, self._rules, self._times, self._cap)
        grown = [part.look(final=final) for part in parts if part is not None]
        return any(grown)


def open_files(intent: Intent, place: AttemptDir) -> list[int]:
    """Open the files that the attempt's processes write to: one for each rank, or one for all. Raises OSError."""
    return [_open(path, intent.account) for path, _ in _printers(intent, place)]


def complete(intent: Intent, place: AttemptDir) -> None:
    """Merge what the ranks printed after their supervisor had died; no rank may still run. Raises OSError."""
    ranks = _ranks_output(intent, place)
    if ranks is not None:
        ranks.look(final=True)
        ranks.close()


def _printers(intent: Intent, place: AttemptDir) -> list[tuple[Path, tuple[str, ...]]]:
    """Return each file that processes write to, and the UUIDs of those processes' GPUs."""
    if not intent.rank_files:
        return [(place.output, tuple(gpu.uuid for gpu in intent.gpus))]
    gpus: list[tuple[str, ...]] = [(gpu.uuid,) for gpu in intent.gpus] or [()]
    return [(place.rank_output(intent.first_rank + local_rank), own) for local_rank, own in enumerate(gpus)]


def _files(intent: Intent, place: AttemptDir) -> list[Path]:
    """Return all log files that the node keeps of the attempt."""
    return list(dict.fromkeys([place.output, *(path for path, _ in _printers(intent, place))]))


def _ranks_output(intent: Intent, place: AttemptDir) -> RanksOutput | None:
    if not intent.rank_files:
        return None
    ranks = range(intent.first_rank, intent.first_rank + intent.processes)
    named = [(f"[{rank}] " if intent.prefix_ranks else "", place.rank_output(rank)) for rank in ranks]
    return RanksOutput(named, place.output, place.ranks_record)


def _header(intent: Intent) -> str:
    """Return the line before a later attempt's output, which is appended to the first one's; empty for the first."""
    return f"--- job {intent.job_id}, attempt {intent.attempt} ---\n" if intent.attempt > 1 else ""


def _open(path: Path, account: Account | None) -> int:
    """Open a log in a directory of the agent's alone. The account owns the file: its programs may open it again."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    if account is not None:
        os.fchown(descriptor, account.uid, account.gid)
    return descriptor
