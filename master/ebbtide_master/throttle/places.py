"""Bounds what each user has at a time: open calls, calls that are worked on, unfinished jobs, and places on a node."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from weakref import WeakValueDictionary

from ebbtide_core.cluster import Cluster

_IN_ALL: Final = object()
_RECOUNT_S: Final = 1.0
"""Shortest time in seconds between two counts of a user's jobs, because a count looks at every job."""


class FullError(Exception):
    """A limit is reached; the message names the user or the master, and the limit."""


class OpenCalls:
    """Counts the open calls of one kind, and refuses more than ``each`` of one user and more than ``in_all``."""

    def __init__(self, what: str, each: int, in_all: int) -> None:
        self._what = what
        self._each = each
        self._in_all = in_all
        self._open: Counter[object] = Counter()

    @contextmanager
    def one_more(self, user: str) -> Iterator[None]:
        """Count one more call of ``user`` for as long as the block lasts. Raises `FullError`."""
        if self._open[user] >= self._each:
            raise FullError(f"{user} has {self._each} {self._what} open already, which is the limit")
        if self._open[_IN_ALL] >= self._in_all:
            raise FullError(f"the master has {self._in_all} {self._what} open already, which is the limit")
        self._open.update((user, _IN_ALL))
        try:
            yield
        finally:
            self._open.subtract((user, _IN_ALL))
            if not self._open[user]:
                del self._open[user]


class Places:
    """Gives each user ``each`` places; more calls of that user wait for a place, in the order in which they came."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, user: str) -> asyncio.Semaphore:
        """Return the semaphore of ``user``'s places; a call holds one of them."""
        found = self._of.get(user)
        if found is None:
            found = self._of[user] = asyncio.Semaphore(self._each)
        return found


class OneEach:
    """Lets one call of each user, and ``at_once`` in all, take a copy of all jobs; the other calls wait."""

    def __init__(self, at_once: int) -> None:
        self._each = Places(1)
        self._room = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn of ``user``, and hold it for as long as the block lasts."""
        async with self._each.of(user), self._room:
            yield


class UnfinishedJobs:
    """Bounds each user's unfinished jobs to ``most``, unless the administrator gave the user a quota of waiting jobs.

    The known number is an upper bound: the jobs of the last count, and all that were submitted since. The jobs of a
    user who seems to be at the limit are counted again.
    """

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._at_most: dict[str, int] = {}
        self._counted: dict[str, float] = {}

    def add(self, cluster: Cluster, user: str, jobs: int) -> None:
        """Note that ``user`` submits so many ``jobs``. Raises `FullError` at the limit."""
        if cluster.state.settings.quotas.of(user).queued is not None:
            return  # the core checks the quota
        has = self._at_most.get(user)
        if has is None or has + jobs > self._most:
            has = self._count(cluster, user)
        if has + jobs > self._most:
            more = "one more is" if jobs == 1 else f"{jobs} more are"
            raise FullError(f"{user} has {has} unfinished jobs: {more} over the limit of {self._most}")
        self._at_most[user] = has + jobs

    def _count(self, cluster: Cluster, user: str) -> int:
        now = self._now()
        if user not in self._counted or now - self._counted[user] >= _RECOUNT_S:
            self._counted[user] = now
            self._at_most[user] = sum(job.user == user for job in cluster.state.unfinished.values())
        return self._at_most[user]


def may_take(own: int, taken: int, most: int) -> bool:
    """Whether a user who has ``own`` of the ``taken`` places of a node may have another one; there are ``most``.

    A user without a place gets one if one is free, and a user alone on the node gets half of them.
    """
    return own < most - taken
