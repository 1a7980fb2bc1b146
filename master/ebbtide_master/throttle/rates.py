"""How fast each user may ask for things: one bucket of tokens for what changes something, one for jobs, one for reads.

What fits in is served at once; what does not is refused with the time after which it will be, so that nothing piles up.
"""

from dataclasses import dataclass
from typing import Final

from ebbtide_core.model import limits

from ebbtide_master.identity.caller import Role

STAFF: Final = 10
"""How many times as much operators and admins may do: what they run asks for many users."""


class TooFastError(Exception):
    """A user asks for more than there may be at a time; ``wait_s`` seconds later it will be served."""

    def __init__(self, what: str, wait_s: float) -> None:
        super().__init__(f"{what}: try again in {wait_s:.1f} s")
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class RateLimit:
    """``per_s`` in the long run, and ``burst`` at once after a pause."""

    per_s: float
    burst: float

    def times(self, factor: float) -> "RateLimit":
        """So many times as fast."""
        return RateLimit(self.per_s * factor, self.burst * factor)


@dataclass(frozen=True, slots=True)
class UserLimits:
    """What one user may do: ``calls`` that change something, ``jobs`` submitted, ``reads``; what they are ``told``."""

    calls: RateLimit = RateLimit(limits.CALLS_PER_S, limits.CALLS_AT_ONCE)
    jobs: RateLimit = RateLimit(limits.JOBS_PER_S, limits.JOBS_AT_ONCE)
    reads: RateLimit = RateLimit(limits.READS_PER_S, limits.READS_AT_ONCE)
    told: RateLimit = RateLimit(limits.TOLD_PER_S, limits.TOLD_AT_ONCE)

    def of(self, role: Role) -> "UserLimits":
        """Those of somebody in that role."""
        if role < Role.OPERATOR:
            return self
        return UserLimits(*(rate.times(STAFF) for rate in (self.calls, self.jobs, self.reads, self.told)))


class Bucket:
    """Holds what may still be done; filled at its rate, on a clock that never jumps."""

    __slots__ = ("_left", "_rate", "_then")

    def __init__(self, rate: RateLimit, now: float) -> None:
        self._rate = rate
        self._left = rate.burst
        self._then = now

    def take(self, cost: float, now: float) -> float:
        """Take ``cost`` out and return 0.0, or nothing and return the seconds until there is enough.

        What costs more than fits in is served when the bucket is full, and is then paid for by waiting longer.
        """
        rate = self._rate
        self._left = min(rate.burst, self._left + (now - self._then) * rate.per_s)
        self._then = now
        lacking = min(cost, rate.burst) - self._left
        if lacking > 0.0:
            return lacking / rate.per_s
        self._left -= cost
        return 0.0
