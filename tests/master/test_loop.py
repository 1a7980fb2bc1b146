"""One queue, one consumer: nothing leaves before it is on disk, and nobody waits for an answer that cannot come."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, RefusalKind
from ebbtide_core.commands import Command, Launch, WakeAt
from ebbtide_core.events import Event
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_core.planning.policy import Policy
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.snapshot import Plan, Snapshot
from ebbtide_master import loop as loops
from ebbtide_master.changes import Changes
from ebbtide_master.clock import Clock
from ebbtide_master.loop import MasterLoop, RefusedError, StoppedError
from ebbtide_master.store.journal import StoreError
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_master.throttle.fair_queue import use_queue

from tests.core.lab import registration

DEADLINE_S = 30.0


class Disk:
    """A journal whose commits end when the test says so."""

    def __init__(self) -> None:
        self.commits: list[tuple[list[Event], Future[None]]] = []
        self.slow = False

    def append(self, batch: Iterable[tuple[float, Event]]) -> Future[None]:
        future: Future[None] = Future()
        self.commits.append(([event for _, event in batch], future))
        if not self.slow:
            future.set_result(None)
        return future


class Bench:
    """A loop, and everything that leaves it."""

    def __init__(self, store: Any, policy: Any = None) -> None:
        self.cluster = Cluster(policy or create_policy("fitgpp", {}))
        self.changes = Changes()
        self.orders: list[Command] = []
        self.clock = Clock(0.0)
        self.loop = MasterLoop(self.cluster, store, self.clock, self.changes, self.orders.append)
        self.consumer = asyncio.create_task(self.loop.run())

    async def tell(self, *events: Event) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.loop.tell(lambda _: events, lambda _: None)


@asynccontextmanager
async def a_bench(store: Any, policy: Any = None) -> AsyncIterator[Bench]:
    bench = Bench(store, policy)
    try:
        yield bench
    finally:
        bench.consumer.cancel()
        with suppress(asyncio.CancelledError, StoreError):
            await bench.consumer


def submitted(id: str = "1", **spec: Any) -> Event:
    return e.JobSubmitted(JobId(id), JobSpec(command=("x",), workdir="/", **spec), "ann")


async def turns(condition: Callable[[], Any]) -> None:
    """Let the loop work until ``condition`` holds."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def test_neither_reply_nor_order_leaves_before_the_commit() -> None:
    disk = Disk()
    async with a_bench(disk) as bench:
        await bench.tell(registration("a"))
        disk.slow = True
        reply = asyncio.create_task(bench.tell(submitted()))
        await turns(lambda: len(disk.commits) == 2)
        await asyncio.sleep(0.02)
        assert not reply.done()
        assert bench.orders == []
        events, commit = disk.commits[1]
        assert [type(event).__name__ for event in events] == ["JobSubmitted", "AttemptPlaced"]
        commit.set_result(None)
        await reply
        assert [type(order) for order in bench.orders] == [Launch]


async def test_a_report_without_facts_waits_for_no_turn_and_wakes_nobody() -> None:
    async with a_bench(Disk()) as bench:
        bench.consumer.cancel()
        with bench.changes.watch() as watcher:
            await bench.loop.tell_if_any(lambda cluster: [])
            assert not watcher._changed.is_set()


async def test_a_report_without_facts_waits_for_the_commit_that_is_under_way() -> None:
    disk = Disk()
    disk.slow = True
    async with a_bench(disk) as bench:
        submit = asyncio.create_task(bench.tell(submitted()))
        await turns(lambda: disk.commits)
        report = asyncio.create_task(bench.loop.tell_if_any(lambda cluster: []))
        await asyncio.sleep(0.02)
        assert not report.done()
        disk.commits[0][1].set_result(None)
        await report
        await submit


async def test_a_report_without_facts_fails_once_the_journal_has_failed() -> None:
    disk = Disk()
    disk.slow = True
    async with a_bench(disk) as bench:
        submit = asyncio.create_task(bench.tell(submitted()))
        await turns(lambda: disk.commits)
        report = asyncio.create_task(bench.loop.tell_if_any(lambda cluster: []))
        await asyncio.sleep(0.02)
        disk.commits[0][1].set_exception(StoreError("the disk is full"))
        for failed in (report, submit):
            with pytest.raises(StoppedError):
                await failed


async def test_what_is_to_be_done_once_all_is_durable_waits_for_the_commit_that_is_under_way() -> None:
    disk, done = Disk(), list[int]()
    disk.slow = True
    async with a_bench(disk) as bench:
        assert bench.loop.once_durable(lambda: done.append(1))
        assert done == [1]
        submit = asyncio.create_task(bench.tell(submitted()))
        await turns(lambda: disk.commits)
        for number in (2, 3):
            assert bench.loop.once_durable(partial(done.append, number))
        await asyncio.sleep(0.02)
        assert done == [1]
        disk.commits[0][1].set_result(None)
        await submit
        assert done == [1, 2, 3]


async def test_what_is_to_be_done_once_all_is_durable_is_never_done_if_the_commit_fails() -> None:
    disk, done = Disk(), list[int]()
    disk.slow = True
    async with a_bench(disk) as bench:
        submit = asyncio.create_task(bench.tell(submitted()))
        await turns(lambda: disk.commits)
        assert bench.loop.once_durable(lambda: done.append(1))
        disk.commits[0][1].set_exception(StoreError("the disk is full"))
        with pytest.raises(StoppedError):
            await submit
        assert done == []


async def test_no_more_than_a_queue_of_them_waits_for_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebbtide_master.loop.MAX_QUEUE", 2)
    disk = Disk()
    disk.slow = True
    async with a_bench(disk) as bench:
        submit = asyncio.create_task(bench.tell(submitted()))
        await turns(lambda: disk.commits)
        assert [bench.loop.once_durable(lambda: None) for _ in range(3)] == [True, True, False]
        disk.commits[0][1].set_result(None)
        await submit


async def test_facts_of_a_report_are_on_disk_when_it_returns() -> None:
    disk = Disk()
    async with a_bench(disk) as bench:
        await bench.loop.tell_if_any(lambda cluster: [submitted()])
        assert [type(event).__name__ for event in disk.commits[0][0]] == ["JobSubmitted"]


async def test_an_answer_waits_for_the_commit_of_what_it_tells() -> None:
    disk = Disk()
    disk.slow = True
    async with a_bench(disk) as bench:
        submit = asyncio.create_task(bench.tell(submitted()))
        await turns(lambda: disk.commits)
        question = asyncio.create_task(bench.loop.ask(lambda cluster: len(cluster.state.jobs)))
        await asyncio.sleep(0.02)
        assert not question.done()
        disk.commits[0][1].set_result(None)
        await submit
        assert await question == 1


async def test_a_failed_commit_ends_the_loop_and_everyone_who_waits_is_told() -> None:
    disk = Disk()
    disk.slow = True
    async with a_bench(disk) as bench:
        first = asyncio.create_task(bench.tell(submitted("1")))
        await turns(lambda: disk.commits)
        queued = asyncio.create_task(bench.tell(submitted("2")))
        await asyncio.sleep(0.01)
        disk.commits[0][1].set_exception(StoreError("the journal failed: disk I/O error"))
        for waiting in (first, queued):
            with pytest.raises(StoppedError):
                await waiting
        with pytest.raises(StoreError):
            await bench.consumer
        with pytest.raises(StoppedError):
            await bench.tell(submitted("3"))
        assert bench.orders == []


async def test_those_who_wait_for_room_in_the_queue_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MAX_QUEUE", 2)
    disk = Disk()
    disk.slow = True
    async with a_bench(disk) as bench:
        crowd = [asyncio.create_task(bench.tell(submitted(str(number)))) for number in range(8)]
        await turns(lambda: disk.commits)
        await asyncio.sleep(0.01)
        disk.commits[0][1].set_exception(StoreError("full"))
        for waiting in crowd:
            with pytest.raises(StoppedError):
                await waiting


async def test_a_refused_wish_changes_nothing(tmp_path: Path) -> None:
    disk = Disk()
    async with a_bench(disk) as bench:
        with pytest.raises(RefusedError) as refused:
            await bench.tell(e.SuspendRequested(JobId("1")))
        assert refused.value.refusal.kind is RefusalKind.UNKNOWN
        assert disk.commits == []
        assert bench.cluster.state.jobs == {}


async def test_what_came_before_a_refused_fact_stays_and_what_follows_it_does_not_happen() -> None:
    disk = Disk()
    async with a_bench(disk) as bench:
        with pytest.raises(RefusedError):
            await bench.tell(submitted("1"), e.SuspendRequested(JobId("9")), submitted("2"))
        assert list(bench.cluster.state.jobs) == ["1"]
        assert [type(event).__name__ for events, _ in disk.commits for event in events] == ["JobSubmitted"]


async def test_each_fact_is_computed_after_the_one_before_took_effect() -> None:
    async with a_bench(Disk()) as bench:
        seen: list[int] = []

        def facts(cluster: Cluster) -> Iterable[Event]:
            for number in range(3):
                seen.append(len(cluster.state.jobs))
                yield submitted(str(number))

        await bench.loop.tell(facts, lambda _: None)
        assert seen == [0, 1, 2]


class Counting(Policy):
    """A policy that leaves everything as it is, and counts how often it was asked."""

    def __init__(self, recheck: Callable[[float], float | None] = lambda _: None) -> None:
        self.asked: list[float] = []
        self._recheck = recheck

    def plan(self, snapshot: Snapshot) -> Plan:
        self.asked.append(snapshot.now)
        return Plan(recheck_at=self._recheck(snapshot.now))


async def test_what_comes_together_is_committed_and_scheduled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "BATCH_S", 60.0)
    disk, policy = Disk(), Counting()
    async with a_bench(disk, policy) as bench:
        await asyncio.gather(*(bench.tell(submitted(str(number))) for number in range(100)))
        assert len(policy.asked) <= 2
        assert len(disk.commits) <= 2
        assert len(bench.cluster.state.jobs) == 100


async def test_a_question_costs_neither_a_commit_nor_a_scheduling_pass() -> None:
    disk, policy = Disk(), Counting()
    async with a_bench(disk, policy) as bench:
        assert await bench.loop.ask(lambda cluster: cluster.state.epoch) == 0
        assert (disk.commits, policy.asked) == ([], [])


async def test_an_answer_that_goes_wrong_goes_to_whoever_asked_and_nobody_else() -> None:
    async with a_bench(Disk()) as bench:
        with pytest.raises(ZeroDivisionError):
            await bench.loop.ask(lambda _: 1 / 0)
        assert await bench.loop.ask(lambda _: "still here") == "still here"


async def test_it_wakes_up_at_the_time_that_was_asked_for_and_never_before() -> None:
    due: list[float] = []

    def recheck(now: float) -> float | None:
        if not due:
            due.append(now + 0.05)
        return due[0] if now < due[0] else None

    policy = Counting(recheck)
    async with a_bench(Disk(), policy) as bench:
        await bench.tell(submitted())
        await turns(lambda: len(policy.asked) >= 2)
        await asyncio.sleep(0.05)
        assert len(policy.asked) == 2
        assert due[0] <= policy.asked[1] < due[0] + DEADLINE_S


async def test_of_two_times_it_wakes_up_at_the_earlier_one_first() -> None:
    policy = Counting()
    async with a_bench(Disk(), policy) as bench:
        await bench.tell(submitted())  # while nobody waits, no policy is asked
        policy.asked.clear()
        start = bench.clock.now()
        for seconds in (60.0, 0.03, 90.0):
            bench.loop._carry_out(WakeAt(start + seconds))
        await turns(lambda: policy.asked)
        assert start + 0.03 <= policy.asked[0] < start + DEADLINE_S


async def test_it_wakes_up_at_both_of_two_times_though_one_is_past() -> None:
    policy = Counting()
    async with a_bench(Disk(), policy) as bench:
        await bench.tell(submitted())
        policy.asked.clear()
        later = bench.clock.now() + 3.0  # on a busy machine the first wake-up may take some time
        bench.loop._carry_out(WakeAt(1.0))
        bench.loop._carry_out(WakeAt(later))
        await turns(lambda: len(policy.asked) == 2)
        assert policy.asked[0] <= later <= policy.asked[1]


async def test_a_time_that_is_past_is_now() -> None:
    policy = Counting()
    async with a_bench(Disk(), policy) as bench:
        await bench.tell(submitted())
        policy.asked.clear()
        bench.loop._carry_out(WakeAt(1.0))
        await turns(lambda: policy.asked)


async def test_a_full_queue_makes_those_who_tell_wait_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "MAX_QUEUE", 4)
    monkeypatch.setattr(loops, "MAX_BATCH", 2)
    async with a_bench(Disk()) as bench:
        await asyncio.gather(*(bench.tell(submitted(str(number))) for number in range(50)))
        assert list(bench.cluster.state.jobs) == [str(number) for number in range(50)]


async def test_with_a_real_journal_what_was_replied_to_is_there(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "journal.db")
    async with a_bench(store) as bench:
        await asyncio.gather(*(bench.tell(submitted(str(number))) for number in range(20)))
        assert [line.event for line in store.events()] == [submitted(str(number)) for number in range(20)]
    store.close()


class TestTurns:
    async def submit(self, bench: Bench, line: str, id: str) -> None:
        use_queue(line)
        await bench.tell(submitted(id))

    async def test_one_users_backlog_does_not_delay_anothers_wish(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loops, "MAX_BATCH", 4)
        monkeypatch.setattr(loops, "BATCH_S", 60.0)
        disk = Disk()
        disk.slow = True
        async with a_bench(disk) as bench:
            backlog = [asyncio.create_task(self.submit(bench, "ann", f"a{number}")) for number in range(100)]
            await turns(lambda: disk.commits)
            late = asyncio.create_task(self.submit(bench, "eve", "e"))
            await asyncio.sleep(0)
            for commit in range(2):
                await turns(lambda: len(disk.commits) > commit)  # noqa: B023
                disk.commits[commit][1].set_result(None)
            await asyncio.wait_for(late, DEADLINE_S)
            assert sum(task.done() for task in backlog) <= 8
            for task in backlog:
                task.cancel()

    async def test_a_question_waits_for_the_batch_that_is_being_committed_and_for_no_other(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loops, "MAX_BATCH", 4)
        disk = Disk()
        disk.slow = True
        async with a_bench(disk) as bench:
            backlog = [asyncio.create_task(self.submit(bench, "ann", f"a{number}")) for number in range(100)]
            await turns(lambda: disk.commits)
            question = asyncio.create_task(bench.loop.ask(lambda cluster: len(cluster.state.jobs)))
            await asyncio.sleep(0)
            disk.commits[0][1].set_result(None)
            assert await asyncio.wait_for(question, DEADLINE_S) == len(disk.commits[0][0]) <= 4
            for task in backlog:
                task.cancel()

    async def test_facts_that_cannot_be_told_are_their_tellers_trouble_and_nobody_elses(self) -> None:
        def broken(cluster: Cluster) -> Iterable[Event]:
            raise KeyError("no such thing")

        async with a_bench(Disk()) as bench:
            with pytest.raises(KeyError):
                await bench.loop.tell(broken, lambda _: None)
            await bench.tell(submitted("1"))


class TestWatchers:
    async def test_a_question_wakes_nobody(self) -> None:
        """Else a watcher, which asks whenever it is told, would keep itself and the master busy for ever."""
        async with a_bench(Disk()) as bench:
            with bench.changes.watch() as watcher:
                for _ in range(3):
                    await bench.loop.ask(lambda _: None)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(watcher.wait_changed(), 0.02)

    async def test_a_change_is_told_once_with_the_job_that_changed(self) -> None:
        async with a_bench(Disk()) as bench:
            with bench.changes.watch() as watcher:
                await bench.tell(submitted("1"))
                await bench.tell(submitted("2"))
                assert await asyncio.wait_for(watcher.wait_changed(), DEADLINE_S) == {"1", "2"}
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(watcher.wait_changed(), 0.02)

    async def test_a_change_of_a_node_is_told_with_the_jobs_on_it(self) -> None:
        async with a_bench(Disk()) as bench:
            await bench.tell(registration("a"), submitted("1"), submitted("2", gpus_min=0, gpus_max=0))
            await turns(lambda: bench.orders)
            with bench.changes.watch() as watcher:
                await bench.tell(e.NodeLost(NodeId("a"), 20.0))
                assert "1" in await asyncio.wait_for(watcher.wait_changed(), DEADLINE_S)

    async def test_who_has_stopped_watching_is_forgotten(self) -> None:
        async with a_bench(Disk()) as bench:
            with bench.changes.watch():
                pass
            assert not bench.changes._watchers
