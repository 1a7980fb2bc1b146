"""Starts the process that forks supervisors, and asks it for them."""

import asyncio
import logging
import socket
import subprocess
import sys

from ebbtide_agent.processes.isolated import package_roots

log = logging.getLogger(__name__)

_START_S = 30.0
_END_S = 5.0
# -I and -S isolate the process from the user's settings and packages, so the path of our packages is an argument.
_BOOT = """
import sys
sys.path += sys.argv[2:]
from ebbtide_agent.supervisor.spawning import main
main(int(sys.argv[1]))
"""


class Spawner:
    """Starts supervisors. If its process has died, the next request starts another one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._turn = asyncio.Lock()

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises OSError or TimeoutError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            command = [sys.executable, "-I", "-S", "-c", _BOOT, str(theirs.fileno()), *package_roots()]
            try:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True
                )
            except OSError:
                ours.close()
                raise
        self._socket = ours
        async with asyncio.timeout(_START_S):
            if not await asyncio.get_running_loop().sock_recv(ours, 1):
                raise OSError(f"the spawner ended at once with status {self._process.wait()}")
        log.info("event=spawner-started pid=%d", self._process.pid)

    async def spawn(self) -> socket.socket:
        """Return the agent's end of a channel to a new supervisor, which awaits its order there. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                await self._pass_on(theirs)
            except OSError:
                ours.close()
                raise
        return ours

    async def close(self) -> None:
        """End the process; its supervisors go on."""
        connection, process = self._socket, self._process
        self._socket = self._process = None
        if connection is None or process is None:
            return
        connection.close()
        try:
            await asyncio.to_thread(process.wait, _END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def _pass_on(self, channel: socket.socket) -> None:
        """Hand the channel over to the process, or to another one if that has died. Raises OSError."""
        async with self._turn:
            try:
                await self._hand_over(channel)
            except (BrokenPipeError, ConnectionResetError):
                log.error("event=spawner-died")
                await self.close()
                await self.start()
                await self._hand_over(channel)

    async def _hand_over(self, channel: socket.socket) -> None:
        if self._socket is None:
            raise BrokenPipeError("no other spawner could be started")
        while True:
            try:
                socket.send_fds(self._socket, [b"?"], [channel.fileno()])
            except BlockingIOError:
                await _wait_writable(self._socket)
            else:
                return


async def _wait_writable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(connection, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(connection)
