"""What finished jobs have left on the node's disks, and which of it is removed.

That is what users have removed, and else nothing unless the administrator says so; never anything of a job that may go
on: only the master knows which have finished, and while it is away nothing is removed. A job's `output` directory stays
in any case.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeVar

from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.blocking_calls import in_thread
from ebbtide_agent.contract.attempt_dir import attempts_dir, is_job_id
from ebbtide_agent.files.clearing import ANSWER_S, clear, folders_in, size
from ebbtide_agent.files.exchange import Away, Unreadable
from ebbtide_agent.helper.answer import Unknown
from ebbtide_agent.helper.asking import ask

PERIOD_S: Final = 600.0
AT_ONCE: Final = 1000
_PARTS: Final = "attempt-"

log = logging.getLogger(__name__)

T = TypeVar("T")


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


class MasterExchange(Protocol):
    """What is needed of the exchange with the master."""

    jobs_removed: asyncio.Event

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

    def __init__(self, node_dir: Path, root: Path, exchange: MasterExchange, keep: Keep) -> None:
        self._attempts = attempts_dir(node_dir)
        self._root = root
        self._exchange = exchange
        self._keep = keep
        self._over = False

    async def run(self, cluster_id: "ClusterOf") -> NoReturn:
        """Until cancelled. The cluster is asked for each time, for a node joins one when it first attaches."""
        told = self._exchange.jobs_removed
        while True:
            soon = False
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    soon = await told.wait()
            told.clear()
            try:
                await self.remove(cluster_id.cluster_id)
                if not soon:
                    await self.tidy(cluster_id.cluster_id)
            except (Away, Unreadable, OSError) as error:
                log.warning("event=not-tidied reason=%r", str(error))
            except Exception:  # whatever lies in the directories of jobs, or is answered: the next time comes
                log.exception("event=not-tidied")

    async def remove(self, cluster_id: str) -> list[str]:
        """Remove what there is of jobs that their users have removed; those. Raises Away, Unreadable, OSError."""
        if not cluster_id:
            return []
        folder = self._root / cluster_id
        checkpoints = {job for job in await _folders_in(folder) if is_job_id(job)}
        logs = await in_thread(partial(_logs, self._attempts))
        gone = [job for answer in await self._asked_of(checkpoints | logs.keys()) for job in answer.removed]
        for job in gone:
            log.info("event=job-removed job=%s", job)
            if job in checkpoints:
                await _remove_checkpoints(folder / job)
            for place in logs.get(job, ()):
                await clear(place)
        return gone

    async def tidy(self, cluster_id: str) -> list[str]:
        """Look once; the jobs whose checkpoints were removed. Raises Away, Unreadable, OSError."""
        if not cluster_id or self._keep == Keep():
            return []
        folder = self._root / cluster_id
        sizes = await _sizes(folder)
        logs = await in_thread(partial(_logs, self._attempts))
        ended: dict[str, float] = {}
        for answer in await self._asked_of(sizes.keys() | logs.keys()):
            ended |= answer.ended_ago_s
        left = {job: Left(size, ended.get(job)) for job, size in sizes.items()}
        gone = superfluous(left, self._keep)
        for job in gone:
            log.info("event=checkpoints-removed job=%s bytes=%d", job, left[job].bytes)
            await _remove_checkpoints(folder / job)
        await self._remove_logs(logs, ended)
        self._warn(sum(one.bytes for job, one in left.items() if job not in gone))
        return gone

    async def _asked_of(self, jobs: Set[str]) -> list[agent_pb2.CheckpointData]:
        """What the master says of these jobs."""
        named, answers = sorted(jobs), list[agent_pb2.CheckpointData]()
        for start in range(0, len(named), AT_ONCE):
            request = agent_pb2.ReadCheckpoint(ended_of=named[start : start + AT_ONCE])
            answers.append(await self._exchange.ask(request))
        return answers

    async def _remove_logs(self, logs: Mapping[str, list[Path]], ended: Mapping[str, float]) -> None:
        for job, folders in logs.items():
            if self._keep.seconds is not None and ended.get(job, 0.0) > self._keep.seconds:
                for folder in folders:
                    await clear(folder)

    def _warn(self, left: int) -> None:
        """Say once that jobs which have not finished take more than they all may."""
        over = self._keep.quota_bytes is not None and left > self._keep.quota_bytes
        if over and not self._over:
            log.warning("event=checkpoints-over-quota bytes=%d quota=%d", left, self._keep.quota_bytes)
        self._over = over


class ClusterOf(Protocol):
    """Who knows the node's cluster."""

    cluster_id: str


async def _sizes(folder: Path) -> dict[str, int]:
    """Bytes in the checkpoints of each job; of one that cannot be looked into, none that one knows of."""
    sizes: dict[str, int] = {}
    for job in await _folders_in(folder):
        if is_job_id(job):
            answer = await _asked(size, folder / job)
            sizes[job] = 0 if isinstance(answer, Unknown) else answer
    return sizes


async def _folders_in(folder: Path) -> list[str]:
    answer = await _asked(folders_in, folder)
    return [] if isinstance(answer, Unknown) else answer


async def _asked(task: Callable[[str], T], path: Path) -> T | Unknown:
    """What the task says of what jobs have made there; why it is not known is logged."""
    try:
        answer = await ask(task, str(path), account=None, within_s=ANSWER_S)
    except OSError as error:
        answer = Unknown(str(error))
    if isinstance(answer, Unknown):
        log.warning("event=not-tidied path=%r reason=%r", str(path), answer.reason)
    return answer


def _logs(attempts: Path) -> dict[str, list[Path]]:
    """The directories of forgotten attempts, by job. Blocks."""
    found: dict[str, list[Path]] = {}
    for place in sorted(attempts.glob("*.*")) if attempts.is_dir() else ():
        job = place.name.rpartition(".")[0]
        if is_job_id(job) and (place / "forgotten").exists():
            found.setdefault(job, []).append(place)
    return found


async def _remove_checkpoints(folder: Path) -> None:
    """All that attempts have left in a job's directory; what is removed half is no checkpoint any more."""
    for name in await _folders_in(folder):
        if name.startswith(_PARTS):
            await clear(folder / name)
    with suppress(OSError):  # it has something else, which stays
        await in_thread(folder.rmdir)
