"""Forward a port of this machine to a port of a job: each connection to it gets a channel of its own."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import grpc
from ebbtide_core.model import limits
from ebbtide_protos.v1 import channel_pb2, client_pb2
from ebbtide_protos.v1.client_pb2_grpc import ClientServiceStub

from ebbtide_cli import interrupts
from ebbtide_cli.channels.client_channel import ChannelLost, ClientChannel, open_channel_over
from ebbtide_cli.describing.jobs import finished, summary
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.masters.connection import connecting
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.terminal.output import StatusLine, complain

LOOPBACK: Final = "127.0.0.1"
RETRY_S: Final = 0.2
AGAIN_S: Final = 1.0
"""Seconds until a master that is away is asked again whether the job is over."""
BEGIN_S: Final = 120.0
"""Seconds that a server may take until it listens."""
_READ_BYTES: Final = limits.CHANNEL_FRAME_BYTES
_LAST_WORDS_BYTES: Final = 4096


async def serve(
    master: str | None, job_id: str, node: str, port: int, local_port: int, ready: Callable[[int], None]
) -> str:
    """Forward ``local_port`` (0: any free one) to the job's ``port`` (0: the one that it was given) until the job ends.

    ``ready`` is called with the local port once the job listens. Returns how the job ended. Raises `Failure`.
    """
    want = channel_pb2.OpenChannel(job_id=job_id, node=node, user=user_name(), port=port)
    async with connecting(master) as stub:
        await _until_it_listens(stub, want)
        forwarding = _Forwarding(stub, want)
        try:
            server = await asyncio.start_server(forwarding.forward, LOOPBACK, local_port, limit=_READ_BYTES)
        except OSError as error:
            raise Failure(f"--port {local_port}: {error.strerror or error}", USAGE) from None
        async with server:
            ready(server.sockets[0].getsockname()[1])
            ended = await _end_of(stub, job_id)
            await forwarding.close()
            return ended


async def _end_of(stub: Any, job_id: str) -> str:
    """Return how the job ended, once it has; ask again while the master is away."""
    while True:
        try:
            async for job in stub.WatchJobs(client_pb2.WatchJobsRequest(job_ids=[job_id])):
                if finished(job):
                    return summary(job)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return error.details() or f"job {job_id} is not known any more"
        await asyncio.sleep(AGAIN_S)


class _Forwarding:
    """Forward connections; a failure is printed once, not for each retry of a browser."""

    def __init__(self, stub: ClientServiceStub, want: channel_pb2.OpenChannel) -> None:
        self._stub = stub
        self._want = want
        self._trouble = ""
        self._open = set[asyncio.Task[None]]()

    async def close(self) -> None:
        for connection in self._open:
            connection.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection from its beginning to its end."""
        if (own := asyncio.current_task()) is not None:
            self._open.add(own)
            own.add_done_callback(self._open.discard)
        try:
            async with open_channel_over(self._stub, self._want) as channel:
                self._trouble = ""
                await _join(channel, reader, writer)
        except (Failure, grpc.RpcError) as error:
            self._complain(error.message if isinstance(error, Failure) else error.details() or str(error.code()))
        except (ConnectionError, asyncio.CancelledError):
            pass  # the connecting program closed its end, or the tunnel is being closed
        finally:
            writer.close()
            with suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            complain(f"tunnel to job {self._want.job_id}: {trouble}")
        self._trouble = trouble


async def _join(channel: ClientChannel, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes from either end until the job's end is closed. Raises ConnectionError if this end is gone."""
    feeding, receiving = asyncio.create_task(_feed(channel, reader)), asyncio.create_task(_receive(channel, writer))
    try:
        await asyncio.wait([feeding, receiving], return_when=asyncio.FIRST_COMPLETED)
        if feeding.done():
            feeding.result()
        await receiving
    finally:
        feeding.cancel()
        receiving.cancel()
        await asyncio.gather(feeding, receiving, return_exceptions=True)


async def _receive(channel: ClientChannel, writer: asyncio.StreamWriter) -> None:
    async for frame in channel.frames():
        if frame.data:
            writer.write(frame.data)
            await writer.drain()
            await channel.done_with(len(frame.data))
        elif frame.end and writer.can_write_eof():
            writer.write_eof()


async def _feed(channel: ClientChannel, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(_READ_BYTES):
        await channel.send(data)
    await channel.send_end()


async def _until_it_listens(stub: ClientServiceStub, want: channel_pb2.OpenChannel) -> None:
    """Wait until the port can be reached, as long as the job runs. Raises `Failure`."""
    deadline = asyncio.get_running_loop().time() + BEGIN_S
    with StatusLine() as status:
        while True:
            try:
                async with open_channel_over(stub, want):
                    return
            except (ChannelLost, grpc.RpcError) as trouble:
                await _check_it_runs(stub, want.job_id)
                if want.port or not isinstance(trouble, ChannelLost) or asyncio.get_running_loop().time() > deadline:
                    raise
                status.show(f"job {want.job_id} starts:", trouble.message)
            await asyncio.sleep(RETRY_S)


async def _check_it_runs(stub: Any, job_id: str) -> None:
    """Raise `Failure` with the last line of its output if the job is over."""
    job: client_pb2.Job = await stub.ShowJob(client_pb2.JobRequest(job_id=job_id))
    if finished(job):
        said = b""
        async for chunk in stub.ReadLogs(client_pb2.ReadLogsRequest(job_id=job_id)):
            said = (said + chunk.data)[-_LAST_WORDS_BYTES:]
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise Failure(f"{summary(job)}" + (f": {last}" if last else ""))


def run(master: str | None, job_id: str, node: str, port: int, local_port: int, url: str) -> bool:
    """Serve until the job ends or Ctrl-C; print ``url``, with the local port for ``{port}``, once the job listens.

    Returns whether the job has ended, which is printed.
    """

    def ready(bound: int) -> None:
        print(url.replace("{port}", str(bound)), flush=True)
        if sys.stderr.isatty():
            complain("Ctrl-C closes the tunnel")

    try:
        ended = interrupts.run(serve(master, job_id, node, port, local_port, ready))
    except KeyboardInterrupt:
        interrupts.discard_pending()
        return False
    complain(f"{ended}: the tunnel is closed")
    return True
