"""A stream lives longer than the moment in which its caller was admitted: it ends when that would not be any more."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ebbtide_master.identity.caller import Caller, NotKnownError


class Standing:
    """Whether ``caller`` may still have what was opened; for ``expires_in_s`` seconds, if that is not None."""

    def __init__(self, caller: Caller, expires_in_s: float | None = None) -> None:
        self.caller = caller
        self._why = ""
        self._waiting: asyncio.Timeout | None = None
        self._timer = None
        if expires_in_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, expires_in_s), self.end, f"the token of {caller.user} has expired")

    async def next_of(self, replies: AsyncIterator[Any]) -> Any:
        """The next reply, None if there is none; `NotKnownError` as soon as it does not hold any more."""
        if self._why:
            raise NotKnownError(self._why)
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await anext(replies, None)
        except TimeoutError:
            if not self._why:  # it is one of the method's own
                raise
            raise NotKnownError(self._why) from None
        finally:
            self._waiting = None

    def end(self, why: str) -> None:
        """It holds no more, for the first reason that there was."""
        self._why = self._why or why
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        """Nobody asks any more."""
        if self._timer is not None:
            self._timer.cancel()
