"""Decide when an attempt's processes are signalled and when they are killed. Pure: `now` is an argument, in seconds."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto

LEADER = 0
# Exit codes of processes that left after they had saved: see core's outcome.py, which reads all exits.
LEAVING = frozenset({75, 85, 99, 143})

# The other ranks have this time to end by themselves after the leader has ended well.
_FOLLOW_S = 10.0
# After a rank has failed, the other ranks and its remaining children are signalled, and have this time: they often hang
# in a collective.
_FAILED_S = 5.0


class DueAction(Enum):
    """What the supervisor has to do now."""

    NOTHING = auto()
    SIGNAL = auto()
    KILL = auto()


@dataclass(slots=True)
class AttemptEnding:
    """Follows one attempt to its end, from the exits of its launched processes and the requests to stop it."""

    running: set[int]  # local ranks
    kill_at: float = math.inf
    stop_requested_at: float | None = None
    failed_rank: int | None = None
    _signal_wanted: bool = False
    _signalled: bool = False

    def request_stop(self, grace_s: float, now: float) -> None:
        """Note a request to stop; a second one can only shorten the grace period of the first."""
        if self.stop_requested_at is None:
            self.stop_requested_at = now
            # An attempt that ends by itself already is not signalled: only its time may become shorter.
            self._signal_wanted |= LEADER in self.running
        self.kill_at = min(self.kill_at, now + grace_s)

    def rank_ended(self, rank: int, failed: bool, now: float) -> None:
        """Note that a launched process has ended. After a request to stop, all others keep the full grace period."""
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
        """Note that the signal that was due has been sent; it is never sent twice."""
        self._signalled = True

    def due(self, now: float, handlers_live: bool) -> DueAction:
        """Return what to do now; `handlers_live`: signalled processes with a handler still run, even if no launched one
        does."""
        # Processes that a failed rank leaves behind may have something to save, even if no launched process is left.
        unasked = self._signal_wanted and not self._signalled
        if now >= self.kill_at or not (self.running or handlers_live or (unasked and self.failed_rank is not None)):
            return DueAction.KILL
        return DueAction.SIGNAL if unasked else DueAction.NOTHING


def is_failure(returncode: int) -> bool:
    """Return whether a return code says that something failed, and not only that the process left."""
    return returncode > 0 and returncode not in LEAVING


def ended_after_others(returncode: int, left_with: Sequence[int], signum: int) -> int:
    """Return the code of a process that was ended only after all processes below it had left, with the codes
    `left_with`.

    It counts as ended the way they did. A success among them does not prove that all work is done, so the process then
    counts as ended by the signal, even if it had to be killed or calls being ended a failure.
    """
    if returncode >= 0 and not is_failure(returncode):
        return returncode
    return max((code for code in left_with if code > 0), key=is_failure, default=-signum)


def all_failed(codes: Collection[int | None]) -> bool:
    """Return whether all processes that were asked to leave ended with an exit code that says that they failed.

    Return False if one code is unknown (None), as of a process that another process has reaped.
    """
    return bool(codes) and all(code is not None and is_failure(code) for code in codes)
