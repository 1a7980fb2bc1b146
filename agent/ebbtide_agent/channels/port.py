"""The node's end of a channel to a TCP port that a job listens on."""

import asyncio
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from ebbtide_protos.v1 import channel_pb2

from ebbtide_agent.channels.flow import copy_in, copy_out
from ebbtide_agent.channels.line import ChannelError, Line

_LISTENS = "0A"
_TABLES = {"/proc/net/tcp": "127.0.0.1", "/proc/net/tcp6": "::1"}
_ANY_V6 = "0" * 32


async def forward(
    line: Line, port: int, pids: Iterable[int], opened: channel_pb2.ChannelOpened
) -> channel_pb2.ChannelClosed:
    """Connect to the port, on which one of these processes listens, and stay to the end. Raises ChannelError."""
    host = _where(port, pids)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (host, port))
        except OSError as error:
            raise ChannelError(f"port {port}: {error.strerror}") from None
        line.opened(opened)
        feeding = asyncio.create_task(_feed(line, connection), name="channel input")
        try:
            await copy_out(line, connection.fileno(), asyncio.Event())
            line.send_end()
            await feeding
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
    return channel_pb2.ChannelClosed()


async def _feed(line: Line, connection: socket.socket) -> None:
    await copy_in(line, connection.fileno())
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return  # it has closed it itself


def _where(port: int, pids: Iterable[int]) -> str:
    """The loopback address at which the port answers. What others on the node listen on is not the job's to show."""
    found = {inode: host for table, host in _TABLES.items() for inode, host in _listeners(Path(table), port, host)}
    mine = found.keys() & {inode for pid in pids for inode in _sockets(pid)} if found else set()
    if not mine:
        raise ChannelError(f"port {port}: no process of the job listens on it")
    return sorted(found[inode] for inode in mine)[0]


def _listeners(table: Path, port: int, host: str) -> list[tuple[str, str]]:
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []  # a kernel without this family
    found = []
    for row in rows:
        number = row[1].rpartition(":")[2]
        if row[3] == _LISTENS and int(number, 16) == port:
            # What listens on every address of IPv6 mostly takes IPv4, too; on ::1 it answers in any case.
            found.append((row[9], host))
    return found


def _sockets(pid: int) -> list[str]:
    """The inodes of the process's sockets."""
    directory = f"/proc/{pid}/fd"
    found = []
    try:
        for name in os.listdir(directory):
            try:
                target = os.readlink(f"{directory}/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                found.append(target[len("socket:[") : -1])
    except OSError:
        return found
    return found
