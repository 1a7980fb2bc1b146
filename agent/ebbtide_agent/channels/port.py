"""Connects a channel to a TCP port that a job listens on."""

import asyncio
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ebbtide_protos.v1 import channel_pb2

from ebbtide_agent.channels.channel_end import ChannelEnd, ChannelError
from ebbtide_agent.channels.flow import copy_in, copy_out

_LISTENS = "0A"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOOPBACK = {4: "127.0.0.1", 6: "::1"}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class _Listener:
    inode: str
    address: Address  # to connect to


async def forward(
    client: ChannelEnd, port: int, pids: Callable[[], Iterable[int]], opened: channel_pb2.ChannelOpened
) -> channel_pb2.ChannelClosed:
    """Connect to the port, on which one of these processes listens, and copy to the end. Raises ChannelError."""
    listener = _where(port, pids())
    family = socket.AF_INET6 if listener.address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (str(listener.address), port))
        except OSError as error:
            raise ChannelError(f"port {port}: {error.strerror}") from None
        if _where(port, pids()) != listener:  # another process may have got the port before we connected
            raise ChannelError(f"port {port}: the job listens elsewhere now")
        client.opened(opened)
        feeding = asyncio.create_task(_feed(client, connection), name="channel input")
        try:
            await copy_out(client, connection.fileno(), asyncio.Event())
            client.send_end()
            await feeding
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
    return channel_pb2.ChannelClosed()


async def _feed(client: ChannelEnd, connection: socket.socket) -> None:
    await copy_in(client, connection.fileno())
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the job has closed the connection


def _where(port: int, pids: Iterable[int]) -> _Listener:
    """Return where the job listens on that port; the same port of other processes on the node is not shown."""
    found = [listener for table in _TABLES for listener in _listeners(table, port)]
    mine = {inode for pid in pids for inode in _sockets(pid)} if found else set()
    if not (own := [listener for listener in found if listener.inode in mine]):
        raise ChannelError(f"port {port}: no process of the job listens on it")
    return min(own, key=lambda listener: (not listener.address.is_loopback, listener.address.version, listener.inode))


def _listeners(table: Path, port: int) -> Iterator[_Listener]:
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return  # a kernel without this family
    for row in rows:
        address, _, number = row[1].rpartition(":")
        if row[3] == _LISTENS and int(number, 16) == port:
            yield _Listener(row[9], _reachable(address))


def _reachable(text: str) -> Address:
    """Return the address in the kernel's table; its family's loopback address if it is the unspecified one."""
    words = (int(text[start : start + 8], 16) for start in range(0, len(text), 8))
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    address = ipaddress.ip_address(packed)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return ipaddress.ip_address(_LOOPBACK[address.version]) if address.is_unspecified else address


def _sockets(pid: int) -> list[str]:
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
