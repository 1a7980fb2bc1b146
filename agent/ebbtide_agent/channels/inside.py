"""Starts a client's process inside a running attempt, whose supervisor owns it; see supervisor/session_processes.py."""

import asyncio
import fcntl
import json
import os
import socket
import struct
import termios
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ebbtide_protos.v1 import channel_pb2

from ebbtide_agent.channels.channel_end import ChannelEnd, ChannelError
from ebbtide_agent.channels.flow import copy_in, copy_out
from ebbtide_agent.supervisor.session_processes import LARGEST_REQUEST

_ANSWER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class StandardStreams:
    """A process's standard streams: `theirs` are its own ends, the others the agent's."""

    theirs: tuple[int, int, int]
    stdin: int
    stdout: int
    stderr: int | None  # None: stdout carries both


async def run_inside(
    client: ChannelEnd, path: Path, want: channel_pb2.RunInside, opened: channel_pb2.ChannelOpened, shell: str
) -> channel_pb2.ChannelClosed:
    """Run the wanted command, or the `shell`, to its end; if cancelled, hang up on it. Raises ChannelError."""
    with ExitStack() as stack:
        supervisor = stack.enter_context(await connect(path))
        with ExitStack() as until_started:
            make = _terminal if want.terminal else _pipes
            streams = make(stack, until_started)
            set_size(streams.stdout, want.size)
            await _start(supervisor, want, streams, shell)
        client.opened(opened)
        client.on_size = lambda size: set_size(streams.stdout, size)
        return await _follow(client, supervisor, streams)


async def _follow(client: ChannelEnd, supervisor: socket.socket, streams: StandardStreams) -> channel_pb2.ChannelClosed:
    ended = asyncio.Event()
    outputs = [copy_out(client, streams.stdout, ended)]
    if streams.stderr is not None:
        outputs.append(copy_out(client, streams.stderr, ended, errors=True))
    feeding = asyncio.create_task(_feed(client, streams), name="channel input")
    reading = [asyncio.create_task(output, name="channel output") for output in outputs]
    try:
        how = await _answer(supervisor)
        ended.set()
        await asyncio.gather(*reading)
    finally:
        for task in (feeding, *reading):
            task.cancel()
        await asyncio.gather(feeding, *reading, return_exceptions=True)
    if "signal" in how:
        return channel_pb2.ChannelClosed(signal=int(how["signal"]))
    return channel_pb2.ChannelClosed(exit_code=int(how["exit_code"]))


async def _feed(client: ChannelEnd, streams: StandardStreams) -> None:
    await copy_in(client, streams.stdin)
    if streams.stdin == streams.stdout:
        with suppress(OSError):
            os.write(streams.stdin, b"\x04")  # the end of the input on a terminal
    else:
        # Close the pipe but keep the descriptor's number taken, because the exit stack closes that number later.
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, streams.stdin, inheritable=False)
        os.close(null)


def set_size(terminal: int, size: channel_pb2.WindowSize) -> None:
    """Set a terminal's size in characters, which its processes notice; do nothing for other descriptors."""
    rows, columns = min(size.rows or 24, 65535), min(size.columns or 80, 65535)
    if os.isatty(terminal):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _terminal(stack: ExitStack, until_started: ExitStack) -> StandardStreams:
    ours, theirs = os.openpty()
    stack.callback(os.close, ours)
    until_started.callback(os.close, theirs)
    os.set_blocking(ours, False)
    return StandardStreams((theirs, theirs, theirs), ours, ours, None)


def _pipes(stack: ExitStack, until_started: ExitStack) -> StandardStreams:
    (stdin, to_it), (from_it, stdout), (errors_from_it, stderr) = (os.pipe2(os.O_CLOEXEC) for _ in range(3))
    for ours, theirs in ((to_it, stdin), (from_it, stdout), (errors_from_it, stderr)):
        stack.callback(os.close, ours)
        until_started.callback(os.close, theirs)
        os.set_blocking(ours, False)
    return StandardStreams((stdin, stdout, stderr), to_it, from_it, errors_from_it)


async def connect(path: Path) -> socket.socket:
    """Connect to one of the attempt's packet sockets. Raises ChannelError."""
    try:
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise ChannelError("the attempt has ended") from None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.setblocking(False)
        # Through the descriptor, because a socket's path must not have more than 107 bytes.
        await asyncio.get_running_loop().sock_connect(connection, f"/proc/self/fd/{directory}/{path.name}")
    except OSError:
        connection.close()
        raise ChannelError("no process listens there: the attempt is ending, or an older version started it") from None
    finally:
        os.close(directory)
    return connection


async def _start(supervisor: socket.socket, want: channel_pb2.RunInside, streams: StandardStreams, shell: str) -> None:
    environment = dict(want.env) | ({} if want.command else {"SHELL": shell})
    request = json.dumps(
        {"command": list(want.command) or [shell], "terminal": want.terminal, "env": environment}
    ).encode()
    if len(request) > LARGEST_REQUEST:
        raise ChannelError(f"the command has more than {LARGEST_REQUEST} bytes")
    socket.send_fds(supervisor, [request], streams.theirs)
    answer = await _answer(supervisor)
    if "error" in answer:
        raise ChannelError(str(answer["error"]))


async def _answer(supervisor: socket.socket) -> dict[str, Any]:
    data = await asyncio.get_running_loop().sock_recv(supervisor, _ANSWER_BYTES)
    if not data:
        raise ChannelError("the attempt has ended")
    answer: dict[str, Any] = json.loads(data)
    return answer
