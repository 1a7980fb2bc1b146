"""Bounds what each user has at a time: open calls, calls that are worked on, unfinished jobs, and places on a node."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from weakref import WeakValueDictionary

from ebbtide_core.cluster import Cluster
from ebbtide_core.model.spec.program import text_size
from ebbtide_core.model.types import JobId

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


class UserSlots:
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


class OnePerUser:
    """Lets one call of each user, and ``at_once`` in all, take a copy of all jobs; the other calls wait."""

    def __init__(self, at_once: int) -> None:
        self._each = UserSlots(1)
        self._room = asyncio.Semaphore(at_once)

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn of ``user``, and hold it for as long as the block lasts."""
        async with self._each.of(user), self._room:
            yield


class CountLimit:
    """Allows each user at most ``most`` of what ``count`` counts in the cluster.

    It knows only an upper bound: the last count and everything added since. A user who seems to be at the limit is
    counted again, at most every `_RECOUNT_S`.
    """

    def __init__(
        self, most: int, count: Callable[[Cluster, str], int], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._most = most
        self._count = count
        self._now = now
        self._at_most: dict[str, int] = {}
        self._counted: dict[str, float] = {}

    def add(self, cluster: Cluster, user: str, more: int) -> int | None:
        """Note that the user gets ``more``, and return None; return what the user has if that would be too many."""
        has = self._at_most.get(user)
        if has is None or has + more > self._most:
            has = self._recount(cluster, user)
        if has + more > self._most:
            return has
        self._at_most[user] = has + more
        return None

    def _recount(self, cluster: Cluster, user: str) -> int:
        now = self._now()
        if user not in self._counted or now - self._counted[user] >= _RECOUNT_S:
            self._counted[user] = now
            self._at_most[user] = self._count(cluster, user)
        return self._at_most[user]


class UnfinishedJobs:
    """Allows each user at most ``most`` unfinished jobs, unless the administrator gave the user a quota."""

    def __init__(self, most: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._jobs = CountLimit(most, _unfinished, now)

    def add(self, cluster: Cluster, user: str, jobs: int) -> None:
        """Note that the user submits so many. Raises `FullError` at the limit."""
        if cluster.state.settings.quotas.of(user).queued is not None:
            return  # the core looks at that
        if (has := self._jobs.add(cluster, user, jobs)) is not None:
            more = "one more is" if jobs == 1 else f"{jobs} more are"
            raise FullError(f"{user} has {has} unfinished jobs: {more} over the limit of {self._most}")


class JobTexts:
    """Allows each user ``most`` bytes of commands, scripts and environments in the jobs that the master has in memory.

    ``env_size`` returns the bytes of the environment of a job, or of an array, whose tasks share one.
    """

    def __init__(self, most: int, env_size: Callable[[JobId], int], now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._env_size = env_size
        self._bytes = CountLimit(most, self._count, now)

    def add(self, cluster: Cluster, user: str, size: int) -> None:
        """Note that the user submits so many bytes. Raises `FullError` at the limit."""
        if self._bytes.add(cluster, user, size) is not None:
            raise FullError(
                f"the commands, scripts and environments of the jobs of {user} would come to more than {self._most} "
                "bytes: remove some that are over (ebb rm)"
            )

    def _count(self, cluster: Cluster, user: str) -> int:
        theirs = [job for job in cluster.state.jobs.values() if job.user == user]
        owners = {job.id if job.lineage.task is None else job.lineage.task.array for job in theirs}
        return sum(text_size(job.spec) for job in theirs) + sum(map(self._env_size, owners))


def _unfinished(cluster: Cluster, user: str) -> int:
    return sum(job.user == user for job in cluster.state.unfinished.values())


def may_take(own: int, taken: int, most: int) -> bool:
    """Whether a user who has ``own`` of the ``taken`` places of a node may have another one; there are ``most``.

    A user without a place gets one if one is free, and a user alone on the node gets half of them.
    """
    return own < most - taken
