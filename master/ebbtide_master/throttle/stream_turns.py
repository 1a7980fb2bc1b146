"""Streams that tell of jobs: those of one user take turns, so that many take no more of the master than a few."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from ebbtide_master.identity.caller import Caller
from ebbtide_master.throttle.rates import Meter

AT_ONCE: Final = 2
"""Pages of one user that are on their way."""
TURN_S: Final = 0.1
"""Whoever reads slowly keeps a turn no longer."""


class Telling:
    """Whose turn it is to be told a page. What changes meanwhile is told with it, once."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def page(self, caller: Caller, changes: float) -> AsyncIterator[None]:
        """A turn, for so many changes, for as long as the block lasts or `TURN_S`."""
        async with self._queues.setdefault(caller.user, asyncio.Lock()):  # else all would wake for what one may have
            while wait_s := self._meter.tell(caller, changes):
                await asyncio.sleep(wait_s)
        turns = self._turns.setdefault(caller.user, asyncio.Semaphore(AT_ONCE))
        await turns.acquire()
        turn = _Turn(turns)
        late = asyncio.get_running_loop().call_later(TURN_S, turn.end)
        try:
            yield
        finally:
            late.cancel()
            turn.end()


class _Turn:
    """Ends once, whoever ends it first."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns: asyncio.Semaphore | None = turns

    def end(self) -> None:
        if self._turns is not None:
            self._turns.release()
            self._turns = None
