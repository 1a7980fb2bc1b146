"""Ask other nodes about checkpoints, by way of the master, and answer their questions.

The master itself answers questions about snapshots and about finished jobs.
"""

import asyncio
import base64
import itertools
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.accounts.accounts import owner
from ebbtide_agent.files.reading import owner_of, read
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.asking import ask

_ANSWER_S = 60.0
_VERIFIED_S = 1800.0
_OWNER_S = 20.0


class Unanswered(Exception):
    """The question was not answered, and the message says why; it may be answered if asked again soon."""


class Unreadable(Exception):
    """The node that has the checkpoint cannot read it; the message says why."""


class Exchange:
    """The questions that this node has asked over its stream to the master."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._send: Callable[[agent_pb2.ReadCheckpoint], None] | None = None
        self._asked: dict[int, asyncio.Future[agent_pb2.CheckpointData]] = {}
        self.jobs_removed = asyncio.Event()
        """Set when the master has said that users removed jobs; `Tidying` clears it."""

    def attach(self, send: Callable[[agent_pb2.ReadCheckpoint], None]) -> None:
        """Send questions over this stream from now on."""
        self._send = send

    def detach(self) -> None:
        """Note that the stream has ended: all questions that are open fail with Unanswered."""
        self._send = None
        for future in self._asked.values():
            if not future.done():
                future.set_exception(Unanswered("the master is away"))

    def answer(self, data: agent_pb2.CheckpointData) -> None:
        """Take in an answer."""
        future = self._asked.get(data.request_id)
        if future is not None and not future.done():
            future.set_result(data)

    async def ask(self, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
        """Send a request, and return the answer. Raises Unanswered, Unreadable."""
        if self._send is None:
            raise Unanswered("the master is away")
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
            raise Unanswered("no answer came") from None
        finally:
            del self._asked[request.request_id]
        if data.error:
            raise (Unanswered if data.away else Unreadable)(data.error)
        return data


async def read_as_owner(job_dir: Path, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
    """Answer a question about a job's checkpoints, in a process of the account that owns the directory. Raises OSError.

    To answer a question that names no checkpoint, the first of a copy, a whole checkpoint is read.
    """
    account = None
    if os.geteuid() == 0:
        ids = await ask(owner_of, str(job_dir), account=None, within_s=_OWNER_S)
        if isinstance(ids, NoAnswer):
            return agent_pb2.CheckpointData(error=f"whose {job_dir} is does not get known: {ids.reason}")
        account = None if ids is None else await on_daemon_thread(partial(owner, *ids))
    within_s = _ANSWER_S if request.checkpoint else _VERIFIED_S
    answer = await ask(read, *arguments_of(job_dir, request), account=account, within_s=within_s)
    if isinstance(answer, NoAnswer):
        return agent_pb2.CheckpointData(error=f"{job_dir} cannot be read: {answer.reason}")
    return answer_of(answer)


def arguments_of(job_dir: Path, request: agent_pb2.ReadCheckpoint) -> tuple[str, int, str, str, int, int]:
    """Return the arguments of `reading.read` for a request."""
    place = str(job_dir), request.attempt, request.checkpoint, request.file
    return *place, request.offset, request.max_bytes


def answer_of(content: Mapping[str, Any]) -> agent_pb2.CheckpointData:
    """Return the message for the result of `reading.read`."""
    return agent_pb2.CheckpointData(**{**content, "data": base64.b64decode(content.get("data", ""))})
