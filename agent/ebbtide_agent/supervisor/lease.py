"""How long an attempt may run on while its master is not heard. Pure: `now` is an argument.

All times are of CLOCK_BOOTTIME, which everybody on this machine shares until it is booted anew, which goes on while
the machine sleeps, and which nobody sets. The lease runs from when the agent sent what the master acknowledged last;
the master counts from later, and longer.
"""

import time
from dataclasses import dataclass


def boottime() -> float:
    """Seconds since the machine was booted, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Lease:
    """`term_s` after `renewed` no process of the attempt is left; it is asked to stop the grace period before."""

    term_s: float
    grace_s: float
    renewed: float

    def renew(self, at: float, now: float) -> None:
        """The master has acknowledged what was sent at that time; nothing can be acknowledged before it is sent."""
        self.renewed = max(self.renewed, min(at, now))

    def left_s(self, now: float) -> float:
        """Seconds until its end."""
        return max(0.0, self.renewed + self.term_s - now)

    def is_ending(self, now: float) -> bool:
        """Whether no more than the grace period is left."""
        return self.left_s(now) <= self.grace_s


def is_over_before_it_begins(term_s: float | None, grace_s: float, renewed: float) -> bool:
    """Whether an attempt with such a lease, if it has one, would have to end as soon as it is launched."""
    return term_s is not None and Lease(term_s, grace_s, renewed).is_ending(boottime())
