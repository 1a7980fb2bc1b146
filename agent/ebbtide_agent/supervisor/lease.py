"""Compute how long an attempt may run without its master being heard. Pure: `now` is an argument.

All times are of CLOCK_BOOTTIME: every process of this machine shares it until the next boot, it goes on while the
machine sleeps, and it cannot be set. The lease begins when the agent sent the message that the master acknowledged
last; the master counts from a later moment, and longer.
"""

import time
from dataclasses import dataclass


def boottime() -> float:
    """Return the seconds since the machine was booted, sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(slots=True)
class Lease:
    """A lease: `term_s` after `renewed` no process is left; the attempt is asked to stop one grace period before."""

    term_s: float
    grace_s: float
    renewed: float

    def renew(self, at: float, now: float) -> None:
        """Note that the master has acknowledged a message sent at `at`; a time after `now` counts as `now`."""
        self.renewed = max(self.renewed, min(at, now))

    def left_s(self, now: float) -> float:
        """Return the seconds until the lease ends."""
        return max(0.0, self.renewed + self.term_s - now)

    def is_ending(self, now: float) -> bool:
        """Return whether no more than the grace period is left."""
        return self.left_s(now) <= self.grace_s


def is_over_before_it_begins(term_s: float | None, grace_s: float, renewed: float) -> bool:
    """Return whether an attempt with this lease, if it has one, would have to end as soon as it is launched."""
    return term_s is not None and Lease(term_s, grace_s, renewed).is_ending(boottime())
