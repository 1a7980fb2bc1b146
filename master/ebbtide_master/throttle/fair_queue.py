"""Work that waits for its turn: whoever brings much of it waits behind themselves, not the others behind them."""

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

Work = TypeVar("Work")

OURS: Final = ""
"""The line of what the master does by itself."""

_LINE: ContextVar[str] = ContextVar("line", default=OURS)


def stand_in(line: str) -> None:
    """Whatever this task, or one that it starts, brings from now on waits in ``line``."""
    _LINE.set(line)


def own_line() -> str:
    """Where what this task brings waits."""
    return _LINE.get()


class _Line(Generic[Work]):
    __slots__ = ("back", "coming", "room", "works")

    def __init__(self, most: int) -> None:
        self.works: deque[Work] = deque()
        self.room = asyncio.Semaphore(most)
        self.coming = 0  # in the line, or waiting for room in it
        self.back = 0  # in the line once more, though their room was given up


class FairQueue(Generic[Work]):
    """Lines of work, one per user, agent, or whatever brings it; the first of each in turn. ``most`` fit into one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[str, _Line[Work]] = {}
        self._next: deque[str] = deque()  # lines in which something waits

    def __bool__(self) -> bool:
        return bool(self._next)

    async def put(self, work: Work) -> None:
        """Add it to the end of its line; waits for room in that."""
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
        """Add what the master does by itself, for which there is always room."""
        line = self._lines.setdefault(OURS, _Line(self._most))
        line.coming += 1
        self._add(OURS, line, work)

    def put_back(self, name: str, work: Work) -> None:
        """Work of that line of which only a part was done: it is the first there, once it is the line's turn again."""
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
        """The first of the line whose turn it is. There has to be one."""
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
