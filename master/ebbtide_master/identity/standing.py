"""Ends a stream when its caller would no longer be admitted, because a stream outlives the check at its start."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ebbtide_master.identity.caller import Caller, NotKnownError


class Standing:
    """Whether ``caller`` may keep an open stream; if ``expires_in_s`` is not None, for that many seconds at most."""

    def __init__(self, caller: Caller, expires_in_s: float | None = None) -> None:
        self.caller = caller
        self._why = ""
        self._waiting: asyncio.Timeout | None = None
        self._timer = None
        if expires_in_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, expires_in_s), self.end, f"the token of {caller.user} has expired")

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Run the block, which is cancelled as soon as the standing ends. Raises `NotKnownError` then."""
        try:
            async with asyncio.timeout(None) as self._waiting:
                if self._why:
                    raise NotKnownError(self._why)
                yield
        except TimeoutError:
            if not self._why:  # the block itself raised this error
                raise
            raise NotKnownError(self._why) from None
        finally:
            self._waiting = None

    def end(self, why: str) -> None:
        """End the standing; of several reasons, the first one counts."""
        self._why = self._why or why
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        """Cancel the timer, because the stream has ended."""
        if self._timer is not None:
            self._timer.cancel()
