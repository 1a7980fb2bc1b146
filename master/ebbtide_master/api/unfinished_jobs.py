"""How many unfinished jobs each user has, so that nobody fills the queue for all."""

import time
from collections.abc import Callable
from typing import Final

from ebbtide_core.cluster import Cluster, Refusal, RefusalKind

from ebbtide_master.loop import RefusedError

_RECOUNT_S: Final = 1.0
"""Who is at the limit is counted again no sooner: that looks at every job."""


class Queued:
    """At most ``most`` per user, unless the administrator gave them a quota of their own.

    It is known at most how many a user has: those of the last count, and all submitted since. Who seems to be at the
    limit is counted again.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._at_most: dict[str, int] = {}
        self._counted: dict[str, float] = {}

    def add(self, cluster: Cluster, user: str, jobs: int) -> None:
        """Note that the user submits so many. Raises `RefusedError` at the limit."""
        if cluster.state.settings.quotas.of(user).queued is not None:
            return  # the core looks at that
        has = self._at_most.get(user)
        if has is None or has + jobs > self._most:
            has = self._count(cluster, user)
        if has + jobs > self._most:
            more = "one more is" if jobs == 1 else f"{jobs} more are"
            message = f"{user} has {has} unfinished jobs: {more} over the limit of {self._most}"
            raise RefusedError(Refusal(RefusalKind.LIMIT, message))
        self._at_most[user] = has + jobs

    def _count(self, cluster: Cluster, user: str) -> int:
        now = self._now()
        if user not in self._counted or now - self._counted[user] >= _RECOUNT_S:
            self._counted[user] = now
            self._at_most[user] = sum(job.user == user for job in cluster.state.unfinished.values())
        return self._at_most[user]
