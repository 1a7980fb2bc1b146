"""How much each user may have at a time: calls that are open, work that is done, unfinished jobs, places on a node."""

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
"""The jobs of a user who is at the limit are counted again no sooner: that looks at every job."""


class FullError(Exception):
    """There is too much already; the message says whose, and the limit."""


class OpenCalls:
    """Calls of one kind that are open now: at most ``each`` of one user, and ``in_all``; one more is refused."""

    def __init__(self, what: str, each: int, in_all: int) -> None:
        self._what = what
        self._each = each
        self._in_all = in_all
        self._open: Counter[object] = Counter()

    @contextmanager
    def one_more(self, user: str) -> Iterator[None]:
        """One more of that user, for as long as the block lasts. Raises `FullError`."""
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
    """So many of one user at a time; the others of that user wait, in the order in which they came."""

    def __init__(self, each: int) -> None:
        self._each = each
        self._of: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, user: str) -> asyncio.Semaphore:
        """The places of that user, one of which is to be held."""
        found = self._of.get(user)
        if found is None:
            found = self._of[user] = asyncio.Semaphore(self._each)
        return found


class OneEach:
    """Who does something that takes a copy of all jobs: one of each user, and ``at_once`` in all; the others wait."""

    def __init__(self, at_once: int) -> None:
        self._each = Places(1)
        self._room = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """It is the user's turn for as long as the block lasts."""
        async with self._each.of(user), self._room:
            yield


class UnfinishedJobs:
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
        """Note that the user submits so many. Raises `FullError` at the limit."""
        if cluster.state.settings.quotas.of(user).queued is not None:
            return  # the core looks at that
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

    One who has none gets one as long as there is any; who is alone gets half of them.
    """
    return own < most - taken
