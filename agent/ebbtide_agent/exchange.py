"""Questions to other nodes about checkpoints, by way of the master, and answers to theirs.

About snapshots, the master itself is asked.
"""

import asyncio
import itertools
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ebbtide import checkpoints
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.accounts import owner
from ebbtide_agent.rights import rights_of

WINDOW_BYTES = 1024 * 1024
"""What one answer holds at most; it must fit into one message."""
_ANSWER_S = 60.0
_VERIFIED_S = 1800.0
_CHECKPOINT = re.compile(r"attempt-\d{1,18}(/step-\d{12,18}(\.\d{1,9})?)?")


class Away(Exception):
    """Nobody could be asked; the message says why. It may be otherwise in a moment."""


class Unreadable(Exception):
    """The node that has the checkpoint cannot read it; the message says why."""


class Exchange:
    """The questions that this node has asked over its stream to the master."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._send: Callable[[agent_pb2.ReadCheckpoint], None] | None = None
        self._asked: dict[int, asyncio.Future[agent_pb2.CheckpointData]] = {}

    def attach(self, send: Callable[[agent_pb2.ReadCheckpoint], None]) -> None:
        """Ask over this stream from now on."""
        self._send = send

    def detach(self) -> None:
        """The stream has ended; what was asked over it is not answered any more."""
        self._send = None
        for future in self._asked.values():
            if not future.done():
                future.set_exception(Away("the master is away"))

    def answer(self, data: agent_pb2.CheckpointData) -> None:
        """Take in an answer."""
        future = self._asked.get(data.request_id)
        if future is not None and not future.done():
            future.set_result(data)

    async def ask(self, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
        """The answer to a request. Raises Away, Unreadable."""
        if self._send is None:
            raise Away("the master is away")
        request.request_id = next(self._ids)
        future: asyncio.Future[agent_pb2.CheckpointData] = asyncio.get_running_loop().create_future()
        self._asked[request.request_id] = future
        self._send(request)
        try:
            async with asyncio.timeout(
                _ANSWER_S if request.checkpoint or request.snapshot or request.ended_of else _VERIFIED_S
            ):
                data = await future
        except TimeoutError:
            raise Away("no answer came") from None
        finally:
            del self._asked[request.request_id]
        if data.error:
            raise (Away if data.away else Unreadable)(data.error)
        return data


def checkpoint_below(job_dir: Path, name: str) -> Path:
    """The directory of that checkpoint. Raises ValueError if it is not the name of one."""
    if _CHECKPOINT.fullmatch(name) is None:
        raise ValueError(f"{name[:80]!r} is not a checkpoint")
    return job_dir / name


def read_as_owner(job_dir: Path, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
    """The same with the rights of whoever owns the directory, who may put links there while it is read."""
    try:
        facts = job_dir.lstat()
    except FileNotFoundError:
        return read(job_dir, request)
    with rights_of(owner(facts.st_uid, facts.st_gid) if os.geteuid() == 0 else None):
        return read(job_dir, request)


def read(job_dir: Path, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
    """Answer a question about the checkpoints of a job. Blocks; the first question of all reads a whole checkpoint."""
    if not request.checkpoint:
        newest = checkpoints.newest_valid(job_dir, before_attempt=request.attempt)
        name = "" if newest is None else newest.path.relative_to(job_dir).as_posix()
        return agent_pb2.CheckpointData(checkpoint=name)
    with suppress(ValueError, FileNotFoundError):
        folder = checkpoint_below(job_dir, request.checkpoint).resolve(strict=True)
        path = folder.joinpath(request.file).resolve(strict=True)
        # The job could have put a link there that leads to what is none of its business.
        if path.is_file() and path.is_relative_to(folder) and folder.is_relative_to(job_dir.resolve()):
            return _window(path, request.offset, min(request.max_bytes, WINDOW_BYTES))
    return agent_pb2.CheckpointData(error=f"there is no file {request.file[:200]!r} in {request.checkpoint[:80]!r}")


def _window(path: Path, offset: int, max_bytes: int) -> agent_pb2.CheckpointData:
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(max_bytes)
        return agent_pb2.CheckpointData(data=data, end=len(data) < max_bytes)
