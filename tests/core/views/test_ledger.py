"""The ledger: what every second of a GPU was spent on, and that they add up."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from ebbtide_core import events as e
from ebbtide_core.model.settings import PoolSettings
from ebbtide_core.model.types import (
    WHOLE,
    Checkpointed,
    CheckpointFacts,
    ExitFacts,
    ForeignProcess,
    GpuId,
    NodeId,
    SuspendMode,
)
from ebbtide_core.views.gpu_time import Dimension, GpuTime, Periods, Usage, check
from ebbtide_core.views.ledger import Ledger
from ebbtide_core.views.phases import KINDS
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule

from tests.core.lab import DONE, Lab, stepped_aside
from tests.core.resources.test_pools import Pools
from tests.core.resources.test_pools_world import WorldOfPools
from tests.core.world import World
from tests.drawing import share_of

FAILED = ExitFacts(exit_code=1)
ALWAYS = Periods((0.0, 1e9))


def usage(
    lab: Lab, periods: Periods = ALWAYS, by: Iterable[Dimension] = (Dimension.USER,), user: str | None = None
) -> Usage:
    ledger = Ledger(periods, by, user)
    for now, event in lab.journal:
        if type(event).__name__ in KINDS:
            ledger.take(event, now)
    found = ledger.close(lab.now)
    assert check(found) == ()
    return found


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
    assert [gpu.known for gpu in found.gpus.values()] == [200]


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
    assert found.gpus[NodeId("a"), GpuId("a0")].foreign == 61
    assert found.gpus[NodeId("a"), GpuId("a1")].idle == 62


def test_a_gpu_that_is_unusable_or_on_a_silent_node_is_unavailable() -> None:
    lab = Lab(gpus=1)
    lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a0"), False, "Xid 79"))
    lab.wait(9)
    lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a0"), True))
    lab.tell(e.NodeLost(NodeId("a"), 20.0))
    lab.wait(9)
    gpu = usage(lab).gpus[NodeId("a"), GpuId("a0")]
    assert (gpu.unavailable, gpu.idle, gpu.known) == (11 + 10, 2, 23)


def test_a_node_that_is_drained_is_unavailable() -> None:
    lab = Lab(gpus=1)
    lab.tell(e.NodeDrained(node=NodeId("a")))
    lab.wait(9)
    lab.tell(e.NodeResumed(node=NodeId("a")))
    gpu = usage(lab).gpus[NodeId("a"), GpuId("a0")]
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


def test_a_period_needs_edges_in_order() -> None:
    with pytest.raises(ValueError, match="each later than the one before"):
        Periods((2.0, 1.0))


class Counting:
    """Counts everything second by second as it happens in a world, too."""

    _now = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.counted: dict[str, float] = {}
        self.allocated: dict[tuple[str, str], float] = {}

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, later: float) -> None:
        self._count(later - self._now)
        self._now = later

    def _count(self, seconds: float) -> None:
        if not hasattr(self, "cluster"):
            return
        for job in self.cluster.state.jobs.values():
            if (state := job.state).finished:
                continue
            held = job.held_by is not None and state.name == "PENDING"
            name = "held" if held else {"PENDING": "waiting", "SUSPENDED": "suspended"}.get(state.name, "placed")
            name = "suspended" if job.off_gpu else name
            self.counted[name] = self.counted.get(name, 0.0) + seconds
        for node in self.cluster.state.nodes.values():
            for gpu in node.gpus:
                key = node.id, gpu
                self.allocated[key] = self.allocated.get(key, 0.0) + seconds * node.held.share(gpu) / WHOLE

    @rule()
    def ask_what_was_used(self) -> None:
        ledger = Ledger(ALWAYS)
        for now, event in self.journal:
            if type(event).__name__ in KINDS:
                ledger.take(event, now)
        for job in self.cluster.state.jobs.values():
            if job.state.finished and job.holding is None:
                ledger.take(e.JobRemoved(job.id), self.now)
        found = ledger.close(self.now)
        assert check(found) == ()
        for name in ("held", "waiting", "suspended", "placed"):
            assert getattr(found.total, name) == pytest.approx(self.counted.get(name, 0.0)), name
        for key, gpu in found.gpus.items():
            assert gpu.allocated == pytest.approx(self.allocated.get(key, 0.0)), key


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
