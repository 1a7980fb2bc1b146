"""Queues work fairly: a user who brings much work waits behind that work, and other users do not."""

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

Work = TypeVar("Work")

OURS: Final = ""
"""Name of the queue for what the master does by itself."""

_LINE: ContextVar[str] = ContextVar("line", default=OURS)


def stand_in(line: str) -> None:
    """Let the work that this task, and tasks that it starts, bring from now on wait in the queue ``line``."""
    _LINE.set(line)


def own_line() -> str:
    """Return the name of the queue in which this task's work waits."""
    return _LINE.get()


class _Line(Generic[Work]):
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
        self._lines: dict[str, _Line[Work]] = {}
        self._next: deque[str] = deque()  # names of the queues in which work waits

    def __bool__(self) -> bool:
        return bool(self._next)

    async def put(self, work: Work) -> None:
        """Add ``work`` to the end of the calling task's queue, as soon as there is room in it."""
        name = own_line()
        line = self._lines.setdefault(name, _Line(self._most))
        line.coming += 1
        try:
            await line.room.acquire()
        except asyncio.CancelledError:
            self._leave(name, line)
            raise
        self._add(name, line, work)

    def put_now(self, work: Work) -> None:
        """Add work of the master itself, for which there is always room."""
        line = self._lines.setdefault(OURS, _Line(self._most))
        line.coming += 1
        self._add(OURS, line, work)

    def put_back(self, name: str, work: Work) -> None:
        """Put partly done work back as the first of the queue ``name``, which waits for its next turn."""
        line = self._lines.setdefault(name, _Line(self._most))
        line.coming += 1
        line.back += 1
        if not line.works:
            self._next.append(name)
        line.works.appendleft(work)

    def _add(self, name: str, line: _Line[Work], work: Work) -> None:
        if not line.works:
            self._next.append(name)
        line.works.append(work)

    def take(self) -> Work:
        """Remove and return the first work of the queue whose turn it is. There must be some."""
        name = self._next.popleft()
        line = self._lines[name]
        work = line.works.popleft()
        if line.works:
            self._next.append(name)
        if line.back:
            line.back -= 1
        else:
            line.room.release()
        self._leave(name, line)
        return work

    def _leave(self, name: str, line: _Line[Work]) -> None:
        line.coming -= 1
        if not line.coming:
            del self._lines[name]
