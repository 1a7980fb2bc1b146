"""How many calls and streams each user has open, and all together: one user's never fill the master."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final
from weakref import WeakValueDictionary

from ebbtide_core.model import limits

_IN_ALL: Final = object()


class CrowdedError(Exception):
    """Too much is open already; the message says whose, and the limit."""


class Crowd:
    """What is open now, of one kind."""

    def __init__(self, what: str, each: int, in_all: int) -> None:
        self._what = what
        self._each = each
        self._in_all = in_all
        self._open: Counter[object] = Counter()

    @contextmanager
    def one_more(self, user: str) -> Iterator[None]:
        """One more of that user, for as long as the block lasts. Raises `CrowdedError`."""
        if self._open[user] >= self._each:
            raise CrowdedError(f"{user} has {self._each} {self._what} open already, which is the limit")
        if self._open[_IN_ALL] >= self._in_all:
            raise CrowdedError(f"the master has {self._in_all} {self._what} open already, which is the limit")
        self._open.update((user, _IN_ALL))
        try:
            yield
        finally:
            self._open.subtract((user, _IN_ALL))
            if not self._open[user]:
                del self._open[user]


class OneEach:
    """Who does something that takes a copy of all jobs: one of each user, and ``at_once`` in all; the others wait."""

    def __init__(self, at_once: int) -> None:
        self._room = asyncio.Semaphore(at_once)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, user: str) -> AsyncIterator[None]:
        """It is the user's turn for as long as the block lasts."""
        async with self._turns.setdefault(user, asyncio.Lock()), self._room:
            yield


def crowd_of_calls() -> Crowd:
    """Calls that wait for their answer."""
    return Crowd("calls", limits.MAX_CALLS_PER_USER, limits.MAX_CALLS)


def crowd_of_streams() -> Crowd:
    """Streams that somebody reads from."""
    return Crowd("streams", limits.MAX_STREAMS_PER_USER, limits.MAX_STREAMS)


def crowd_of_agents() -> Crowd:
    """Agents' streams; without certificates all of them are one account's."""
    return Crowd("agents' streams", limits.MAX_NODES, limits.MAX_NODES)
