"""Keeps sums of how much GPU time jobs had, and what became of it.

The ledger follows a cluster: after each durable event, whether the event was just decided or is replayed, it looks at
what changed about the event's job or node. So it says of a job only what the cluster says, and a restarted master has
the same sums. docs/how-to/usage.md describes what is counted as what.

What is counted has a rate: a job that waits adds a second of waiting to each second, and one that computes on two GPUs
adds two GPU-seconds. The sum of a window is the integral of the rate, which is kept for each user in each pool.
"""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.outcome import Fate
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.spec_error import SpecError
from ebbtide_core.model.types import WHOLE, Allocation, GpuId, JobId, NodeId
from ebbtide_core.views.accounts import JobStay, JobSums, PoolAccount
from ebbtide_core.views.gpu_time import COLUMNS, Dimension, GpuAccount, GpuTime, Periods, Usage, UsageColumn
from ebbtide_core.views.integral import Integral, Presence
from ebbtide_core.views.phases import Life, Rest, Stage, life_of, rest_of, stage_of

MOST_ACCOUNTS: Final = 200_000
"""Accounts of one answer, as many as a cluster has unfinished jobs at most; they make an answer of twenty MiB."""
JOBS_AT_ONCE: Final = 100
"""Jobs that are summed up without a break."""
_PARTS: Final = (Dimension.USER, Dimension.POOL, Dimension.JOB, Dimension.DAY)


_COLUMN_OF: Final = {Fate.LOST: UsageColumn.LOST, Fate.UNKNOWN: UsageColumn.UNKNOWN}
"""The column in which work is counted that no checkpoint has; what is kept is in none."""


@dataclass(slots=True)
class _JobEntry:
    """One job: what it does, and its intervals of computing that no checkpoint holds yet.

    ``pools`` says when it left pools in which it is not any more, and ``judged`` is the number of the last attempt
    whose unsaved work was counted.
    """

    job: Job
    since: float
    pool: str
    account: PoolAccount
    stay: JobStay
    pools: dict[str, float] = field(default_factory=dict)
    life: UsageColumn | None = None
    stage: UsageColumn | None = None
    held: Allocation | None = None
    judged: int = 0
    unsaved: list[tuple[float, float]] = field(default_factory=list)
    unsaved_since: float = 0.0
    idle_since: float | None = None

    @property
    def share(self) -> int:
        """The parts of GPUs that it holds."""
        return self.held.share if self.held is not None else 0

    def rates(self) -> Iterator[tuple[UsageColumn, int]]:
        """Yield the columns that grow now, and their rates in parts."""
        if self.life is not None:
            yield self.life, WHOLE
        if self.stage is not None:
            yield self.stage, self.share
        if self.idle_since is not None:
            yield UsageColumn.IDLE, self.share


@dataclass(slots=True)
class _GpuEntry:
    """One GPU: the parts of it that are ``held``, and what the ``rest`` is (None: the GPU is gone).

    ``users`` have foreign processes on it. It came at ``came``, and was gone from ``left`` on if it was known before.
    """

    rest: Rest | None = None
    held: int = 0
    users: frozenset[str] = frozenset()
    came: float = 0.0
    left: float | None = None


class _GpuSums:
    """The sums of all GPUs together."""

    def __init__(self) -> None:
        self.presence = Presence()
        self.known, self.allocated = Integral(), Integral()
        self.rest = {rest: Integral() for rest in Rest}
        self.foreign: dict[str, Integral] = {}

    def count(self, gpu: _GpuEntry, now: float, sign: int) -> None:
        """Begin to count ``gpu`` as it is now, or with the sign -1 stop counting it so."""
        if gpu.rest is None:
            return
        self.known.change(now, sign * WHOLE)
        self.allocated.change(now, sign * gpu.held)
        self.rest[gpu.rest].change(now, sign * (WHOLE - gpu.held))
        for user in gpu.users:
            self.foreign.setdefault(user, Integral()).change(now, sign * WHOLE / len(gpu.users))

    def allocate(self, gpu: _GpuEntry, share: int, now: float) -> None:
        """Count so many more parts of ``gpu`` as allocated."""
        gpu.held += share
        if gpu.rest is not None:
            self.allocated.change(now, share)
            self.rest[gpu.rest].change(now, -share)

    def between(self, start: float, end: float) -> GpuAccount:
        """Return the sums from ``start`` to ``end``, both in Unix seconds."""
        return GpuAccount(
            gpus=self.presence.count(start, end),
            known=self.known.between(start, end) / WHOLE,
            allocated=self.allocated.between(start, end) / WHOLE,
            **{rest.value: sums.between(start, end) / WHOLE for rest, sums in self.rest.items()},
        )


@mypyc_attr(allow_interpreted_subclasses=True)
class Ledger:
    """Follows ``cluster`` from its first event on; `usage` answers for any window."""

    def __init__(self, cluster: Cluster) -> None:
        self._state = cluster.state
        self._jobs: dict[JobId, _JobEntry] = {}
        self._users: dict[str, Presence] = {}
        self._accounts: dict[tuple[str, str], PoolAccount] = {}
        self._nodes: dict[NodeId, dict[GpuId, _GpuEntry]] = {}
        self._gpus = _GpuSums()
        self._last = 0.0
        cluster.follow(self._look)

    @property
    def known_since(self) -> float:
        """The Unix time before which ended jobs may have been forgotten; these are not counted."""
        return self._state.known_since

    def usage(
        self, periods: Periods, by: Iterable[Dimension], user: str | None, now: float
    ) -> Generator[None, None, Usage]:
        """Return the usage in ``periods`` up to Unix time ``now``, by any number of dimensions.

        With ``user``, only that user's jobs and foreign processes are counted. It takes a moment between two yields.
        Raises `SpecError` if it comes to more accounts than a master can hold.
        """
        now, dimensions = max(self._last, now), tuple(by)
        start, end = min(periods.whole[0], now), min(periods.whole[1], now)
        days = list(enumerate(periods.parts)) if Dimension.DAY in dimensions else [(0, periods.whole)]
        cut = [(str(day), min(first, now), min(last, now)) for day, (first, last) in days if first < now]
        answer = _Answer(dimensions, (start, end), cut)
        gpus = self._gpus.between(start, end)
        foreign = {
            name: used / WHOLE
            for name, sums in self._gpus.foreign.items()
            if user in (None, name) and (used := sums.between(start, end))
        }
        for (owner, pool), account in list(self._accounts.items()):
            if user in (None, owner):
                yield from answer.add_account(owner, pool, account)
        for owner, presence in list(self._users.items()):
            if user in (None, owner):
                answer.add_jobs(owner, presence)
        return Usage(answer.accounts, answer.total(), gpus, foreign, user is None)

    def _look(self, event: Event, now: float) -> None:
        """Look at what ``event`` of Unix time ``now`` changed. A time before the last counts as the last."""
        now = self._last = max(self._last, now)
        if (job := getattr(event, "job", None)) is not None:
            self._look_at_job(job, event, now)
            if isinstance(event, e.StrayFound | e.StrayGone):  # other GPUs are set aside now, or dirty
                self._look_at_node(event.node, now)
        elif (node := getattr(event, "node", None)) is not None:
            self._look_at_node(node, now)

    # --- jobs ---

    def _look_at_job(self, id: JobId, event: Event, now: float) -> None:
        """Change the rates by what ``event`` changed about the job."""
        entry = self._jobs.get(id)
        if entry is None:
            job = self._state.jobs.get(id)
            if job is None or (job.end is not None and job.holding is None):
                return
            entry = self._jobs[id] = self._enter(job, now)
        job = entry.job
        self._follow_attempt(entry, now)
        self._follow_life(entry, now)
        if isinstance(event, e.CheckpointPublished):
            entry.unsaved, entry.unsaved_since = [], now
        elif isinstance(event, e.AttemptFreed) and event.dirty_gpus:
            for piece in job.attempts[event.attempt - 1].allocation:
                self._look_at_node(piece.node, now)
        if job.end is not None and entry.held is None:
            entry.account.leave(entry.stay, now)
            self._users[job.user].leave(now, entry.since)
            del self._jobs[id]

    def _enter(self, job: Job, now: float) -> _JobEntry:
        if job.user not in self._users:
            self._users[job.user] = Presence()
        self._users[job.user].enter(now)
        account = self._account(job.user, job.pool)
        return _JobEntry(job, now, job.pool, account, account.enter(job.id, now, None))

    def _account(self, user: str, pool: str) -> PoolAccount:
        account = self._accounts.get((user, pool))
        if account is None:
            account = self._accounts[user, pool] = PoolAccount()
        return account

    def _follow_life(self, entry: _JobEntry, now: float) -> None:
        job, life = entry.job, _column(life_of(entry.job))
        if job.pool != entry.pool:
            self._change_pool(entry, now)
        if life is not entry.life:
            if entry.life is not None:
                entry.stay.change(entry.life, now, -WHOLE)
            if life is not None:
                entry.stay.change(life, now, WHOLE)
            entry.life = life

    def _change_pool(self, entry: _JobEntry, now: float) -> None:
        """Count the job in the pool in which it is now, with all its rates."""
        job = entry.job
        for column, rate in entry.rates():
            entry.stay.change(column, now, -rate)
        entry.account.leave(entry.stay, now)
        if now > entry.stay.came:
            entry.pools[entry.pool] = now
        entry.pool, entry.account = job.pool, self._account(job.user, job.pool)
        entry.stay = entry.account.enter(job.id, now, entry.pools.get(job.pool))
        for column, rate in entry.rates():
            entry.stay.change(column, now, rate)

    def _follow_attempt(self, entry: _JobEntry, now: float) -> None:
        holding = entry.job.holding
        stage = None if holding is None else _column(stage_of(holding))
        held = None if holding is None else holding.allocation
        idle = holding.idle if holding is not None and stage is UsageColumn.COMPUTING else None
        if entry.idle_since is not None and (idle is None or idle.since != entry.idle_since):
            self._end_idle(entry, entry.idle_since, now)
        if stage is not entry.stage or held is not entry.held:
            self._change_stage(entry, stage, held, now)
        if idle is not None and entry.idle_since is None:
            entry.idle_since = idle.since
            entry.stay.change(UsageColumn.IDLE, idle.since, entry.share)
        last = entry.job.attempt
        if last is not None and last.end is not None and last.number > entry.judged:
            self._judge(entry, last, last.end.fate)

    def _end_idle(self, entry: _JobEntry, since: float, now: float) -> None:
        """End the idle time that began at ``since``; it is no unsaved work, because nothing was computed in it."""
        entry.stay.change(UsageColumn.IDLE, now, -entry.share)
        if since > entry.unsaved_since:
            entry.unsaved.append((entry.unsaved_since, since))
        entry.unsaved_since, entry.idle_since = now, None

    def _change_stage(self, entry: _JobEntry, stage: UsageColumn | None, held: Allocation | None, now: float) -> None:
        if entry.stage is not None:
            entry.stay.change(entry.stage, now, -entry.share)
        if entry.stage is UsageColumn.COMPUTING:
            entry.unsaved.append((entry.unsaved_since, now))
        if held is not entry.held:
            self._move(entry.held, held, now)
        entry.stage, entry.held, entry.unsaved_since = stage, held, now
        if stage is not None:
            entry.stay.change(stage, now, entry.share)

    def _judge(self, entry: _JobEntry, attempt: Attempt, fate: Fate) -> None:
        """Count the work of ``attempt``, which has ended, since its last checkpoint as what became of it."""
        share, column = attempt.allocation.share, _COLUMN_OF.get(fate)
        if column is not None:
            for start, end in entry.unsaved:
                entry.stay.change(column, start, share)
                entry.stay.change(column, end, -share)
        entry.judged, entry.unsaved = attempt.number, []

    # --- GPUs ---

    def _move(self, before: Allocation | None, after: Allocation | None, now: float) -> None:
        """Count the GPUs of ``before`` as no longer allocated, and those of ``after`` as allocated."""
        for allocation, sign in ((before, -1), (after, 1)):
            for piece in allocation or ():
                known = self._nodes[piece.node]
                for gpu in piece.gpus:
                    self._gpus.allocate(known[gpu.gpu], sign * gpu.share, now)

    def _look_at_node(self, id: NodeId, now: float) -> None:
        """Count the GPUs of the node as what they are now."""
        node, known = self._state.nodes.get(id), self._nodes.setdefault(id, {})
        for gpu in known.keys() | (node.gpus.keys() if node is not None else ()):
            if gpu not in known:
                known[gpu] = _GpuEntry()
            entry, rest = known[gpu], None if node is None else rest_of(node, gpu)
            use = None if node is None or node.lost else node.foreign.get(gpu)
            users = frozenset[str]() if use is None else frozenset(process.user for process in use.processes)
            if rest is not entry.rest or users != entry.users:
                self._gpus.count(entry, now, -1)
                self._come_or_go(entry, rest, now)
                entry.rest, entry.users = rest, users
                self._gpus.count(entry, now, 1)

    def _come_or_go(self, entry: _GpuEntry, rest: Rest | None, now: float) -> None:
        """Count a GPU that is new, and stop counting one that is gone."""
        if entry.rest is None and rest is not None:
            self._gpus.presence.enter(now, entry.left)
            entry.came = now
        elif entry.rest is not None and rest is None:
            self._gpus.presence.leave(now, entry.came, entry.left)
            entry.left = now if now > entry.came else entry.left


class _Answer:
    """Adds up accounts by ``dimensions``, in the whole window and in each of the periods ``cut``, which have names."""

    def __init__(
        self, dimensions: tuple[Dimension, ...], whole: tuple[float, float], cut: list[tuple[str, float, float]]
    ) -> None:
        self.accounts: dict[tuple[str, ...], GpuTime] = {}
        self._jobs = 0
        self._dimensions = dimensions
        self._numbers = [_PARTS.index(dimension) for dimension in dimensions]
        self._whole = whole
        self._cut = cut

    def total(self) -> GpuTime:
        """Return the sums of all accounts, in which each job is counted once."""
        accounts, total = self.accounts.values(), GpuTime(jobs=self._jobs)
        total.add([sum(map(attrgetter(column), accounts)) for column in COLUMNS])
        return total

    def add_account(self, user: str, pool: str, account: PoolAccount) -> Generator[None, None, None]:
        """Add the sums of ``account``."""
        if Dimension.JOB in self._dimensions:
            for number, job in enumerate(account.jobs(*self._whole), 1):
                self._add_job(user, pool, job)
                if number % JOBS_AT_ONCE == 0:
                    yield
        else:
            for day, start, end in self._cut:
                if jobs := account.presence.count(start, end):
                    found = self._found((user, pool, "", day))
                    found.add(account.between(start, end))
                    found.jobs += jobs if Dimension.POOL in self._dimensions else 0
        yield

    def add_jobs(self, user: str, presence: Presence) -> None:
        """Count the jobs of ``user``, each of them once in whatever pools it was."""
        self._jobs += presence.count(*self._whole)
        if Dimension.POOL not in self._dimensions and Dimension.JOB not in self._dimensions:
            for day, start, end in self._cut:
                if jobs := presence.count(start, end):
                    self._found((user, "", "", day)).jobs += jobs

    def _add_job(self, user: str, pool: str, job: JobSums) -> None:
        for day, start, end in self._cut:
            if job.overlaps(start, end):
                found = self._found((user, pool, job.job, day))
                found.add(job.between(start, end))
                found.jobs = 1

    def _found(self, parts: tuple[str, str, str, str]) -> GpuTime:
        """Return the account of these, in the order of `_PARTS`."""
        key = tuple([parts[number] for number in self._numbers])
        found = self.accounts.get(key)
        if found is None:
            if len(self.accounts) == MOST_ACCOUNTS:
                what = f"comes to more than {MOST_ACCOUNTS} lines: ask for a shorter time, or for less"
                raise SpecError("--by", what)
            found = self.accounts[key] = GpuTime()
        return found


def _column(phase: Life | Stage | None) -> UsageColumn | None:
    """Return the column in which the time of a phase is counted."""
    return None if phase is None else UsageColumn[phase.name]
