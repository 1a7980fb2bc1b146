"""All that is counted to limit what users ask for, in one place for all calls."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from enum import Enum, auto
from typing import Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.model import limits

from ebbtide_master.identity.caller import Caller, Role
from ebbtide_master.throttle.places import OpenCalls, Places, UnfinishedJobs
from ebbtide_master.throttle.rates import Bucket, TooFastError, UserLimits

REMEMBERED: Final = 4096
"""Users whose buckets are kept; who was forgotten has full ones."""
PAGES_AT_ONCE: Final = 2
"""Pages of one user that are on their way."""
TURN_S: Final = 0.1
"""Whoever reads slowly keeps a turn no longer."""


class Kind(Enum):
    """What is open."""

    CALL = auto()  # waits for its answer
    STREAM = auto()  # is read from
    AGENT = auto()  # an agent's stream; without certificates all of them are one account's


class _Buckets:
    __slots__ = ("calls", "jobs", "reads", "told")

    def __init__(self, rates: UserLimits, now: float) -> None:
        self.calls = Bucket(rates.calls, now)
        self.jobs = Bucket(rates.jobs, now)
        self.reads = Bucket(rates.reads, now)
        self.told = Bucket(rates.told, now)


class _Turn:
    """Ends once, whoever ends it first."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns: asyncio.Semaphore | None = turns

    def end(self) -> None:
        if self._turns is not None:
            self._turns.release()
            self._turns = None


class Throttle:
    """What all users have and do, of which each may do so much at ``rates``, and have so many ``unfinished`` jobs.

    ``now`` is monotonic time in seconds.
    """

    def __init__(
        self,
        rates: UserLimits,
        unfinished: int = limits.MAX_UNFINISHED_JOBS_PER_USER,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rates = rates
        self._now = now
        self._buckets: OrderedDict[tuple[str, Role], _Buckets] = OrderedDict()
        self._open = {
            Kind.CALL: OpenCalls("calls", limits.MAX_CALLS_PER_USER, limits.MAX_CALLS),
            Kind.STREAM: OpenCalls("streams", limits.MAX_STREAMS_PER_USER, limits.MAX_STREAMS),
            Kind.AGENT: OpenCalls("agents' streams", limits.MAX_NODES, limits.MAX_NODES),
        }
        self._work = Places(limits.CALLS_AT_A_TIME)
        self._next_page = Places(1)
        self._pages = Places(PAGES_AT_ONCE)
        self._unfinished = UnfinishedJobs(unfinished, now)

    def open(self, kind: Kind, user: str) -> AbstractContextManager[None]:
        """One more of that user's, for as long as the block lasts. Raises `FullError`."""
        return self._open[kind].one_more(user)

    def read(self, caller: Caller) -> None:
        """Count a question. Raises `TooFastError`."""
        wait_s = self._of(caller).reads.take(1, self._now())
        if wait_s:
            raise TooFastError(f"{caller.user} asks too much at a time", wait_s)

    def change(self, caller: Caller, jobs: int = 0) -> None:
        """Count what changes something, and the ``jobs`` that it submits. Raises `TooFastError`."""
        if jobs:
            self.add_jobs(caller, jobs)
        if wait_s := self._of(caller).calls.take(1, self._now()):
            raise TooFastError(f"{caller.user} submits or changes too much at a time", wait_s)

    def add_jobs(self, caller: Caller, jobs: int) -> None:
        """Count jobs that a change submits, where only its method knows how many. Raises `TooFastError`."""
        if wait_s := self._of(caller).jobs.take(jobs, self._now()):
            raise TooFastError(f"{caller.user} submits too many jobs at a time ({jobs} more)", wait_s)

    def work(self, user: str) -> asyncio.Semaphore:
        """To be held while a call of that user is worked on: a few are at a time, whatever waits."""
        return self._work.of(user)

    def submit(self, cluster: Cluster, user: str, jobs: int) -> None:
        """Note that the user submits so many. Raises `FullError` if those would be too many unfinished ones."""
        self._unfinished.add(cluster, user, jobs)

    def tell(self, caller: Caller, changes: float) -> float:
        """How many seconds to wait before ``changes`` are told; 0.0: they are counted, and may be told now."""
        return self._of(caller).told.take(changes, self._now())

    @asynccontextmanager
    async def page(self, caller: Caller, changes: float) -> AsyncIterator[None]:
        """A turn to be told of so many changes, for as long as the block lasts or `TURN_S`.

        The streams of one user take turns, so that many take no more of the master than a few. What changes meanwhile
        is told with it, once.
        """
        async with self._next_page.of(caller.user):  # else all would wake for what one may have
            while wait_s := self.tell(caller, changes):
                await asyncio.sleep(wait_s)
        turns = self._pages.of(caller.user)
        await turns.acquire()
        turn = _Turn(turns)
        late = asyncio.get_running_loop().call_later(TURN_S, turn.end)
        try:
            yield
        finally:
            late.cancel()
            turn.end()

    def _of(self, caller: Caller) -> _Buckets:
        key = (caller.user, caller.role)
        found = self._buckets.get(key)
        if found is None:
            found = self._buckets[key] = _Buckets(self._rates.of(caller.role), self._now())
            if len(self._buckets) > REMEMBERED:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        return found
