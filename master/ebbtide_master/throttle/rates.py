"""Limits how fast each user may call, with token buckets for changes, for submitted jobs, for reads and for pages.

A call that the bucket has tokens for is served at once. Another one is refused with the time after which it will be
served, so that no calls pile up.
"""

from dataclasses import dataclass
from typing import Final

from ebbtide_core.model import limits

from ebbtide_master.identity.caller import Role

STAFF: Final = 10
"""Factor for the rates of operators and admins, because their programs ask on behalf of many users."""


class TooFastError(Exception):
    """A user's call exceeds a rate; the same call will be served ``wait_s`` seconds later."""

    def __init__(self, what: str, wait_s: float) -> None:
        super().__init__(f"{what}: try again in {wait_s:.1f} s")
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A rate: ``per_s`` per second in the long run, and ``burst`` at once after a pause."""

    per_s: float
    burst: float

    def times(self, factor: float) -> "RateLimit":
        """Return a rate that is ``factor`` times as fast."""
        return RateLimit(self.per_s * factor, self.burst * factor)


@dataclass(frozen=True, slots=True)
class UserLimits:
    """Rates of one user: ``calls`` that change something, submitted ``jobs``, ``reads``, and job states ``watched``."""

    calls: RateLimit = RateLimit(limits.CALLS_PER_S, limits.CALLS_AT_ONCE)
    jobs: RateLimit = RateLimit(limits.JOBS_PER_S, limits.JOBS_AT_ONCE)
    reads: RateLimit = RateLimit(limits.READS_PER_S, limits.READS_AT_ONCE)
    watched: RateLimit = RateLimit(limits.WATCHED_PER_S, limits.WATCHED_AT_ONCE)

    def of(self, role: Role) -> "UserLimits":
        """Return the limits of a user in ``role``."""
        if role < Role.OPERATOR:
            return self
        return UserLimits(*(rate.times(STAFF) for rate in (self.calls, self.jobs, self.reads, self.watched)))


class Bucket:
    """A token bucket: it holds what may still be done, and is filled at its rate. Times are monotonic seconds."""

    __slots__ = ("_left", "_rate", "_then")

    def __init__(self, rate: RateLimit, now: float) -> None:
        self._rate = rate
        self._left = rate.burst
        self._then = now

    def take(self, cost: float, now: float) -> float:
        """Take ``cost`` out and return 0.0, or take nothing and return the seconds until there is enough.

        A cost above the burst is taken from a full bucket, and the calls after it wait longer.
        """
        rate = self._rate
        self._left = min(rate.burst, self._left + (now - self._then) * rate.per_s)
        self._then = now
        lacking = min(cost, rate.burst) - self._left
        if lacking > 0.0:
            return lacking / rate.per_s
        self._left -= cost
        return 0.0
