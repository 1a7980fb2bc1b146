"""Queues work fairly: a user who brings much work waits behind that work, and other users do not."""

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

Work = TypeVar("Work")

OURS: Final = ""
"""Name of the queue for what the master does by itself."""

_QUEUE: ContextVar[str] = ContextVar("queue", default=OURS)


def use_queue(queue: str) -> None:
    """Let the work that this task, and tasks that it starts, bring from now on wait in the queue ``queue``."""
    _QUEUE.set(queue)


def current_queue() -> str:
    """Return the name of the queue in which this task's work waits."""
    return _QUEUE.get()


class _UserQueue(Generic[Work]):
    __slots__ = ("back", "coming", "room", "works")

    def __init__(self, most: int) -> None:
        self.works: deque[Work] = deque()
        self.room = asyncio.Semaphore(most)
        self.coming = 0  # works that are in the queue, or wait for room in it
        self.back = 0  # works that were put back into the queue after they gave up their room


class FairQueue(Generic[Work]):
    """Has a queue for each user or agent, takes the first work of each in turn, and bounds each queue to ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queues: dict[str, _UserQueue[Work]] = {}
        self._next: deque[str] = deque()  # names of the queues in which work waits

    def __bool__(self) -> bool:
        return bool(self._next)

    async def put(self, work: Work) -> None:
        """Add ``work`` to the end of the calling task's queue, as soon as there is room in it."""
        name = current_queue()
        queue = self._queues.setdefault(name, _UserQueue(self._most))
        queue.coming += 1
        try:
            await queue.room.acquire()
        except asyncio.CancelledError:
            self._leave(name, queue)
            raise
        self._add(name, queue, work)

    def put_now(self, work: Work) -> None:
        """Add work of the master itself, for which there is always room."""
        queue = self._queues.setdefault(OURS, _UserQueue(self._most))
        queue.coming += 1
        self._add(OURS, queue, work)

    def put_back(self, name: str, work: Work) -> None:
        """Put partly done work back as the first of the queue ``name``, which waits for its next turn."""
        queue = self._queues.setdefault(name, _UserQueue(self._most))
        queue.coming += 1
        queue.back += 1
        if not queue.works:
            self._next.append(name)
        queue.works.appendleft(work)

    def _add(self, name: str, queue: _UserQueue[Work], work: Work) -> None:
        if not queue.works:
            self._next.append(name)
        queue.works.append(work)

    def take(self) -> Work:
        """Remove and return the first work of the queue whose turn it is. There must be some."""
        name = self._next.popleft()
        queue = self._queues[name]
        work = queue.works.popleft()
        if queue.works:
            self._next.append(name)
        if queue.back:
            queue.back -= 1
        else:
            queue.room.release()
        self._leave(name, queue)
        return work

    def _leave(self, name: str, queue: _UserQueue[Work]) -> None:
        queue.coming -= 1
        if not queue.coming:
            del self._queues[name]
