"""Between a line and descriptors of this process that do not block."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ebbtide_agent.channels.line import ChannelEnd


async def copy_out(line: ChannelEnd, source: int, ended: asyncio.Event, *, errors: bool = False) -> None:
    """Send what can be read, to its end; once whoever writes has `ended`, what is there then is all."""
    while True:
        # Asked before reading: what was written before the end is then read.
        last = ended.is_set()
        room = await line.room()
        try:
            data = os.read(source, room)
        except BlockingIOError:
            if last:
                return
            await _first(readable(source), ended.wait())
            continue
        except OSError:
            return  # EIO: a terminal that nobody has open any more
        if not data:
            return
        line.send(data, errors=errors)


async def copy_in(line: ChannelEnd, sink: int) -> None:
    """Write what arrives until the client sends no more, or nobody reads it."""
    while data := await line.receive():
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(sink, rest) :]
            except BlockingIOError:
                await writable(sink)
            except OSError:
                # Nobody reads it any more: the rest is dropped, as far as it still comes.
                rest = rest[len(rest) :]
        line.done_with(len(data))


async def readable(descriptor: int) -> None:
    """Wait until there is something to read, or the end."""
    loop = asyncio.get_running_loop()
    await _ready(lambda wake: loop.add_reader(descriptor, wake), lambda: loop.remove_reader(descriptor))


async def writable(descriptor: int) -> None:
    """Wait until something can be written."""
    loop = asyncio.get_running_loop()
    await _ready(lambda wake: loop.add_writer(descriptor, wake), lambda: loop.remove_writer(descriptor))


async def _ready(begin: Callable[[Callable[[], None]], None], end: Callable[[], object]) -> None:
    ready = asyncio.Event()
    begin(ready.set)
    try:
        await ready.wait()
    finally:
        end()


async def _first(*waits: Awaitable[object]) -> None:
    """Wait for one of these and give up the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
