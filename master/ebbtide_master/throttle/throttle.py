"""Holds in one object all counts that limit the users' calls."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from enum import Enum, auto
from typing import Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.model import limits
from ebbtide_core.model.spec.program import ProgramSpec, text_size
from ebbtide_core.model.types import JobId

from ebbtide_master.identity.caller import Caller, Role
from ebbtide_master.throttle.concurrency import JobTexts, OpenCalls, UnfinishedJobs, UserSlots
from ebbtide_master.throttle.rates import Bucket, TooFastError, UserLimits

REMEMBERED: Final = 4096
"""Number of users whose buckets are kept; a user that was dropped starts with full ones."""
PAGES_AT_ONCE: Final = 2
"""Pages of one user that may be sent at the same time."""
TURN_S: Final = 0.1
"""Longest time in seconds for which a slow reader keeps a turn."""


class CallKind(Enum):
    """Kind of an open call."""

    CALL = auto()  # a call with one answer
    STREAM = auto()  # a stream that a client reads
    AGENT = auto()  # an agent's stream; without certificates all of them are of one account


class _Buckets:
    __slots__ = ("calls", "jobs", "reads", "watched")

    def __init__(self, rates: UserLimits, now: float) -> None:
        self.calls = Bucket(rates.calls, now)
        self.jobs = Bucket(rates.jobs, now)
        self.reads = Bucket(rates.reads, now)
        self.watched = Bucket(rates.watched, now)


class _Turn:
    """Releases its semaphore at the first call of `end`, and never again."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns: asyncio.Semaphore | None = turns

    def end(self) -> None:
        if self._turns is not None:
            self._turns.release()
            self._turns = None


class Throttle:
    """Limits each user to the ``rates``, to so many ``unfinished`` jobs, and to a number of open calls.

    ``env_size`` returns the bytes of the environment of a job or an array, and ``now`` monotonic time in seconds.
    """

    def __init__(
        self,
        rates: UserLimits,
        unfinished: int = limits.MAX_UNFINISHED_JOBS_PER_USER,
        env_size: Callable[[JobId], int] = lambda job: 0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rates = rates
        self._now = now
        self._buckets: OrderedDict[tuple[str, Role], _Buckets] = OrderedDict()
        self._open = {
            CallKind.CALL: OpenCalls("calls", limits.MAX_CALLS_PER_USER, limits.MAX_CALLS),
            CallKind.STREAM: OpenCalls("streams", limits.MAX_STREAMS_PER_USER, limits.MAX_STREAMS),
            CallKind.AGENT: OpenCalls("agents' streams", limits.MAX_AGENTS, limits.MAX_AGENTS),
        }
        self._work = UserSlots(limits.CALLS_AT_A_TIME)
        self._next_page = UserSlots(1)
        self._pages = UserSlots(PAGES_AT_ONCE)
        self._unfinished = UnfinishedJobs(unfinished, now)
        self._texts = JobTexts(limits.MAX_TEXT_BYTES_PER_USER, env_size, now)

    def open(self, kind: CallKind, user: str) -> AbstractContextManager[None]:
        """Count one more open call of ``user`` for as long as the block lasts. Raises `FullError`."""
        return self._open[kind].one_more(user)

    def read(self, caller: Caller) -> None:
        """Count a question. Raises `TooFastError`."""
        wait_s = self._of(caller).reads.take(1, self._now())
        if wait_s:
            raise TooFastError(f"{caller.user} asks too much at a time", wait_s)

    def change(self, caller: Caller, jobs: int = 0) -> None:
        """Count a call that changes something, and the ``jobs`` that it submits. Raises `TooFastError`."""
        if jobs:
            self.add_jobs(caller, jobs)
        if wait_s := self._of(caller).calls.take(1, self._now()):
            raise TooFastError(f"{caller.user} submits or changes too much at a time", wait_s)

    def add_jobs(self, caller: Caller, jobs: int) -> None:
        """Count the jobs that a change submits, if only its method knows how many. Raises `TooFastError`."""
        if wait_s := self._of(caller).jobs.take(jobs, self._now()):
            raise TooFastError(f"{caller.user} submits too many jobs at a time ({jobs} more)", wait_s)

    def work(self, user: str) -> asyncio.Semaphore:
        """Return the semaphore to hold while a call of ``user`` is worked on, so that only a few are at a time."""
        return self._work.of(user)

    def submit(self, cluster: Cluster, user: str, jobs: Sequence[ProgramSpec], env_bytes: int) -> None:
        """Note that ``user`` submits ``jobs``, which share an environment of ``env_bytes``.

        Raises `FullError` if too many would be unfinished, or take too much.
        """
        self._texts.add(cluster, user, sum(map(text_size, jobs)) + env_bytes)
        self._unfinished.add(cluster, user, len(jobs))

    def tell(self, caller: Caller, changes: float) -> float:
        """Return the seconds to wait before so many ``changes`` may be sent; 0.0 counts them, and they may go now."""
        return self._of(caller).watched.take(changes, self._now())

    @asynccontextmanager
    async def page(self, caller: Caller, changes: float) -> AsyncIterator[None]:
        """Wait for a turn to send so many ``changes``, and hold it for as long as the block lasts, or for `TURN_S`.

        The streams of one user take turns, so that many streams cost the master no more than a few. What changes while
        a stream waits is sent once, in the same page.
        """
        async with self._next_page.of(caller.user):  # otherwise all streams would wake when only one may send
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
