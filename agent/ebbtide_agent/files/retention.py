"""Remove what finished jobs have left on the node's disks.

Jobs that users have removed are always cleared away, and other finished jobs only as the administrator says. Nothing is
removed of a job that may go on: only the master knows which jobs have finished, and while it is away nothing is
removed. A job's `output` directory stays in any case.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeVar

from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.contract.attempt_dir import attempts_dir, is_job_id
from ebbtide_agent.files.clearing import ANSWER_S, clear, folders_in, names_in, size
from ebbtide_agent.files.exchange import Unanswered, Unreadable
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.asking import ask

PERIOD_S: Final = 600.0
AT_ONCE: Final = 1000
_PARTS: Final = ("attempt-", ".attempt-", "steps-", "script-")

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retention:
    """How many seconds a finished job's files are kept, and how many bytes checkpoints may take; None: no limit."""

    seconds: float | None = None
    quota_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class JobFiles:
    """What a job's attempts have left. `ended_ago_s` is None for a job that may go on or is not known."""

    bytes: int
    ended_ago_s: float | None = None


class MasterExchange(Protocol):
    """What tidying needs of the exchange with the master."""

    jobs_removed: asyncio.Event

    async def ask(self, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData: ...


def superfluous(left: Mapping[str, JobFiles], retention: Retention) -> list[str]:
    """Return the jobs whose checkpoints go: those that ended too long ago, then the oldest until the rest fits."""
    ended = [(job, one.ended_ago_s) for job, one in left.items() if one.ended_ago_s is not None]
    oldest_first = sorted(ended, key=lambda pair: -pair[1])
    total, gone = sum(one.bytes for one in left.values()), []
    for job, ago_s in oldest_first:
        too_old = retention.seconds is not None and ago_s > retention.seconds
        too_much = retention.quota_bytes is not None and total > retention.quota_bytes
        if too_old or too_much:
            gone.append(job)
            total -= left[job].bytes
    return gone


class RetentionTask:
    """Tidies the node every `PERIOD_S` seconds. `root` is the checkpoint root, which other nodes may share and tidy."""

    def __init__(self, node_dir: Path, root: Path, exchange: MasterExchange, retention: Retention) -> None:
        self._attempts = attempts_dir(node_dir)
        self._root = root
        self._exchange = exchange
        self._retention = retention
        self._over = False

    async def run(self, cluster_id: "KnowsCluster") -> NoReturn:
        """Tidy until cancelled. The cluster is read each time, because a node joins one when it first attaches."""
        removed = self._exchange.jobs_removed
        clock = asyncio.get_running_loop().time
        tidy_at = clock() + PERIOD_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(tidy_at):
                    await removed.wait()
            removed.clear()
            due = clock() >= tidy_at
            if due:
                tidy_at = clock() + PERIOD_S
            try:
                await self.remove(cluster_id.cluster_id)
                if due:
                    await self.tidy(cluster_id.cluster_id)
            except (Unanswered, Unreadable, OSError) as error:
                log.warning("event=not-tidied reason=%r", str(error))
            except Exception:  # no content of a job's directory, and no answer, may end the tidying
                log.exception("event=not-tidied")

    async def remove(self, cluster_id: str) -> list[str]:
        """Remove the files of jobs that users removed; return those jobs. Raises Unanswered, Unreadable, OSError."""
        if not cluster_id:
            return []
        folder = self._root / cluster_id
        checkpoints = {job for job in await _folders_in(folder) if is_job_id(job)}
        logs = await on_daemon_thread(partial(_logs, self._attempts))
        gone = [job for answer in await self._asked_of(checkpoints | logs.keys()) for job in answer.removed]
        for job in gone:
            log.info("event=job-removed job=%s", job)
            if job in checkpoints:
                await _remove_checkpoints(folder / job)
            for place in logs.get(job, ()):
                await clear(place)
        return gone

    async def tidy(self, cluster_id: str) -> list[str]:
        """Tidy once, and return the jobs whose checkpoints were removed. Raises Unanswered, Unreadable, OSError."""
        if not cluster_id or self._retention == Retention():
            return []
        folder = self._root / cluster_id
        sizes = await _sizes(folder)
        logs = await on_daemon_thread(partial(_logs, self._attempts))
        ended: dict[str, float] = {}
        for answer in await self._asked_of(sizes.keys() | logs.keys()):
            ended |= answer.ended_ago_s
        left = {job: JobFiles(size, ended.get(job)) for job, size in sizes.items()}
        gone = superfluous(left, self._retention)
        for job in gone:
            log.info("event=checkpoints-removed job=%s bytes=%d", job, left[job].bytes)
            await _remove_checkpoints(folder / job)
        await self._remove_logs(logs, ended)
        self._warn(sum(one.bytes for job, one in left.items() if job not in gone))
        return gone

    async def _asked_of(self, jobs: Set[str]) -> list[agent_pb2.CheckpointData]:
        """Ask the master about these jobs, at most `AT_ONCE` in one question, and return its answers."""
        named, answers = sorted(jobs), list[agent_pb2.CheckpointData]()
        for start in range(0, len(named), AT_ONCE):
            request = agent_pb2.ReadCheckpoint(ended_of=named[start : start + AT_ONCE])
            answers.append(await self._exchange.ask(request))
        return answers

    async def _remove_logs(self, logs: Mapping[str, list[Path]], ended: Mapping[str, float]) -> None:
        for job, folders in logs.items():
            if self._retention.seconds is not None and ended.get(job, 0.0) > self._retention.seconds:
                for folder in folders:
                    await clear(folder)

    def _warn(self, left: int) -> None:
        """Warn once when the checkpoints of jobs that have not finished take more than the quota."""
        over = self._retention.quota_bytes is not None and left > self._retention.quota_bytes
        if over and not self._over:
            log.warning("event=checkpoints-over-quota bytes=%d quota=%d", left, self._retention.quota_bytes)
        self._over = over


class KnowsCluster(Protocol):
    """What knows the node's cluster."""

    cluster_id: str


async def _sizes(folder: Path) -> dict[str, int]:
    """Return the bytes that the attempts of each job take; 0 for a directory that cannot be read."""
    sizes: dict[str, int] = {}
    for job in await _folders_in(folder):
        if is_job_id(job):
            answer = await _asked(size, folder / job, *_PARTS)
            sizes[job] = 0 if isinstance(answer, NoAnswer) else answer
    return sizes


async def _folders_in(folder: Path) -> list[str]:
    return await _listed(folders_in, folder)


async def _listed(task: Callable[[str], list[str]], folder: Path) -> list[str]:
    answer = await _asked(task, folder)
    return [] if isinstance(answer, NoAnswer) else answer


async def _asked(task: Callable[..., T], path: Path, *rest: str) -> T | NoAnswer:
    """Return what the task says of a path that jobs have made; log why if no answer comes."""
    try:
        answer = await ask(task, str(path), *rest, account=None, within_s=ANSWER_S)
    except OSError as error:
        answer = NoAnswer(str(error))
    if isinstance(answer, NoAnswer):
        log.warning("event=not-tidied path=%r reason=%r", str(path), answer.reason)
    return answer


def _logs(attempts: Path) -> dict[str, list[Path]]:
    """Return the directories of forgotten attempts, by job. Blocks."""
    found: dict[str, list[Path]] = {}
    for place in sorted(attempts.glob("*.*")) if attempts.is_dir() else ():
        job = place.name.rpartition(".")[0]
        if is_job_id(job) and (place / "forgotten").exists():
            found.setdefault(job, []).append(place)
    return found


async def _remove_checkpoints(folder: Path) -> None:
    """Remove all that attempts have left in a job's directory; a half-removed checkpoint does not verify any more."""
    for name in await _listed(names_in, folder):
        if name.startswith(_PARTS):
            await clear(folder / name)
    with suppress(OSError):  # the directory has other content, which stays
        await on_daemon_thread(folder.rmdir)
