"""The ledger: what every second of a GPU was spent on, and that they add up."""

from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events.fencing import StrayKind
from ebbtide_core.job.job import Job
from ebbtide_core.model.settings import PoolSettings
from ebbtide_core.model.types import (
    WHOLE,
    Checkpointed,
    CheckpointFacts,
    ExitFacts,
    ForeignProcess,
    GpuId,
    JobId,
    JobState,
    NodeId,
    SuspendMode,
)
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.forecast import fork
from ebbtide_core.views.gpu_time import COLUMNS, Dimension, GpuTime, Periods, Usage, check
from ebbtide_core.views.ledger import Ledger
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.core.lab import DONE, Lab, stepped_aside
from tests.core.resources.test_pools import Pools
from tests.core.resources.test_pools_world import WorldOfPools
from tests.core.world import World
from tests.drawing import share_of

FAILED = ExitFacts(exit_code=1)
ALWAYS = Periods((0.0, 1e9))


def answered(parts: Generator[None, None, Usage]) -> Usage:
    """The answer, once all parts of it are done."""
    try:
        while True:
            next(parts)
    except StopIteration as last:
        found: Usage = last.value
    assert check(found) == ()
    return found


def usage(
    lab: Lab, periods: Periods = ALWAYS, by: Iterable[Dimension] = (Dimension.USER,), user: str | None = None
) -> Usage:
    """What a master answers that has read the journal."""
    return usage_of(lab.journal, lab.now, periods, by, user)


def usage_of(
    journal: Iterable[tuple[float, e.Event]],
    now: float,
    periods: Periods,
    by: Iterable[Dimension],
    user: str | None = None,
) -> Usage:
    """The usage up to ``now``, by a journal."""
    cluster = Cluster(create_policy("fifo", {}))
    ledger = Ledger(cluster)
    for at, event in journal:
        cluster.replay(event, at)
    return answered(ledger.usage(periods, by, user, now))


def ann(lab: Lab) -> GpuTime:
    return usage(lab).accounts["ann",]


def test_gpu_time_is_counted_from_the_placement_until_the_gpus_are_free() -> None:
    lab = Lab(gpus=4)
    job = lab.submit(2)  # and placed in the same second
    lab.wait(9)
    lab.start(job)
    lab.wait(99)
    lab.exit(job, DONE)
    lab.wait(4)
    lab.free(job)
    account = ann(lab)
    assert (account.starting, account.computing, account.leaving) == (2 * 11, 2 * 101, 2 * 6)
    assert (account.lost, account.waiting, account.placed) == (0, 0, 11 + 101)
    assert account.allocated == 2 * (11 + 101 + 6)


def test_a_quarter_of_a_gpu_counts_as_a_quarter() -> None:
    lab = Lab(gpus=1)
    job = lab.running("1/4")
    lab.wait(99)
    lab.end(job, DONE)
    assert ann(lab).computing == 101 / 4
    assert ann(lab).leaving == 1 / 4


def test_time_in_the_queue_on_hold_and_suspended_is_counted_apart() -> None:
    lab = Lab(gpus=1)
    held = lab.submit(1, hold=True)
    lab.wait(9)  # 10 s on hold
    first = lab.running(1)
    lab.tell(e.ReleaseRequested(held.id))
    lab.wait(29)  # 30 s in the queue
    lab.tell(e.SuspendRequested(first.id))
    lab.end(first)
    lab.start(held)
    lab.wait(9)
    account = ann(lab)
    assert account.held == 13
    assert account.waiting == 33
    assert account.suspended == 12


def test_what_was_computed_after_the_last_checkpoint_of_an_attempt_that_failed_is_lost() -> None:
    lab = Lab(gpus=2)
    job = lab.running(2)
    lab.wait(49)
    lab.tell(e.CheckpointPublished(job.id, 1, CheckpointFacts(10, 1, "/c", True)))
    lab.wait(19)
    lab.end(job, FAILED)
    assert ann(lab).lost == 2 * 21


def test_nothing_is_lost_by_who_saves_when_asked() -> None:
    lab = Lab(gpus=1)
    job = lab.running(1)
    lab.wait(49)
    lab.tell(e.SuspendRequested(job.id))
    lab.wait(9)
    lab.end(job, stepped_aside(checkpointed=Checkpointed.YES))
    account = ann(lab)
    assert (account.lost, account.leaving) == (0, 12)


def test_a_gpu_that_a_stray_left_dirty_is_out_of_service_and_not_idle() -> None:
    lab = Lab(gpus=1)
    node, job, gpus = NodeId("a"), JobId("77"), (GpuId("a0"),)
    lab.tell(e.StrayFound(node=node, job=job, attempt=1, kind=StrayKind.UNKNOWN, gpus=gpus))
    lab.tell(e.StrayGone(node=node, job=job, attempt=1, dirty_gpus=gpus, dirty_reasons=("it is full",)))
    lab.wait(99)
    assert usage(lab).gpus.unavailable == 101


def test_a_gpu_of_a_stray_is_not_idle_until_the_stray_is_gone() -> None:
    lab = Lab(gpus=1)
    node, job, gpus = NodeId("a"), JobId("77"), (GpuId("a0"),)
    lab.tell(e.StrayFound(node=node, job=job, attempt=1, kind=StrayKind.UNKNOWN, gpus=gpus))
    lab.wait(49)
    lab.tell(e.StrayGone(node=node, job=job, attempt=1))
    lab.wait(9)
    assert (usage(lab).gpus.unavailable, usage(lab).gpus.idle) == (51, 11)


def left(exit: ExitFacts) -> GpuTime:
    """What it comes to that a job is asked to leave after 51 s, and leaves like this."""
    lab = Lab(gpus=1)
    job = lab.running(1)
    lab.wait(49)
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job, exit)
    return ann(lab)


def test_everything_is_lost_of_who_saves_through_the_sdk_and_is_killed_at_the_end_of_the_grace_period() -> None:
    asked = ExitFacts(signal=9, stop_requested=True, delivered=True, killed=True, asked=True)
    account = left(replace(asked, checkpointed=Checkpointed.NO))
    assert (account.lost, account.unknown, account.computing, account.wasted) == (51, 0, 51, 51 + 2)


@pytest.mark.parametrize("checkpointed", [Checkpointed.NO, Checkpointed.UNKNOWN])
def test_what_is_not_known_to_be_lost_is_not_wasted(checkpointed: Checkpointed) -> None:
    """A framework that saves by itself has lost at most what it did since then, and nobody knows when that was."""
    plain = ExitFacts(exit_code=0, stop_requested=True, delivered=True, caught=True, checkpointed=checkpointed)
    account = left(plain)
    assert (account.lost, account.unknown, account.wasted) == (0, 51, 2)


def test_what_is_not_known_to_be_lost_of_who_asks_to_be_run_again_is_not_wasted() -> None:
    lab = Lab(gpus=1)
    job = lab.running(1)
    lab.wait(49)
    lab.end(job, ExitFacts(exit_code=75))
    assert (ann(lab).lost, ann(lab).unknown) == (0, 51)


def test_what_a_job_in_host_memory_had_computed_is_lost_only_when_it_dies_there() -> None:
    lab = Lab(gpus=1)
    job = lab.running(1, suspend=SuspendMode.SWAP)
    lab.wait(9)
    lab.tell(e.SuspendRequested(job.id))
    lab.tell(e.AttemptSwapped(job.id, 1, 1, 1 << 30, 1.0))
    lab.wait(99)
    assert ann(lab).lost == 0
    assert ann(lab).suspended == 101 - 1
    lab.end(job, ExitFacts(signal=9, stop_requested=True, killed=True, swap_failure="ended while swapped out"))
    assert ann(lab).lost == 11


def test_a_window_counts_only_what_lies_in_it() -> None:
    lab = Lab(gpus=1)
    job = lab.running(1)
    began = lab.now
    lab.wait(999)
    lab.end(job, FAILED)
    found = usage(lab, Periods((began + 100, began + 300)))
    assert (found.total.computing, found.total.lost, found.total.leaving) == (200, 200, 0)
    assert (found.gpus.known, found.gpus.gpus) == (200, 1)


def test_days_users_and_jobs_divide_the_same_sums() -> None:
    lab = Lab(gpus=1)
    job = lab.running(1)
    began = lab.now
    lab.wait(299)
    lab.end(job, DONE)
    days = Periods((began - 50, began + 50, began + 150, began + 250))
    found = usage(lab, days, (Dimension.JOB, Dimension.DAY))
    assert {key: account.computing for key, account in found.accounts.items()} == {
        ("1", "0"): 50.0, ("1", "1"): 100.0, ("1", "2"): 100.0,
    }  # fmt: skip
    assert usage(lab, days).accounts["ann",].computing == found.total.computing == 250.0


def test_what_a_job_had_stays_counted_when_it_is_removed() -> None:
    lab = Lab(gpus=2)
    job = lab.running(2)
    lab.wait(49)
    lab.end(job, DONE)
    before = ann(lab)
    lab.tell(e.JobRemoved(job.id))
    assert (ann(lab), lab.cluster.job(job.id)) == (before, None)


def test_jobs_of_others_are_left_out_if_one_user_is_asked_about() -> None:
    lab = Lab(gpus=1)
    lab.end(lab.running(1), DONE)
    assert usage(lab, user="bob").accounts == {}
    assert usage(lab, user="bob").total.allocated == 0


def test_foreign_processes_are_counted_by_user_and_what_they_leave_is_not_idle() -> None:
    lab = Lab(gpus=2)
    two = (ForeignProcess(7, "eve", "python"), ForeignProcess(8, "mallory", "python"))
    lab.tell(e.ForeignUseChanged(NodeId("a"), GpuId("a0"), two))
    lab.wait(59)
    lab.tell(e.ForeignUseChanged(NodeId("a"), GpuId("a0"), ()))
    found = usage(lab)
    assert found.foreign == {"eve": 30.5, "mallory": 30.5}
    assert usage(lab, user="eve").foreign == {"eve": 30.5}
    assert (found.gpus.foreign, found.gpus.idle) == (61, 62 + 1)


def test_a_gpu_that_is_unusable_or_on_a_silent_node_is_unavailable() -> None:
    lab = Lab(gpus=1)
    lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a0"), False, "Xid 79"))
    lab.wait(9)
    lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a0"), True))
    lab.tell(e.NodeLost(NodeId("a"), 20.0))
    lab.wait(9)
    gpu = usage(lab).gpus
    assert (gpu.unavailable, gpu.idle, gpu.known) == (11 + 10, 2, 23)


def test_the_gpus_of_a_node_are_known_until_it_is_removed() -> None:
    lab = Lab(gpus=1)
    lab.wait(9)
    lab.tell(e.NodeLost(NodeId("a"), 20.0))
    lab.wait(9)
    lab.tell(e.NodeRemoved(node=NodeId("a")))
    assert NodeId("a") not in lab.cluster.state.nodes
    before = usage(lab).gpus
    lab.wait(99)
    assert usage(lab).gpus == before
    assert (before.gpus, before.known) == (1, before.idle + before.unavailable)
    assert before.unavailable > 0


def test_a_node_that_is_drained_is_unavailable() -> None:
    lab = Lab(gpus=1)
    lab.tell(e.NodeDrained(node=NodeId("a")))
    lab.wait(9)
    lab.tell(e.NodeResumed(node=NodeId("a")))
    gpu = usage(lab).gpus
    assert (gpu.unavailable, gpu.idle) == (11, 1)


def test_a_job_that_goes_to_another_pool_is_counted_where_it_was() -> None:
    lab = Pools(big=PoolSettings())
    lab.submit(2)
    lab.submit(2, pool="big")
    job = lab.submit(1)
    lab.wait(49)
    lab.move(job, "big")
    lab.wait(9)
    accounts = usage(lab, by=(Dimension.POOL,)).accounts
    assert (accounts["default",].waiting, accounts["big",].waiting) == (51, 10)


def test_what_a_forecast_goes_through_is_not_counted() -> None:
    lab = Lab(gpus=1)
    job = lab.running(1)
    cluster = Cluster(create_policy("fifo", {}))
    ledger = Ledger(cluster)
    for now, event in lab.journal:
        cluster.replay(event, now)
    fork(cluster).handle(e.AttemptExited(job.id, 1, FAILED), lab.now + 10)
    total = answered(ledger.usage(ALWAYS, (), None, lab.now + 20)).total
    assert (total.computing, total.lost, total.leaving) == (20, 0, 0)


def test_a_period_needs_edges_in_order() -> None:
    with pytest.raises(ValueError, match="each later than the one before"):
        Periods((2.0, 1.0))


@dataclass(frozen=True)
class Span:
    """A time in which nothing changed about a job, or about all GPUs of the cluster."""

    start: float
    end: float
    user: str
    pool: str
    job: str
    counted: dict[str, float]
    """How fast each column grew."""

    def within(self, start: float, end: float) -> float:
        """Its seconds from start to end."""
        return max(0.0, min(self.end, end) - max(self.start, start))


def rates(job: Job) -> dict[str, float]:
    """What a job adds to which column each second, as far as that shows in its state at once."""
    found: dict[str, float] = {}
    if job.end is None:
        waits = "held" if job.held_by is not None and job.state is not JobState.SUSPENDED else "waiting"
        rests = "suspended" if job.next.resumes else waits
        found[rests if job.live is None or job.off_gpu else "placed"] = 1.0
    if (attempt := job.holding) is not None:
        leaves = attempt.stop is not None or attempt.end is not None
        stage = "leaving" if leaves else "starting" if attempt.started is None else "computing"
        found[stage] = attempt.allocation.share / WHOLE
    return found


SHOWN = ("starting", "computing", "leaving", "waiting", "held", "suspended", "placed")
"""The columns that `rates` names; the others are known only when an attempt has ended."""
Asked = tuple[Periods, tuple[Dimension, ...], str | None]


class Counting:
    """Notes what every job does in all the time that passes in a world, and adds up what is asked about by itself."""

    _now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.spans: list[Span] = []
        self.gpu_spans: list[Span] = []
        self.ledgers: list[tuple[Cluster, Ledger]] = []

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, later: float) -> None:
        if hasattr(self, "cluster") and later > self._now:
            self._note(self._now, later)
        self._now = later

    def new_cluster(self) -> Cluster:
        cluster = super().new_cluster()
        self.ledgers = [pair for pair in self.ledgers if pair[0] is self.cluster] + [(cluster, Ledger(cluster))]
        return cluster

    @property
    def ledger(self) -> Ledger:
        """The one of the cluster that leads now; the world restarts its master."""
        return next(ledger for cluster, ledger in self.ledgers if cluster is self.cluster)

    def tell(self, event: e.Event) -> None:
        """There are two users."""
        if isinstance(event, e.JobSubmitted):
            event = replace(event, user=("ann", "bob")[int(event.job) // 2 % 2])
        super().tell(event)

    def _note(self, start: float, end: float) -> None:
        for job in self.cluster.state.jobs.values():
            if found := rates(job):
                self.spans.append(Span(start, end, job.user, job.pool, job.id, found))
        for node in self.cluster.state.nodes.values():
            for gpu in node.gpus:
                held = node.held.share(gpu) / WHOLE
                self.gpu_spans.append(Span(start, end, "", "", gpu, {"known": 1.0, "allocated": held}))

    def _plainly(self, asked: Asked) -> tuple[dict[tuple[str, ...], GpuTime], GpuTime]:
        """The accounts and the total, without what `rates` does not know."""
        (periods, by, user), whole = asked, GpuTime()
        accounts: dict[tuple[str, ...], GpuTime] = defaultdict(GpuTime)
        jobs: dict[tuple[str, ...] | None, set[str]] = defaultdict(set)
        for span in self.spans if user is None else [span for span in self.spans if span.user == user]:
            days = periods.parts if Dimension.DAY in by else [periods.whole]
            for day, (start, end) in enumerate(days):
                if seconds := span.within(start, end):
                    parts = {"user": span.user, "pool": span.pool, "job": span.job, "day": str(day)}
                    key = tuple(parts[dimension.value] for dimension in by)
                    for account in (accounts[key], whole):
                        for column, rate in span.counted.items():
                            setattr(account, column, getattr(account, column) + seconds * rate)
                    jobs[key].add(span.job)
                    jobs[None].add(span.job)
        for key, account in accounts.items():
            account.jobs = len(jobs[key])
        whole.jobs = len(jobs[None])
        return dict(accounts), whole

    @rule(
        edges=st.sets(st.integers(-1, 17), min_size=2, max_size=5),
        by=st.lists(st.sampled_from(Dimension), unique=True),
        user=st.sampled_from([None, None, "ann", "bob", "nobody"]),
    )
    def ask_what_was_used(self, edges: set[int], by: list[Dimension], user: str | None) -> None:
        asked = Periods(tuple(self.now * part / 16 if self.now else part for part in sorted(edges))), tuple(by), user
        found, (accounts, whole) = answered(self.ledger.usage(*asked, self.now)), self._plainly(asked)
        assert found.accounts.keys() == accounts.keys()
        for key, account in accounts.items():
            self._compare(found.accounts[key], account)
        self._compare(found.total, whole)
        for column in ("known", "allocated"):
            seconds = sum(span.within(*asked[0].whole) * span.counted[column] for span in self.gpu_spans)
            assert getattr(found.gpus, column) == pytest.approx(seconds), column
        self._same_whoever_adds_up(found, asked)

    def _compare(self, found: GpuTime, plain: GpuTime) -> None:
        assert found.jobs == plain.jobs
        for column in SHOWN:
            assert getattr(found, column) == pytest.approx(getattr(plain, column)), column

    def _same_whoever_adds_up(self, found: Usage, asked: Asked) -> None:
        """A ledger that has read the journal has the same; and what all jobs have by themselves is the same, too."""
        periods, by, user = asked
        again = super().new_cluster()
        ledger = Ledger(again)
        for now, event in self.journal:
            again.replay(event, now)
        read = answered(ledger.usage(*asked, self.now))
        assert (read.accounts, read.total, read.gpus) == (found.accounts, found.total, found.gpus)
        of_jobs = answered(self.ledger.usage(periods, (*by, Dimension.JOB), user, self.now)).total
        assert [getattr(of_jobs, name) for name in COLUMNS] == pytest.approx(
            [getattr(found.total, name) for name in COLUMNS]
        )


class CountedWorld(Counting, World):
    """The world, counted."""


class CountedPools(Counting, WorldOfPools):
    """The one of several pools."""


SETTINGS = settings(
    max_examples=share_of(25),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestLedgerAgainstTheWorld, TestLedgerAgainstPools = CountedWorld.TestCase, CountedPools.TestCase
TestLedgerAgainstTheWorld.settings = TestLedgerAgainstPools.settings = SETTINGS
