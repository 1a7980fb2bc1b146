"""When an attempt's processes are signalled and when they are killed. Pure: `now` is an argument, in seconds."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

LEADER = 0
# Exit codes of those who saved what they wanted to: see core's outcome.py, which reads all exits.
LEAVING = frozenset({75, 85, 99, 143})

# After the leader has ended well, the other ranks may take so long to end by themselves.
_FOLLOW_S = 10.0
# After a rank has failed, the others, and those that it leaves behind, are signalled and may take so long; they often
# hang in a collective.
_FAILED_S = 5.0


class Due(Enum):
    """What is to be done now."""

    NOTHING = auto()
    SIGNAL = auto()
    KILL = auto()


@dataclass(slots=True)
class AttemptEnding:
    """The way to the end of one attempt, from its launched processes' exits and the requests to stop it."""

    running: set[int]  # local ranks
    kill_at: float = math.inf
    stop_requested_at: float | None = None
    failed_rank: int | None = None
    _signal_wanted: bool = False
    _signalled: bool = False

    def request_stop(self, grace_s: float, now: float) -> None:
        """A second request can only shorten the grace period of the first."""
        if self.stop_requested_at is None:
            self.stop_requested_at = now
            # What has begun to end by itself is not disturbed: only its time may become shorter.
            self._signal_wanted |= LEADER in self.running
        self.kill_at = min(self.kill_at, now + grace_s)

    def rank_ended(self, rank: int, failed: bool, now: float) -> None:
        """One launched process has ended. After a request to stop all have the full grace period, whoever ends how."""
        self.running.discard(rank)
        if self.stop_requested_at is not None:
            return
        if failed and self.failed_rank is None:
            self.failed_rank = rank
        if failed:
            self._signal_wanted = True
            self.kill_at = min(self.kill_at, now + _FAILED_S)
        elif rank == LEADER:
            self.kill_at = min(self.kill_at, now + _FOLLOW_S)

    def signalled(self) -> None:
        """The signal that was due has been sent; it is never sent twice."""
        self._signalled = True

    def due(self, now: float, handlers_live: bool) -> Due:
        """`handlers_live`: processes that were signalled and handle it still run, maybe without a launched one."""
        # Whoever is left behind by one that failed may have something to save, also if nobody launched is left.
        unasked = self._signal_wanted and not self._signalled
        if now >= self.kill_at or not (self.running or handlers_live or (unasked and self.failed_rank is not None)):
            return Due.KILL
        return Due.SIGNAL if unasked else Due.NOTHING


def is_failure(returncode: int) -> bool:
    """Whether it says that something failed, and not only that it left."""
    return returncode > 0 and returncode not in LEAVING


def ended_after_others(returncode: int, left_with: Sequence[int], signum: int) -> int:
    """How a process counts as ended that was signalled only after all below it had left, and these with such codes.

    It would have ended as those below it did. That one of them succeeded does not say that all is done: it is read as
    if it had ended by the signal, also where it had to be killed, or calls it a failure to be ended.
    """
    if returncode >= 0 and not is_failure(returncode):
        return returncode
    return max((code for code in left_with if code > 0), key=is_failure, default=-signum)


def all_failed(codes: Collection[int | None]) -> bool:
    """Whether all of these, which were asked to leave, ended with an exit code that says that they failed.

    Where that of any is not known, as of one that another process has buried, nothing is said.
    """
    return bool(codes) and all(code is not None and is_failure(code) for code in codes)
