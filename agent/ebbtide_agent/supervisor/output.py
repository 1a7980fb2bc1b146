"""What the attempt prints: looked through, put together from its ranks, copied to where it is wanted.

A job's processes write to files themselves: nothing that could end before them stands between. What is done with it
beyond that is done here, a little later.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.supervisor.log_cap import LogCap
from ebbtide_agent.supervisor.log_rules import LogRules
from ebbtide_agent.supervisor.log_times import LogTimes
from ebbtide_agent.supervisor.output_file import OutputFile
from ebbtide_agent.supervisor.ranks_output import RanksOutput
from ebbtide_agent.supervisor.status import LogMatch


@dataclass(frozen=True, slots=True)
class _Pace:
    """How soon a line is noticed, and how often a quiet log is looked at, in seconds."""

    first_s: float
    longest_s: float
    growth: float = 1.5

    def after(self, pause_s: float, *, busy: bool) -> float:
        return self.first_s if busy else min(self.growth * pause_s, self.longest_s)


_FOR_RULES = _Pace(0.25, 2.0)
_FOR_READERS = _Pace(0.05, 0.5)  # people look at what is copied
_FOR_DISK = _Pace(0.25, 5.0)  # a disk is not full in a moment


class Output:
    """All that one attempt prints on this node."""

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
        self._pause_s = self._pace.after(self._pause_s, busy=self._look(final=False))
        self.next_at = now + self._pause_s
        return len(self._rules.matches) > known

    def finish(self, patience_s: float) -> None:
        """Look at all that is left; nobody prints any more. What is copied and does not go on gets so long."""
        if self._file is not None:
            self._file.patience_s = patience_s
        self._look(final=True)
        for part in (self._ranks, self._file):
            if part is not None:
                part.close()

    def _look(self, *, final: bool) -> bool:
        # The ranks' lines first: the file is copied from where they are put together.
        # Last, what nobody has to look at any more is given up.
        parts = (self._ranks, self._file, self._rules, self._times, self._cap)
        grown = [part.look(final=final) for part in parts if part is not None]
        return any(grown)


def open_files(intent: Intent, place: AttemptDir) -> list[int]:
    """The files that the attempt's processes write to, one for each. Raises OSError."""
    return [_open(path, intent.account) for path, _ in _printers(intent, place)]


def complete(intent: Intent, place: AttemptDir) -> None:
    """Put together what the ranks printed after their supervisor had died; none of them may live. Raises OSError."""
    ranks = _ranks_output(intent, place)
    if ranks is not None:
        ranks.look(final=True)
        ranks.close()


def _printers(intent: Intent, place: AttemptDir) -> list[tuple[Path, tuple[str, ...]]]:
    """Each file that is written to, and the GPUs of whoever does."""
    if not intent.rank_files:
        return [(place.output, tuple(gpu.uuid for gpu in intent.gpus))]
    gpus: list[tuple[str, ...]] = [(gpu.uuid,) for gpu in intent.gpus] or [()]
    return [(place.rank_output(intent.first_rank + local_rank), own) for local_rank, own in enumerate(gpus)]


def _files(intent: Intent, place: AttemptDir) -> list[Path]:
    """All that the node keeps of what is printed."""
    return list(dict.fromkeys([place.output, *(path for path, _ in _printers(intent, place))]))


def _ranks_output(intent: Intent, place: AttemptDir) -> RanksOutput | None:
    if not intent.rank_files:
        return None
    ranks = range(intent.first_rank, intent.first_rank + intent.processes)
    named = [(f"[{rank}] " if intent.prefix_ranks else "", place.rank_output(rank)) for rank in ranks]
    return RanksOutput(named, place.output, place.ranks_record)


def _header(intent: Intent) -> str:
    """What stands before the output of a later attempt, which is appended to that of the first."""
    return f"--- job {intent.job_id}, attempt {intent.attempt} ---\n" if intent.attempt > 1 else ""


def _open(path: Path, account: Account | None) -> int:
    """In a directory that is ours alone; the file is the account's, whose programs may open their own output anew."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    if account is not None:
        os.fchown(descriptor, account.uid, account.gid)
    return descriptor
