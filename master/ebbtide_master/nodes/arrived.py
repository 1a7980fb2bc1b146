"""Reads a stream ahead, so that what comes while one message is taken in can be taken in together."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TypeVar

Message = TypeVar("Message")


async def arrived(
    stream: AsyncIterator[Message], most: int, at_once: Callable[[Message], bool] = lambda message: False
) -> AsyncGenerator[list[Message], None]:
    """Yield the messages that have arrived since the last ones, in their order, at least one and ``most`` at most.

    While those before are all taken in, a message for which ``at_once`` returns True is not yielded: it took it in.
    Raises what ended the stream, once all that came before is yielded.
    """
    waiting: deque[Message] = deque()
    room, news = asyncio.Semaphore(most), asyncio.Event()

    async def read() -> None:
        async for message in stream:
            if not news.is_set() and at_once(message):
                continue
            await room.acquire()
            waiting.append(message)
            news.set()

    reading = asyncio.create_task(read())
    reading.add_done_callback(lambda _: news.set())
    try:
        while waiting or not reading.done():
            if not waiting:
                news.clear()
                await news.wait()
                continue
            messages = list(waiting)
            waiting.clear()
            for _ in messages:
                room.release()
            yield messages
        reading.result()
    finally:
        reading.cancel()
