"""What finished jobs have left on the node's disks, and which of it is removed.

Nothing is unless the administrator says so, and never anything of a job that may go on: only the master knows which
have finished, and while it is away nothing is removed. A job's `output` directory stays in any case.
"""

import asyncio
import logging
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, Protocol

from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.apart import apart
from ebbtide_agent.attempt_dir import attempts_dir
from ebbtide_agent.exchange import Away, Unreadable
from ebbtide_agent.translation import is_job_id

PERIOD_S: Final = 600.0
AT_ONCE: Final = 1000
_PARTS: Final = "attempt-"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Keep:
    """How long what a finished job left is kept, in seconds, and how much checkpoints may take; None: for ever, all."""

    seconds: float | None = None
    quota_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """What a job has in the checkpoint root. ``ended_ago_s`` is None while it may go on, or is not known."""

    bytes: int
    ended_ago_s: float | None = None


class Asked(Protocol):
    """What is needed of the exchange with the master."""

    async def ask(self, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData: ...


def superfluous(left: Mapping[str, Left], keep: Keep) -> list[str]:
    """The jobs whose checkpoints go: those that ended too long ago, then the longest ended until the rest fits."""
    ended = [(job, one.ended_ago_s) for job, one in left.items() if one.ended_ago_s is not None]
    oldest_first = sorted(ended, key=lambda pair: -pair[1])
    total, gone = sum(one.bytes for one in left.values()), []
    for job, ago_s in oldest_first:
        too_old = keep.seconds is not None and ago_s > keep.seconds
        too_much = keep.quota_bytes is not None and total > keep.quota_bytes
        if too_old or too_much:
            gone.append(job)
            total -= left[job].bytes
    return gone


class Tidying:
    """Looks now and then. ``root`` is the checkpoints' one, which other nodes may share and tidy as well."""

    def __init__(self, node_dir: Path, root: Path, exchange: Asked, keep: Keep) -> None:
        self._attempts = attempts_dir(node_dir)
        self._root = root
        self._exchange = exchange
        self._keep = keep
        self._over = False

    async def run(self, cluster_id: "ClusterOf") -> NoReturn:
        """Until cancelled. The cluster is asked for each time, for a node joins one when it first attaches."""
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.tidy(cluster_id.cluster_id)
            except (Away, Unreadable, OSError) as error:
                log.warning("event=not-tidied reason=%r", str(error))

    async def tidy(self, cluster_id: str) -> list[str]:
        """Look once; the jobs whose checkpoints were removed. Raises Away, Unreadable, OSError."""
        if not cluster_id or self._keep == Keep():
            return []
        folder = self._root / cluster_id
        sizes = await apart(partial(_sizes, folder))
        logs = await apart(partial(_logs, self._attempts))
        ended = await self._ended(sorted(sizes.keys() | logs.keys()))
        left = {job: Left(size, ended.get(job)) for job, size in sizes.items()}
        gone = superfluous(left, self._keep)
        for job in gone:
            log.info("event=checkpoints-removed job=%s bytes=%d", job, left[job].bytes)
            await apart(partial(_remove_checkpoints, folder / job))
        await self._remove_logs(logs, ended)
        self._warn(sum(one.bytes for job, one in left.items() if job not in gone))
        return gone

    async def _ended(self, jobs: list[str]) -> dict[str, float]:
        """How long ago those of these jobs ended that have, in seconds."""
        ended: dict[str, float] = {}
        for start in range(0, len(jobs), AT_ONCE):
            request = agent_pb2.ReadCheckpoint(ended_of=jobs[start : start + AT_ONCE])
            ended |= (await self._exchange.ask(request)).ended_ago_s
        return ended

    async def _remove_logs(self, logs: Mapping[str, list[Path]], ended: Mapping[str, float]) -> None:
        for job, folders in logs.items():
            if self._keep.seconds is not None and ended.get(job, 0.0) > self._keep.seconds:
                for folder in folders:
                    await apart(partial(shutil.rmtree, folder))

    def _warn(self, left: int) -> None:
        """Say once that jobs which have not finished take more than they all may."""
        over = self._keep.quota_bytes is not None and left > self._keep.quota_bytes
        if over and not self._over:
            log.warning("event=checkpoints-over-quota bytes=%d quota=%d", left, self._keep.quota_bytes)
        self._over = over


class ClusterOf(Protocol):
    """Who knows the node's cluster."""

    cluster_id: str


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes in the checkpoints of each job. Blocks."""
    if not folder.is_dir():
        return {}
    return {entry.name: _size(entry) for entry in list(os.scandir(folder)) if _is_own_folder(entry)}


def _is_own_folder(entry: "os.DirEntry[str]") -> bool:
    return is_job_id(entry.name) and entry.is_dir(follow_symlinks=False)


def _size(folder: "os.DirEntry[str]") -> int:
    """Of regular files, each counted once; what vanishes meanwhile counts nothing."""
    seen: dict[tuple[int, int], int] = {}
    for parent, _, files in os.walk(folder.path, onerror=None):
        for name in files:
            try:
                found = os.lstat(os.path.join(parent, name))
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    return sum(seen.values())


def _logs(attempts: Path) -> dict[str, list[Path]]:
    """The directories of forgotten attempts, by job. Blocks."""
    found: dict[str, list[Path]] = {}
    for place in sorted(attempts.glob("*.*")) if attempts.is_dir() else ():
        job = place.name.rpartition(".")[0]
        if is_job_id(job) and (place / "forgotten").exists():
            found.setdefault(job, []).append(place)
    return found


def _remove_checkpoints(folder: Path) -> None:
    """All that attempts have left in a job's directory; what is removed half is no checkpoint any more. Blocks."""
    for entry in list(os.scandir(folder)):
        if entry.name.startswith(_PARTS) and entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
    if not os.listdir(folder):
        folder.rmdir()
