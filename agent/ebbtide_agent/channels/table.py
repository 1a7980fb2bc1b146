"""Serves every channel that is open on this node. Channels end with the stream to the master, as it carries them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Protocol

from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import channel_pb2

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.channels.channel_end import ChannelEnd, ChannelError, Put
from ebbtide_agent.channels.input import feed
from ebbtide_agent.channels.inside import run_inside
from ebbtide_agent.channels.port import forward
from ebbtide_agent.channels.session import attach
from ebbtide_agent.channels.tree import send
from ebbtide_agent.contract.attempt_dir import AttemptDir, AttemptKey

_ANSWER_S = 10.0
"""Seconds in which the account and the directory of a job's files must be found."""

log = logging.getLogger(__name__)


class ChannelTargets(Protocol):
    """Gives access to the attempts of this node, which channels lead to."""

    def place(self, job_id: str, attempt: int) -> AttemptDir: ...
    def runs(self, job_id: str, attempt: int) -> bool: ...
    def roots(self, job_id: str) -> dict[str, Path]: ...
    def copied_workdir(self, job_id: str) -> Path | None: ...
    def pids_of(self, job_id: str, attempt: int) -> tuple[int, ...]: ...
    def account(self, job_id: str, attempt: int) -> Account | None: ...
    def shell(self, job_id: str, attempt: int) -> str: ...


class ChannelTable:
    """Opens the channels that the master asks for, and passes their messages on."""

    def __init__(self, inside: ChannelTargets, node: str = "") -> None:
        self._inside = inside
        self._node = node
        self._put: Put | None = None
        self._ends: dict[int, ChannelEnd] = {}
        self._served: dict[int, asyncio.Task[None]] = {}
        self._keys: dict[int, AttemptKey] = {}
        self._bytes: Counter[AttemptKey] = Counter()  # passed through channels that are closed

    def attach(self, put: Put) -> None:
        """Send over this stream from now on."""
        self._put = put

    async def detach(self) -> None:
        """End every channel, because the stream has ended."""
        self._put = None
        served = list(self._served.values())
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)

    def bytes_of(self, job_id: str, attempt: int) -> int:
        """Return how many bytes have passed through the attempt's channels, both ways together."""
        key = (job_id, attempt)
        return self._bytes[key] + sum(self._ends[channel].bytes for channel, to in self._keys.items() if to == key)

    def warn(self, job_id: str, attempt: int, words: str) -> None:
        """Show this on every terminal that is attached to the attempt."""
        for channel, to in self._keys.items():
            if to == (job_id, attempt):
                self._ends[channel].say(words)

    def take(self, message: channel_pb2.ChannelInput) -> None:
        """Take a message from the stream."""
        match message.WhichOneof("body"):
            case "open" if self._put is not None and message.channel not in self._ends:
                client = self._ends[message.channel] = ChannelEnd(message.channel, self._put)
                serving = self._serve(message.channel, client, message.open)
                self._served[message.channel] = asyncio.create_task(serving, name=f"channel {message.channel}")
            case "close":
                if (task := self._served.get(message.channel)) is not None:
                    task.cancel()
            case _:
                if (known := self._ends.get(message.channel)) is not None:
                    known.take(message)

    async def _serve(self, channel: int, client: ChannelEnd, want: channel_pb2.OpenChannel) -> None:
        what = want.WhichOneof("want")
        key = self._keys[channel] = (want.job_id, want.attempt)
        client.has_terminal = what == "session" or want.run.terminal
        facts = (channel, what, want.job_id, want.attempt, want.user)
        log.info("event=channel-opened channel=%d want=%s job=%s attempt=%d user=%r", *facts)
        try:
            closed = await self._opened(client, want)
        except ChannelError as error:
            closed = channel_pb2.ChannelClosed(error=str(error))
        except Exception as error:  # a job's sockets and files may do anything, and must not end other channels
            log.exception("event=channel-failed channel=%d want=%s", channel, what)
            closed = channel_pb2.ChannelClosed(error=f"the node failed: {type(error).__name__}")
        finally:
            self._bytes[key] += client.bytes
            del self._ends[channel], self._served[channel], self._keys[channel]
            log.info("event=channel-closed channel=%d bytes=%d", channel, client.bytes)
        client.closed(closed)

    def _opened(self, client: ChannelEnd, want: channel_pb2.OpenChannel) -> Awaitable[channel_pb2.ChannelClosed]:
        """Serve the channel to its end. Raises ChannelError."""
        key = (want.job_id, want.attempt)
        place = self._inside.place(*key)
        opened = channel_pb2.ChannelOpened(node=self._node, attempt=want.attempt)
        if want.WhichOneof("want") == "tree":
            return self._send(client, want, opened)
        if not self._inside.runs(*key):
            raise ChannelError(f"attempt {want.attempt} of job {want.job_id} does not run on this node")
        match want.WhichOneof("want"):
            case "run":
                return run_inside(client, place.process_socket, want.run, opened, self._inside.shell(*key))
            case "input":
                return feed(client, place.input_socket, opened)
            case "session":
                return attach(client, place.session_socket, want.session, opened)
            case "port":
                if (port := want.port or place.port) is None:
                    raise ChannelError(f"job {want.job_id} serves no port that it was given: name one")
                return forward(client, port, partial(self._inside.pids_of, *key), opened)
        raise ChannelError("this node's version cannot do that")

    async def _send(
        self, client: ChannelEnd, want: channel_pb2.OpenChannel, opened: channel_pb2.ChannelOpened
    ) -> channel_pb2.ChannelClosed:
        try:
            async with asyncio.timeout(_ANSWER_S):
                account = await on_daemon_thread(partial(self._inside.account, want.job_id, want.attempt))
                workdir = await on_daemon_thread(partial(self._inside.copied_workdir, want.job_id))
        except FileNotFoundError:
            raise ChannelError(f"job {want.job_id} has no files on this node") from None
        except TimeoutError:
            raise ChannelError(f"the directory of job {want.job_id} does not answer") from None
        if workdir is not None:
            want.tree.workdir = str(workdir)
        return await send(client, want.tree, self._inside.roots(want.job_id), opened, account)
