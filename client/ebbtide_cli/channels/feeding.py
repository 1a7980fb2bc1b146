"""Send this process's standard input to a job, until its end or until the job wants no more, across failures."""

import asyncio
import os
import threading
import time
from collections import deque
from typing import Final

from ebbtide_core.model import limits
from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import channel_pb2

from ebbtide_cli.channels.client_channel import ClientChannel, open_channel
from ebbtide_cli.channels.waiting import try_to_cancel
from ebbtide_cli.errors import Failure
from ebbtide_cli.masters.connection import RETRY_S
from ebbtide_cli.submitting.checks import user_name

LONGEST_PAUSE_S: Final = 2.0
"""Seconds between two tries, at most."""
LASTING_S: Final = 30.0
"""Seconds for which the input cannot be sent before this is reported as the reason why the job failed."""
_STDIN: Final = 0


class _InputLost(Exception):
    """The job cannot get all of its input any more; the message says why."""


class Feeder:
    """Send the input on a thread of its own, while another thread shows the job's output."""

    def __init__(self, master: str | None, job_id: str) -> None:
        self._master = master
        self._want = channel_pb2.OpenChannel(job_id=job_id, user=user_name(), input=channel_pb2.FeedInput())
        self._sent = deque[bytes]()  # what was read and the job may not have yet: at most a window and a frame
        self._taken = 0  # bytes of the input before `_sent`, which the job has
        self._reading: asyncio.Future[bytes] | None = None
        self._at_end = False
        self.has_sent_all = False
        """Whether the job has all of its input, or wants no more."""
        self._lost = ""
        self._failing: tuple[float, str] | None = None  # since when the input cannot be sent, and why

    @property
    def trouble(self) -> str:
        """Why the job did not get its input; empty if it did, or if sending fails only since the job has just ended."""
        if self._lost or self._failing is None:
            return self._lost
        since, why = self._failing
        return why if time.monotonic() - since > LASTING_S else ""

    def start(self) -> None:
        """Start sending. Nothing waits for the thread to end, because a read may never return."""
        threading.Thread(target=self._run, name="standard input", daemon=True).start()

    def _run(self) -> None:
        try:
            asyncio.run(self._send_all())
        except _InputLost as lost:
            self._lost = str(lost)
            try_to_cancel(self._master, self._want.job_id)

    async def _send_all(self) -> None:
        pause_s = RETRY_S
        while not self.has_sent_all:
            try:
                await self._send()
            except Failure as failure:  # reported if the job fails; the follower decides to give up
                pause_s = RETRY_S if self._failing is None else min(2 * pause_s, LONGEST_PAUSE_S)
                since = time.monotonic() if self._failing is None else self._failing[0]
                self._failing = since, failure.message
                await asyncio.sleep(pause_s)
        # As in a shell's pipeline, a program that writes to a pipe without a reader is to get an error.
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(null, _STDIN)
        os.close(null)

    async def _send(self) -> None:
        """Send the input over one channel, for as long as the channel works. Raises `Failure`, _InputLost."""
        async with open_channel(self._master, self._want) as channel:
            self._failing = None
            self._drop(channel.opened.input_taken)
            tasks = [asyncio.create_task(self._pass_on(channel)), asyncio.create_task(_listen(channel))]
            sending, listening = tasks
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if not listening.done():
                    await sending
                await listening
                self.has_sent_all = True
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(self, channel: ClientChannel) -> None:
        taken = self._taken
        for data in list(self._sent):
            await channel.send(data)
        while data := await self._next():
            self._drop(taken + channel.consumed)
            self._sent.append(data)
            await channel.send(data)
        await channel.send_end()

    def _drop(self, taken: int) -> None:
        """Forget the first ``taken`` bytes of the input, which the job has. Raises _InputLost."""
        if taken < self._taken:
            raise _InputLost(f"the job has {taken} bytes of it, and should have {self._taken}")
        while self._taken < taken:
            if not self._sent:
                raise _InputLost(f"the job has {taken} bytes of it, and only {self._taken} were sent")
            first = self._sent.popleft()
            count = min(len(first), taken - self._taken)
            self._taken += count
            if first[count:]:
                self._sent.appendleft(first[count:])

    async def _next(self) -> bytes:
        """Return the next part of the input, empty at its end. What is read as a channel breaks goes to the next."""
        if self._at_end:
            return b""
        if self._reading is None:
            self._reading = on_daemon_thread(lambda: os.read(_STDIN, limits.CHANNEL_FRAME_BYTES))
        try:
            data = await asyncio.shield(self._reading)
        except OSError as error:
            raise _InputLost(f"it cannot be read: {error.strerror}") from None
        self._reading, self._at_end = None, not data
        return data


async def _listen(channel: ClientChannel) -> None:
    """Wait until the job wants no more input. Raises ChannelLost."""
    async for _ in channel.frames():
        pass
