"""Keeps the logs of attempts on lent nodes, because they would go with their nodes."""

import asyncio
import logging
import os
import shutil
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from ebbtide_core.model import limits
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_protos.v1 import agent_pb2

log = logging.getLogger(__name__)

AT_A_TIME: Final = 4
"""Logs that are copied at a time, and as many that are read."""
LONGEST_S: Final = 60.0
"""Seconds in which a log has to be copied: a node that answers slowly does not keep others from it."""
BLOCK_BYTES: Final = 4096
"""Bytes that the shortest log takes on a disk."""
_CUT: Final = b"[earlier lines of the log went with node %s]\n"
_BROKEN_OFF: Final = b"[later lines of the log went with node %s]\n"

Reader = Callable[[NodeId, agent_pb2.ReadLog], Awaitable[agent_pb2.LogData]]
"""Reads a window of a log from the node that has it."""


class LogUnavailableError(Exception):
    """The log cannot be read now; the message says why."""


class KeptLogs:
    """Copies logs into ``folder``, a file each; the oldest are removed if all take more than ``most_bytes``.

    Of a longer log, the last `limits.KEPT_LOG_LINES` lines are kept, up to `limits.KEPT_LOG_BYTES`.
    """

    def __init__(self, folder: Path, most_bytes: int = limits.KEPT_LOGS_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes
        self._copies: dict[Path, asyncio.Task[None]] = {}
        self._turns, self._reads = asyncio.Semaphore(AT_A_TIME), asyncio.Semaphore(AT_A_TIME)
        self._total: int | None = None  # bytes of all; None until they are counted
        for part in folder.glob("*/*.part"):
            part.unlink()

    def keep(self, job: JobId, attempt: int, node: NodeId, read: Reader) -> None:
        """Begin to copy the log of an attempt that has ended, unless it was begun before."""
        path = self._path(job, attempt, node)
        if path in self._copies or path.exists():
            return
        copy = asyncio.create_task(self._copy(path, job, attempt, node, read), name=f"log of {job}.{attempt} on {node}")
        self._copies[path] = copy
        copy.add_done_callback(lambda _: self._copies.pop(path, None))

    async def read(self, node: NodeId, order: agent_pb2.ReadLog) -> agent_pb2.LogData | None:
        """Answer as the node would have done; None if the log was not kept."""
        path = self._path(JobId(order.job_id), order.attempt, node)
        if (copy := self._copies.get(path)) is not None:
            await asyncio.wait([copy])
        async with self._reads:
            return await asyncio.to_thread(_window, path, order)

    async def remove(self, jobs: Iterable[JobId]) -> None:
        """Remove the logs of jobs."""
        await asyncio.to_thread(_remove, [self._folder / job for job in jobs])
        self._total = None

    async def remove_others(self, exists: Callable[[JobId], bool]) -> None:
        """Remove the logs of all jobs for which ``exists`` is false."""
        there = await asyncio.to_thread(lambda: [JobId(folder.name) for folder in self._folder.glob("*")])
        await self.remove(job for job in there if not exists(job))

    async def close(self) -> None:
        """Break off what is being copied."""
        copies = list(self._copies.values())
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)

    def _path(self, job: JobId, attempt: int, node: NodeId) -> Path:
        return self._folder / job / f"{attempt}.{node}.log"

    async def _copy(self, path: Path, job: JobId, attempt: int, node: NodeId, read: Reader) -> None:
        part = path.with_suffix(".part")
        async with self._turns:
            try:
                await self._copy_windows(part, job, attempt, node, read)
                await asyncio.to_thread(self._take, part, path)
            except OSError as error:
                log.warning("job=%s attempt=%d node=%s its log is not kept: %s", job, attempt, node, error)
                with suppress(OSError):
                    part.unlink()

    async def _copy_windows(self, part: Path, job: JobId, attempt: int, node: NodeId, read: Reader) -> None:
        def order(**asked: int) -> agent_pb2.ReadLog:
            return agent_pb2.ReadLog(job_id=job, attempt=attempt, **asked)  # type: ignore[arg-type]

        name, written = node.encode(), 0
        with await asyncio.to_thread(_made, part) as file, suppress(LogUnavailableError, TimeoutError):
            async with asyncio.timeout(LONGEST_S):
                offset = (await read(node, order(tail=limits.KEPT_LOG_LINES))).next
                if offset:
                    file.write(_CUT % name)
                while written < limits.KEPT_LOG_BYTES:
                    window = await read(node, order(offset=offset, max_bytes=limits.LOG_WINDOW_BYTES))
                    await asyncio.to_thread(file.write, window.data)
                    written += len(window.data)
                    offset = max(window.next, offset + len(window.data))
                    if window.end or window.error or not window.data:
                        return
        with part.open("ab") as file:
            file.write(_BROKEN_OFF % name)

    def _take(self, part: Path, path: Path) -> None:
        """Take a copied log in, and remove the oldest logs if all take too much: until a tenth is free."""
        os.replace(part, path)
        if self._total is not None:
            self._total += _size(path)
        if self._total is None or self._total > self._most_bytes:
            found = sorted((path.stat().st_mtime, _size(path), path) for path in self._folder.glob("*/*.log"))
            total = sum(size for _, size, _ in found)
            least = self._most_bytes * (9 if total > self._most_bytes else 10) // 10
            for _, size, oldest in found:
                if total <= least:
                    break
                oldest.unlink(missing_ok=True)
                total -= size
            self._total = total


def _made(part: Path) -> BinaryIO:
    part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _size(path: Path) -> int:
    return max(BLOCK_BYTES, path.stat().st_size)


def _window(path: Path, order: agent_pb2.ReadLog) -> agent_pb2.LogData | None:
    """Answer a request for a part of the log in ``path``; None if there is none."""
    try:
        with path.open("rb") as file:
            if order.HasField("rank"):
                return agent_pb2.LogData(error="the node is gone, and of single ranks nothing was kept")
            if order.tail:
                lines = file.read().splitlines(keepends=True)
                last = lines[-order.tail :]
                return agent_pb2.LogData(next=sum(map(len, lines[: -order.tail])), lines=len(last))
            if order.since:
                return agent_pb2.LogData()  # when each line was printed is not kept
            file.seek(order.offset)
            data = file.read(order.max_bytes)
            return agent_pb2.LogData(data=data, next=order.offset + len(data), end=len(data) < order.max_bytes)
    except FileNotFoundError:
        return None
    except OSError as error:
        return agent_pb2.LogData(error=str(error))
