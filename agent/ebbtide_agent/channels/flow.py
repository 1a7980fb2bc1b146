"""Copies bytes between a channel and non-blocking descriptors of this process."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ebbtide_agent.channels.channel_end import ChannelEnd


async def copy_out(client: ChannelEnd, source: int, ended: asyncio.Event, *, errors: bool = False) -> None:
    """Send all data of the source to its end. Once the writer has `ended`, send what is left and return."""
    while True:
        # Checked before reading, so that data that was written before the end is read.
        last = ended.is_set()
        room = await client.room()
        try:
            data = os.read(source, room)
        except BlockingIOError:
            if last:
                return
            await _first(readable(source), ended.wait())
            continue
        except OSError:
            return  # EIO: no process has the terminal open any more
        if not data:
            return
        client.send(data, errors=errors)


async def copy_in(client: ChannelEnd, sink: int) -> None:
    """Write the client's data to its end; drop the rest once the sink has no reader any more."""
    while data := await client.receive():
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(sink, rest) :]
            except BlockingIOError:
                await writable(sink)
            except OSError:
                # The sink has no reader any more: drop this data, and acknowledge it below.
                rest = rest[len(rest) :]
        client.done_with(len(data))


async def readable(descriptor: int) -> None:
    """Wait until the descriptor has data or is at its end."""
    loop = asyncio.get_running_loop()
    await _ready(lambda wake: loop.add_reader(descriptor, wake), lambda: loop.remove_reader(descriptor))


async def writable(descriptor: int) -> None:
    """Wait until the descriptor takes data."""
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
    """Wait for the first of these, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
