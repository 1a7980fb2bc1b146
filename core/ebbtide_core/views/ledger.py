"""Adds up from the journal how much GPU time jobs had, and what became of it.

The ledger folds events into a cluster state of its own, as a recovering master does, and looks after each event at what
it changed. So the ledger says of a job only what the cluster would have said at that time. docs/how-to/usage.md
describes what is counted as what.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.dispatch import apply
from ebbtide_core.events import Event
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.outcome import Ending, read_exit
from ebbtide_core.model.spec_error import SpecError
from ebbtide_core.model.types import WHOLE, Allocation, Checkpointed, ExitFacts, GpuId, JobId, NodeId, StopCause
from ebbtide_core.views.gpu_time import Dimension, GpuAccount, GpuTime, Periods, Usage
from ebbtide_core.views.phases import Life, Rest, Stage, life_of, rest_of, stage_of, state_to_fold_into

MOST_BOOKED: Final = 5_000_000
"""Pairs of job and period that a ledger can count; they take half a GiB of memory."""
MOST_ACCOUNTS: Final = 200_000
"""Accounts of one answer, as many as a cluster has unfinished jobs at most; they make an answer of twenty MiB."""


class _Fate(Enum):
    """What becomes of the work that an attempt did since its last checkpoint."""

    KEPT = "kept"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class _JobEntry:
    """One job: its state since when, and its intervals of computing that no checkpoint holds yet.

    ``judged`` is the number of the last attempt whose unsaved work was booked; ``accounts`` are the job's accounts by
    period.
    """

    job: Job
    pool: str
    since: float
    life: Life | None = Life.WAITING
    stage: Stage | None = None
    stage_since: float = 0.0
    held: Allocation | None = None
    judged: int = 0
    unsaved: list[tuple[float, float]] = field(default_factory=list)
    unsaved_since: float = 0.0
    idle_since: float | None = None
    accounts: dict[int, GpuTime] = field(default_factory=dict)


@dataclass(slots=True)
class _GpuEntry:
    """One GPU: the parts of it that are ``held`` since when, and what the ``rest`` is (None: the GPU is gone)."""

    since: float
    rest: Rest | None = None
    held: int = 0
    users: frozenset[str] = frozenset()
    account: GpuAccount = field(default_factory=GpuAccount)


class Ledger:
    """Takes events in order; `close` returns the usage in ``periods``, by any number of dimensions.

    With ``user``, only that user's jobs and foreign processes are counted. `take` and `close` raise `SpecError` if the
    result is more than a master can hold.
    """

    def __init__(self, periods: Periods, by: Iterable[Dimension] = (Dimension.USER,), user: str | None = None) -> None:
        self._periods = periods
        self._by = tuple(by)
        self._user = user
        self._state = state_to_fold_into()
        self._jobs: dict[JobId, _JobEntry] = {}
        self._gpus: dict[NodeId, dict[GpuId, _GpuEntry]] = {}
        self._foreign: dict[str, float] = {}
        self._accounts: dict[tuple[str, ...], GpuTime] = {}
        self._total = GpuTime()
        self._last = 0.0
        self._booked = 0

    def take(self, event: Event, now: float) -> None:
        """Take the next ``event`` of the journal, of Unix time ``now``. A time before the last counts as the last."""
        now = self._last = max(self._last, now)
        if isinstance(event, e.JobRemoved | e.JobRetired):
            return  # the job is over, and the ledger dropped it when it ended
        apply(self._state, event, now)
        if (job := getattr(event, "job", None)) is not None:
            self._look_at_job(job, event, now)
        elif (node := getattr(event, "node", None)) is not None:
            self._look_at_node(node, now)

    def close(self, now: float) -> Usage:
        """Return the usage, counting what still goes on until Unix time ``now``. No event may follow."""
        now = max(self._last, now)
        for entry in self._jobs.values():
            self._book_idle(entry, now)
            self._book_life(entry, now)
            self._book_stage(entry, now)
            entry.accounts.clear()
        accounts = {}
        for node, gpus in self._gpus.items():
            for gpu, books in gpus.items():
                self._settle(books, now)
                accounts[node, gpu] = books.account
        return Usage(self._accounts, self._total, accounts, self._foreign, self._user is None)

    @property
    def known_since(self) -> float:
        """The Unix time before which ended jobs may have been forgotten; these are not counted."""
        return self._state.known_since

    # --- jobs ---

    def _look_at_job(self, id: JobId, event: Event, now: float) -> None:
        """Book the intervals that ``event`` ended for the job, and note the ones that it began."""
        entry = self._jobs.get(id)
        if entry is None:
            job = self._state.jobs.get(id)
            if job is None:
                return
            entry = self._jobs[id] = _JobEntry(job, job.pool, now)
        job = entry.job
        self._follow_life(entry, now)
        self._follow_attempt(entry, now)
        if isinstance(event, e.CheckpointPublished):
            entry.unsaved, entry.unsaved_since = [], now
        elif isinstance(event, e.AttemptFreed) and event.dirty_gpus:
            for piece in job.attempts[event.attempt - 1].allocation:
                self._look_at_node(piece.node, now)
        if job.end is not None and entry.held is None:
            del self._jobs[id]  # so that memory does not grow with the length of the journal
            self._state.jobs.pop(id, None)

    def _follow_life(self, entry: _JobEntry, now: float) -> None:
        life, pool = life_of(entry.job), entry.job.pool
        if life is not entry.life or pool != entry.pool:
            self._book_life(entry, now)
            entry.life = life
        if pool != entry.pool:
            self._book_stage(entry, now)
            entry.pool = pool
            entry.accounts.clear()

    def _follow_attempt(self, entry: _JobEntry, now: float) -> None:
        holding = entry.job.holding
        stage = None if holding is None else stage_of(holding)
        held = None if holding is None else holding.allocation
        idle = holding.idle if holding is not None and stage is Stage.COMPUTING else None
        idle_since = idle.since if idle is not None else None
        if idle_since != entry.idle_since:
            self._book_idle(entry, now)
            entry.idle_since = idle_since
        if stage is not entry.stage or held is not entry.held:
            self._book_stage(entry, now)
            if entry.stage is Stage.COMPUTING:
                entry.unsaved.append((entry.unsaved_since, now))
            entry.stage, entry.unsaved_since = stage, now
        if held is not entry.held:
            self._move(entry.held, held, now)
            entry.held = held
        last = entry.job.attempt
        if last is not None and last.end is not None and last.number > entry.judged:
            self._judge(entry, last)

    def _judge(self, entry: _JobEntry, attempt: Attempt) -> None:
        """Book what became of the work of ``attempt``, which has ended, since its last checkpoint."""
        gpus, fate = attempt.allocation.share / WHOLE, _fate(entry.job, attempt)
        for start, end in () if fate is _Fate.KEPT else entry.unsaved:
            self._book(entry, fate.value, start, end, gpus)
        entry.judged, entry.unsaved = attempt.number, []

    def _book_idle(self, entry: _JobEntry, now: float) -> None:
        """Book the job's idle time until ``now``; it is no unsaved work, because nothing was computed in it."""
        if entry.idle_since is None or entry.held is None:
            return
        self._book(entry, "idle", entry.idle_since, now, entry.held.share / WHOLE)
        if entry.idle_since > entry.unsaved_since:
            entry.unsaved.append((entry.unsaved_since, entry.idle_since))
        entry.unsaved_since = now

    def _book_life(self, entry: _JobEntry, now: float) -> None:
        if entry.life is not None:
            self._book(entry, entry.life.value, entry.since, now, 1.0)
        entry.since = now

    def _book_stage(self, entry: _JobEntry, now: float) -> None:
        if entry.stage is not None and entry.held is not None:
            self._book(entry, entry.stage.value, entry.stage_since, now, entry.held.share / WHOLE)
        entry.stage_since = now

    def _book(self, entry: _JobEntry, column: str, start: float, end: float, times: float) -> None:
        """Add the seconds from ``start`` to ``end``, multiplied by ``times``, to a column of the job's accounts."""
        if self._user is not None and entry.job.user != self._user:
            return
        for period, seconds in self._periods.cut(start, end):
            account = entry.accounts.get(period)
            if account is None:
                account = entry.accounts[period] = self._account(entry, period)
                self._check_size()
            for sums in (account, self._total):
                setattr(sums, column, getattr(sums, column) + seconds * times)
                sums.jobs.add(entry.job.id)

    def _check_size(self) -> None:
        """Count that a job has its first account in a period; raise `SpecError` if there are too many."""
        self._booked += 1
        if self._booked > MOST_BOOKED:
            raise SpecError("--since", f"comes to more than {MOST_BOOKED} jobs by day: ask for a shorter time")
        if len(self._accounts) > MOST_ACCOUNTS:
            raise SpecError("--by", f"comes to more than {MOST_ACCOUNTS} lines: ask for a shorter time, or for less")

    def _account(self, entry: _JobEntry, period: int) -> GpuTime:
        parts = {
            Dimension.USER: entry.job.user,
            Dimension.POOL: entry.pool,
            Dimension.JOB: entry.job.id,
            Dimension.DAY: str(period),
        }
        return self._accounts.setdefault(tuple(parts[dimension] for dimension in self._by), GpuTime())

    # --- GPUs ---

    def _move(self, before: Allocation | None, after: Allocation | None, now: float) -> None:
        """Count the GPUs of ``before`` as no longer allocated, and those of ``after`` as allocated."""
        for allocation, sign in ((before, -1), (after, 1)):
            for piece in allocation or ():
                for gpu in piece.gpus:
                    entry = self._gpus[piece.node][gpu.gpu]
                    self._settle(entry, now)
                    entry.held += sign * gpu.share

    def _look_at_node(self, id: NodeId, now: float) -> None:
        """Note which GPUs the node has, and which of them are on offer."""
        node = self._state.nodes.get(id)
        if node is None:
            return
        known = self._gpus.setdefault(id, {})
        for gpu in node.gpus.keys() | known.keys():
            entry = known.setdefault(gpu, _GpuEntry(now))
            self._settle(entry, now)
            entry.rest = rest_of(node, gpu)
            use = None if node.lost else node.foreign.get(gpu)
            entry.users = frozenset() if use is None else frozenset(process.user for process in use.processes)

    def _settle(self, entry: _GpuEntry, now: float) -> None:
        """Count the GPU's time until ``now`` by its present state."""
        seconds = sum(seconds for _, seconds in self._periods.cut(entry.since, now))
        entry.since = now
        if not seconds or entry.rest is None:
            return
        account, allocated = entry.account, seconds * entry.held / WHOLE
        account.known += seconds
        account.allocated += allocated
        rest = entry.rest.value
        setattr(account, rest, getattr(account, rest) + seconds - allocated)
        for user in entry.users if self._user is None else entry.users & {self._user}:
            self._foreign[user] = self._foreign.get(user, 0.0) + seconds / len(entry.users)


def _fate(job: Job, attempt: Attempt) -> _Fate:
    """Return what became of the unsaved work of ``attempt``, which has ended."""
    exit, order = attempt.end.exit if attempt.end is not None else None, attempt.stop
    if exit is None:  # the attempt never ran
        return _Fate.KEPT
    cause = None if order is None or order.cause is StopCause.BROKEN else order.cause
    match read_exit(exit, job.spec, cause).ending:
        case Ending.COMPLETED:
            return _Fate.KEPT
        case Ending.FAILED:
            return _Fate.LOST
        case _ if exit.checkpointed is Checkpointed.YES:
            return _Fate.KEPT
        case Ending.REQUEUED:
            return _Fate.KEPT if attempt.published else _Fate.UNKNOWN
        case Ending.SUSPENDED if not exit.swap_failure:
            return _fate_by_conduct(exit, attempt.published)
        case _:
            return _Fate.LOST


def _fate_by_conduct(exit: ExitFacts, published: bool) -> _Fate:
    """Return the same for an attempt that was asked to leave; it may have saved where the supervisor does not look."""
    if exit.checkpointed is Checkpointed.UNKNOWN:
        return _Fate.KEPT if exit.acknowledged else _Fate.UNKNOWN
    return _Fate.LOST if published or exit.asked else _Fate.UNKNOWN
