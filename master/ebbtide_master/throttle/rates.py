"""How fast each user may ask for things: one bucket of tokens for what changes something, one for jobs, one for reads.

What fits in is served at once; what does not is refused with the time after which it will be, so that nothing piles up.
"""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ebbtide_core.model import limits

from ebbtide_master.identity.caller import Caller, Role

STAFF: Final = 10
"""How many times as much operators and admins may do: what they run asks for many users."""
_REMEMBERED: Final = 4096
"""Users whose buckets are kept; who was forgotten has full ones."""


class TooFastError(Exception):
    """A user asks for more than there may be at a time; ``wait_s`` seconds later it will be served."""

    def __init__(self, what: str, wait_s: float) -> None:
        super().__init__(f"{what}: try again in {wait_s:.1f} s")
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_s`` in the long run, and ``burst`` at once after a pause."""

    per_s: float
    burst: float

    def times(self, factor: float) -> "Rate":
        """So many times as fast."""
        return Rate(self.per_s * factor, self.burst * factor)


@dataclass(frozen=True, slots=True)
class Rates:
    """What one user may do: ``calls`` that change something, ``jobs`` submitted, ``reads``; what they are ``told``."""

    calls: Rate = Rate(limits.CALLS_PER_S, limits.CALLS_AT_ONCE)
    jobs: Rate = Rate(limits.JOBS_PER_S, limits.JOBS_AT_ONCE)
    reads: Rate = Rate(limits.READS_PER_S, limits.READS_AT_ONCE)
    told: Rate = Rate(limits.TOLD_PER_S, limits.TOLD_AT_ONCE)

    def of(self, role: Role) -> "Rates":
        """Those of somebody in that role."""
        if role < Role.OPERATOR:
            return self
        return Rates(*(rate.times(STAFF) for rate in (self.calls, self.jobs, self.reads, self.told)))


class Bucket:
    """Holds what may still be done; filled at its rate, on a clock that never jumps."""

    __slots__ = ("_left", "_rate", "_then")

    def __init__(self, rate: Rate, now: float) -> None:
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


class _User:
    __slots__ = ("calls", "jobs", "reads", "told")

    def __init__(self, rates: Rates, now: float) -> None:
        self.calls = Bucket(rates.calls, now)
        self.jobs = Bucket(rates.jobs, now)
        self.reads = Bucket(rates.reads, now)
        self.told = Bucket(rates.told, now)


class Meter:
    """The buckets of all users. ``now`` is monotonic time in seconds."""

    def __init__(self, rates: Rates, now: Callable[[], float] = time.monotonic) -> None:
        self._rates = rates
        self._now = now
        self._users: OrderedDict[tuple[str, Role], _User] = OrderedDict()

    def read(self, caller: Caller) -> None:
        """Count a question. Raises `TooFastError`."""
        wait_s = self._user(caller).reads.take(1, self._now())
        if wait_s:
            raise TooFastError(f"{caller.user} asks too much at a time", wait_s)

    def change(self, caller: Caller, jobs: int = 0) -> None:
        """Count what changes something, and the ``jobs`` that it submits. Raises `TooFastError`."""
        user, now = self._user(caller), self._now()
        if jobs and (wait_s := user.jobs.take(jobs, now)):
            raise TooFastError(f"{caller.user} submits too many jobs at a time ({jobs} more)", wait_s)
        if wait_s := user.calls.take(1, now):
            raise TooFastError(f"{caller.user} submits or changes too much at a time", wait_s)

    def tell(self, caller: Caller, changes: float) -> float:
        """How many seconds to wait before ``changes`` are told; 0.0: they are counted, and may be told now."""
        return self._user(caller).told.take(changes, self._now())

    def _user(self, caller: Caller) -> _User:
        key = (caller.user, caller.role)
        user = self._users.get(key)
        if user is None:
            user = self._users[key] = _User(self._rates.of(caller.role), self._now())
            if len(self._users) > _REMEMBERED:
                self._users.popitem(last=False)
        self._users.move_to_end(key)
        return user
