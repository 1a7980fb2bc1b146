"""An asyncio loop in which time passes only when everybody waits."""

import asyncio
import selectors
from collections.abc import Coroutine, Iterable
from typing import Any


class DeadlockError(AssertionError):
    """Everybody waits, and nothing will ever happen."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock starts at 0 and jumps to the next timer. Nothing real is waited for."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now


class _Selector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise DeadlockError
        self._loop.now += max(0.0, timeout)
        return []


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """The result of ``main`` in a loop of its own; what it left running is cancelled."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        cancelled = [task for task in asyncio.all_tasks(loop) if task.cancel()]
        loop.run_until_complete(settled(cancelled))
        loop.close()


async def settled(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Wait until all have ended, however."""
    await asyncio.gather(*tasks, return_exceptions=True)
