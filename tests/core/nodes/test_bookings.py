"""GPUs that are booked for one user: who may have them until then, who leaves in time, and who gets them."""

import dataclasses
import math
import sys

import pytest
from ebbtide_core import events as e
from ebbtide_core.commands import Record, WakeAt
from ebbtide_core.events.bookings import BookedGpu
from ebbtide_core.events.codec import decode_event, encode
from ebbtide_core.job.job import Job
from ebbtide_core.model.settings import PoolSettings
from ebbtide_core.model.types import GpuId, JobState, NodeId, SuspendMode
from ebbtide_core.nodes import booking_placement as rules
from ebbtide_core.nodes.booking_placement import BookingRequest, ImpossibleError, choose
from ebbtide_core.planning.draft import need_text
from ebbtide_core.policies.registry import POLICIES
from ebbtide_core.resources.bookings import FREEING_S, lead_s
from ebbtide_core.resources.placing import Trial
from ebbtide_core.state import ClusterState
from ebbtide_core.views.explain import explain
from ebbtide_core.views.forecast import fork
from ebbtide_core.views.narrate import narrate
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.core.lab import DONE, Lab, gpus_of, launched, stopped
from tests.core.measuring.test_interference import LONG, pair, train
from tests.core.resources.test_pools import Pools
from tests.core.resources.test_pools_world import WorldOfPools
from tests.core.world import NODES, World
from tests.drawing import share_of

WINDOW = "2026-11-23 09:00 to 13:00"
GRACE_S = 20.0


class BookedLab(Lab):
    """A lab where jobs are of ann, unless they are of bob."""

    def of_bob(self, *args, **kwargs) -> Job:
        """Submit a job of his."""
        self.user = "bob"
        job = self.submit(*args, **kwargs)
        self.user = "ann"
        return job

    user = "ann"

    def tell(self, event):
        if isinstance(event, e.JobSubmitted):
            event = dataclasses.replace(event, user=self.user)
        return super().tell(event)

    def book(self, count: int, after: float = 0.0, length: float = 1000.0, user: str = "bob", **wish: str) -> list[str]:
        """Book GPUs for bob; which."""
        since = self.now + 1.0 + after
        wanted = BookingRequest(user=user, count=count, since=since, until=since + length, **wish)
        gpus = choose(self.cluster.state, wanted, self.now)
        id = str(self.cluster.state.bookings.made + 1)
        self.tell(
            e.BookingMade(booking=id, user=user, since=since, until=since + length, gpus=gpus, window=WINDOW, **wish)
        )
        return [booked.gpu for booked in gpus]


@pytest.fixture
def lab() -> BookedLab:
    return BookedLab(gpus=2)


def test_from_its_start_to_its_end_only_jobs_of_its_user_get_the_gpus(lab: BookedLab) -> None:
    assert lab.book(2, length=100.0) == ["a0", "a1"]
    others, share, own = lab.submit(1), lab.submit("1/4"), lab.of_bob(1)
    assert (others.state, share.state, own.state) == (JobState.PENDING, JobState.PENDING, JobState.STARTING)
    assert others.reason == f"waiting for 1 GPU: 2 GPUs are reserved for bob, {WINDOW} (reservation 1)"
    lab.wait(100)
    assert others.state is JobState.STARTING


def test_the_cluster_wakes_when_somebody_has_to_leave_when_it_starts_and_when_it_is_over(lab: BookedLab) -> None:
    lab.running(2, grace_s=GRACE_S)
    lab.book(2, after=500.0, length=100.0)
    start = lab.cluster.state.bookings.by_id["1"].since
    assert lab.wakes[-1][1] == start - GRACE_S - FREEING_S
    lab.now = start - GRACE_S - FREEING_S - 1
    lab.tell(e.SchedulingDue())
    assert lab.wakes[-1][1] == start
    lab.now = start
    lab.tell(e.SchedulingDue())
    assert lab.wakes[-1][1] == start + 100


def test_who_can_be_suspended_computes_there_until_it_has_to_save(lab: BookedLab) -> None:
    lab.book(2, after=500.0)
    start = lab.cluster.state.bookings.by_id["1"].since
    job = lab.running(2, grace_s=GRACE_S)
    lab.now = start - lead_s(job) - 3
    assert stopped(lab.tell(e.SchedulingDue())) == set()
    assert stopped(lab.wait(1)) == {job.id}
    assert job.reason == f"reserved for bob, {WINDOW} (reservation 1)"
    lab.end(job)
    assert (job.state, job.suspending.preemptions) == (JobState.SUSPENDED, 1)
    lab.wait(1000 + GRACE_S + FREEING_S)
    assert job.state is JobState.STARTING


def test_nobody_is_started_only_to_be_asked_to_leave(lab: BookedLab) -> None:
    lab.book(2, after=2 * (GRACE_S + FREEING_S) - 2)
    assert lab.submit(1, grace_s=GRACE_S).state is JobState.PENDING
    assert lab.submit(1, grace_s=GRACE_S / 2).state is JobState.STARTING


def test_who_cannot_be_suspended_starts_only_if_its_time_limit_ends_before(lab: BookedLab) -> None:
    lab.book(2, after=500.0)
    never, late, early = (
        lab.submit(1, suspend=SuspendMode.NONE, grace_s=GRACE_S, time_limit_s=limit) for limit in (None, 480.0, 400.0)
    )
    assert (never.state, late.state, early.state) == (JobState.PENDING, JobState.PENDING, JobState.STARTING)


def test_gpus_that_are_not_booked_are_for_everybody(lab: BookedLab) -> None:
    lab.book(1)
    assert gpus_of(lab.submit(1)) == {"a1"}
    assert gpus_of(lab.of_bob(1)) == {"a0"}


def test_its_user_gets_booked_gpus_before_others_and_on_several_nodes_too() -> None:
    lab = BookedLab(nodes="abc", gpus=2)
    assert lab.book(2, on_node="c") == ["c0", "c1"]
    assert gpus_of(lab.of_bob(1)) == {"c0"}
    assert gpus_of(lab.of_bob(1)) == {"c1"}
    assert gpus_of(lab.of_bob(1)) == {"a0"}
    assert lab.submit(5, max_nodes=3).state is JobState.PENDING
    assert gpus_of(lab.submit(3, max_nodes=3)) == {"a1", "b0", "b1"}


def test_an_elastic_job_does_not_grow_onto_booked_gpus(lab: BookedLab) -> None:
    lab.book(1)
    job = lab.running(1, to=2)
    lab.settle()
    assert gpus_of(job) == {"a1"}


def test_idle_gpus_are_booked_before_used_ones_and_few_nodes_before_many() -> None:
    lab = BookedLab(nodes="ab", gpus=3)
    assert gpus_of(lab.running(1)) == {"a0"}
    assert lab.book(2, after=900, length=10) == ["a1", "a2"]
    assert lab.book(3, after=300, length=10) == ["b0", "b1", "b2"]
    assert lab.book(4, after=100, length=10) == ["a1", "a2", "a0", "b0"]


def test_what_others_have_booked_or_cannot_leave_is_refused_with_who(lab: BookedLab) -> None:
    lab.book(2, after=500.0, user="eve")
    with pytest.raises(
        ImpossibleError, match=r"^--start: only 0 GPUs are left then: reserved for eve, .*reservation 1"
    ):
        lab.book(1, after=600.0)
    assert lab.book(1, after=2000.0) == ["a0"]
    lab.tell(e.BookingCancelled("1"))
    lab.tell(e.BookingCancelled("2"))
    lab.running(1, suspend=SuspendMode.NONE)
    with pytest.raises(ImpossibleError, match=r"^--gpus: only 1 GPUs are there, or can be free then"):
        lab.book(2, after=5000.0)
    with pytest.raises(ImpossibleError, match=r"^--gpus: only 0 GPUs of type H100 are there"):
        lab.book(1, gpu_type="H100")
    with pytest.raises(ImpossibleError, match=r"^--node: there is no node 'z'"):
        lab.book(1, on_node="z")
    assert lab.book(1, after=9000.0, gpu_type="a100") == ["a1"]


def test_a_lost_gpu_is_replaced_by_one_whose_job_then_leaves() -> None:
    lab = BookedLab(nodes="ab", gpus=2)
    assert lab.book(2) == ["a0", "a1"]
    job = lab.running(2)
    assert gpus_of(job) == {"b0", "b1"}
    commands = lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a0"), False, "Xid 79"))
    booked = lab.cluster.state.bookings.by_id["1"].gpus
    assert booked == (BookedGpu(NodeId("a"), GpuId("a1")), BookedGpu(NodeId("b"), GpuId("b0")))
    assert stopped(commands) == {job.id}


def test_a_booking_that_is_cancelled_keeps_nothing(lab: BookedLab) -> None:
    lab.book(2)
    job = lab.submit(2)
    assert job.id in launched(lab.tell(e.BookingCancelled("1", "bob")))
    assert all(pool.books.booked is None for pool in lab.cluster.state.pools.values())


def test_in_several_pools_the_gpus_are_of_one_and_its_user_gets_them_there() -> None:
    lab = Pools(big=PoolSettings(), nodes={"default": "a", "big": "bc"})
    wish = BookingRequest(user="ann", count=3, since=lab.now, until=lab.now + 1000)
    gpus = choose(lab.cluster.state, wish, lab.now)
    assert [booked.gpu for booked in gpus] == ["b0", "b1", "c0"]
    lab.tell(e.BookingMade(booking="1", user="ann", since=wish.since, until=wish.until, gpus=gpus, window=""))
    assert gpus_of(lab.submit(1, pool="big")) == {"b0"}
    assert gpus_of(lab.submit(1)) == {"a0"}


def test_explain_says_what_is_booked_on_each_node(lab: BookedLab) -> None:
    lab.book(1)
    view = explain(lab.cluster.state, lab.submit(2), lab.now).nodes[0]
    assert view.obstacle == f"too few GPUs left; 1 GPU is reserved for bob, {WINDOW} (reservation 1)"


def test_events_of_bookings_survive_the_journal_and_are_told_in_words(lab: BookedLab) -> None:
    lab.book(2)
    lab.tell(e.BookingCancelled("1", "ann"))
    found = [event for _, event in lab.journal if isinstance(event, e.BookingMade | e.BookingCancelled)]
    assert [decode_event(type(event).__name__, encode(event)) for event in found] == found
    assert [narrate(event) for event in found] == [
        f"2 GPUs of node a reserved for bob, {WINDOW} (reservation 1)", "reservation 1 cancelled by ann",
    ]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_under_every_policy_others_leave_in_time_and_come_back(policy: str) -> None:
    lab = BookedLab(policy, gpus=4)
    jobs = [lab.submit(1, to=2, grace_s=GRACE_S) for _ in range(3)]
    lab.settle()
    booked = set(lab.book(4, after=500.0))
    start = lab.cluster.state.bookings.by_id["1"].since
    lab.now = start - GRACE_S - FREEING_S
    lab.tell(e.SchedulingDue())
    lab.settle()
    assert all(booked.isdisjoint(gpus_of(job)) for job in jobs)
    own = lab.of_bob(1)
    lab.settle()
    assert gpus_of(own) <= booked
    assert gpus_of(own)
    lab.end(own, DONE)
    lab.wait(1100)
    lab.settle()
    assert any(gpus_of(job) for job in jobs)


def in_the_way(state: ClusterState) -> list[tuple[NodeId, str, float]]:
    """Who has to leave which node for a booking of another user, and when, by definition."""
    first: dict[tuple[NodeId, str], float] = {}
    for booking in state.bookings.by_id.values():
        for booked in booking.gpus:
            for job in state.jobs.values():
                pieces = job.holding.allocation if job.holding is not None and job.running and job.preemptible else ()
                here = any(piece.node == booked.node and booked.gpu in {s.gpu for s in piece.gpus} for piece in pieces)
                if here and job.user != booking.user:
                    key, time = (booked.node, job.id), booking.since - lead_s(job)
                    first[key] = min(time, first.get(key, time))
    return [(*key, time) for key, time in sorted(first.items())]


def kept_out(state: ClusterState) -> dict[str, str]:
    """The jobs that bookings alone keep out, and why: all who wait are asked, each in clusters where nobody runs."""
    found = {}
    for pool in state.pools.values():
        empty, unbooked = Trial(pool.books), Trial(pool.books, as_if_unbooked=True)
        for planned in [job.planned for job in pool.planned.values()]:
            empty.give(planned)
            unbooked.give(planned)
        outside = [job for job in state.blocked_by_bookings.values() if job.pool == pool.name]
        for job in [*pool.queue, *outside]:
            room = [trial.find(job, job.gpus_min) for trial in (empty, unbooked)]
            if job.gpus_min and job.waiting and job.planned is None and room[0] is None and room[1] is not None:
                need = need_text(job, job.gpus_min)
                found[job.id] = f"waiting for {need}: {state.bookings.obstacle(job)}"
    return found


class Booking:
    """A world half of whose jobs are of bob, and in which GPUs are booked."""

    def tell(self, event: e.Event) -> None:
        if isinstance(event, e.JobSubmitted) and int(event.job) // 2 % 2:
            event = dataclasses.replace(event, user="bob")
        super().tell(event)

    def train(self) -> None:
        super().train()
        self._perform(self.cluster.handle(e.SchedulingDue(), self.now))  # the cluster is woken as it wished

    def _perform(self, commands: list) -> None:
        super()._perform(commands)
        for event in [command.event for command in commands if isinstance(command, Record)]:
            if isinstance(event, e.AttemptPlaced | e.ReturnRequested):
                self._check_booked(self.cluster.state.jobs[event.job])

    def _check_booked(self, job: Job) -> None:
        """Whoever starts on what is booked for another can leave in time."""
        for booking in self.cluster.state.bookings.by_id.values():
            wanted = {booked.gpu for booked in booking.gpus}
            if booking.user != job.user and not wanted.isdisjoint(job.attempts[-1].allocation.gpu_ids):
                assert job.attempts[-1].stop is not None or (
                    job.preemptible and self.now + lead_s(job) <= booking.since
                ), (job, booking)

    @rule(
        user=st.sampled_from(["ann", "bob"]),
        count=st.integers(1, 4),
        after=st.sampled_from([0.0, 15.0, 30.0, 800.0]),
        length=st.sampled_from([20.0, 900.0]),
        node=st.sampled_from(["", *NODES]),
    )
    def book(self, user: str, count: int, after: float, length: float, node: str) -> None:
        state = self.cluster.state
        wish = BookingRequest(
            user=user, count=count, since=self.now + after, until=self.now + after + length, on_node=node
        )
        try:
            gpus = choose(state, wish, self.now)
        except ImpossibleError:
            return
        id = str(state.bookings.made + 1)
        made = e.BookingMade(booking=id, user=user, since=wish.since, until=wish.until, gpus=gpus, window="")
        self.tell(made)

    @rule()
    def cancel_a_booking(self) -> None:
        for id in list(self.cluster.state.bookings.by_id)[:1]:
            self.tell(e.BookingCancelled(id))

    @invariant()
    def nobody_else_computes_on_booked_gpus_who_was_not_asked_to_leave(self) -> None:
        for booking in self.cluster.state.bookings.by_id.values() if hasattr(self, "cluster") else ():
            gpus = {booked.gpu for booked in booking.gpus}
            for process in self.processes.values():
                job = self.cluster.state.jobs[process.ref.job]
                here = process.alive and not process.out and self.connected[process.node]
                if here and job.user != booking.user and not gpus.isdisjoint(process.gpus):
                    due = booking.since - lead_s(job) <= self.now < booking.until
                    assert not due or process.asked or process.to_leave, (process, booking)

    @invariant()
    def the_index_keeps_out_whom_a_scan_of_all_who_wait_does(self) -> None:
        if not hasattr(self, "cluster") or not self.cluster.state.bookings:
            return
        state = fork(self.cluster).state
        state.bookings.look(self.now)
        rules.update_blocked(state, self.now)
        assert {id: job.reason for id, job in state.blocked_by_bookings.items()} == kept_out(state)
        assert not state.bookings or not state.bookings.more_to_block

    @invariant()
    def the_index_has_in_the_way_whom_a_scan_of_all_booked_gpus_does(self) -> None:
        if not hasattr(self, "cluster") or not self.cluster.state.bookings:
            return
        state = fork(self.cluster).state
        found = [(entry.node, entry.id, entry.time) for entry in rules._in_the_way(state).due(math.inf)]
        assert found == in_the_way(state)

    @invariant()
    def the_journal_folds_to_the_same_bookings(self) -> None:
        if not hasattr(self, "cluster"):
            return
        again = self.new_cluster()
        for now, event in self.journal:
            if isinstance(event, e.BookingMade | e.BookingMoved | e.BookingCancelled):
                again.replay(event, now)
        again.state.bookings.look(self.now)
        self.cluster.state.bookings.look(self.now)
        assert again.state.bookings.by_id == self.cluster.state.bookings.by_id


class BookedWorld(Booking, World):
    """The world, booked."""


class BookedPools(Booking, WorldOfPools):
    """The one of several pools."""


SETTINGS = settings(
    max_examples=share_of(25),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestBookedWorld, TestBookedPools = BookedWorld.TestCase, BookedPools.TestCase
TestBookedWorld.settings = TestBookedPools.settings = SETTINGS


def test_a_job_that_disturbed_another_says_that_bookings_keep_it_out_as_long_as_they_do() -> None:
    lab = BookedLab(gpus=2)
    lab.running(1)
    one, two = pair(lab)
    train(lab, LONG, (one, 2), (two, 2))
    lab.book(2, after=200.0)
    lab.end(two)
    for _ in range(3):
        lab.wait(1)
        assert two.reason.startswith("waiting for 1/4 GPU: 2 GPUs are reserved for bob")
    lab.tell(e.BookingCancelled("1"))
    lab.wait(1)
    assert two.reason == f"suspended until there is room apart from job {one.id}"


def test_a_copy_of_the_cluster_asks_what_bookings_keep_out_at_its_own_time(lab: BookedLab) -> None:
    lab.running(2, suspend=SuspendMode.NONE, time_limit_s=900.0)
    lab.book(2, after=1500.0)
    waiting = lab.submit(1, suspend=SuspendMode.NONE, time_limit_s=300.0)
    lab.wait(1)
    copy = fork(lab.cluster)
    copy.handle(e.SchedulingDue(), lab.now + 1400.0)
    assert copy.state.blocked_by_bookings.keys() == {waiting.id}
    lab.wait(1)
    assert not lab.cluster.state.blocked_by_bookings


def many(lab: BookedLab, count: int) -> None:
    """Bookings for several users, one after another, of all GPUs."""
    for number in range(count):
        lab.book(2, after=5000.0 + number * 2000.0, user=f"u{number % 7}")


def test_what_an_event_costs_does_not_grow_with_every_booking_for_every_job(lab: BookedLab) -> None:
    many(lab, 200)
    jobs = [lab.submit(1, suspend=SuspendMode.NONE, time_limit_s=10_000.0 + number) for number in range(300)]
    assert lab.cluster.state.blocked_by_bookings.keys() == {job.id for job in jobs}
    calls = 0

    def count(frame: object, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        lab.wait(1)
    finally:
        sys.setprofile(None)
    assert calls < 30_000  # 300 jobs times 200 bookings are 60,000


def test_a_reason_names_the_first_bookings_and_how_many_more_there_are(lab: BookedLab) -> None:
    many(lab, 10)
    job = lab.submit(1, suspend=SuspendMode.NONE)
    texts = [f"2 GPUs are reserved for u{number}, {WINDOW} (reservation {number + 1})" for number in range(3)]
    assert job.reason == f"waiting for 1 GPU: {'; '.join(texts)}; 7 more reservations of others"


def test_of_very_many_bookings_whose_gpus_are_lost_some_are_moved_at_a_time_and_the_others_follow() -> None:
    lab = BookedLab(nodes="ab", gpus=2)
    for number in range(30):
        lab.book(2, after=5000.0 + number * 2000.0, user=f"u{number % 7}", on_node="")
    node = lab.cluster.state.bookings.by_id["1"].gpus[0].node
    out, parts = lab.cluster.handle(e.NodeLost(node, 60.0), lab.now), list[int]()
    while any(isinstance(command, WakeAt) and command.time <= lab.now for command in out) or not parts:
        out = lab.cluster.handle(e.SchedulingDue(), lab.now)
        parts.append(sum(isinstance(command, Record) for command in out))
    assert max(parts) <= 5
    assert sum(parts) == 30
    assert not any(gpu.node == node for one in lab.cluster.state.bookings.by_id.values() for gpu in one.gpus)


def test_of_very_many_blocked_jobs_some_leave_the_queue_at_a_time_and_some_come_back(
    lab: BookedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "BLOCKED_AT_ONCE", 10)
    lab.running(2)
    jobs = [lab.submit(1, suspend=SuspendMode.NONE) for _ in range(45)]

    def out_of_line(event: e.Event) -> list[int]:
        """How many were out of the line after each pass that followed from ``event``."""
        commands, counts = lab.cluster.handle(event, lab.now), list[int]()
        while not counts or any(isinstance(command, WakeAt) and command.time <= lab.now for command in commands):
            commands = lab.cluster.handle(e.SchedulingDue(), lab.now)
            counts.append(len(lab.cluster.state.blocked_by_bookings))
            assert sum(job.queued is None for job in jobs) == counts[-1]
        return counts

    made = e.BookingMade(
        booking="1", user="bob", since=lab.now + 5000, until=lab.now + 6000, gpus=booked(2), window=WINDOW
    )
    assert out_of_line(made) == [10, 20, 30, 40, 45]
    assert out_of_line(e.BookingCancelled("1", "bob")) == [35, 25, 15, 5, 0]


def booked(count: int) -> tuple[BookedGpu, ...]:
    return tuple(BookedGpu(NodeId("a"), GpuId(f"a{index}")) for index in range(count))


def test_what_an_event_costs_does_not_grow_with_those_who_wait_beside_bookings(lab: BookedLab) -> None:
    lab.running(2)
    running = [lab.submit(0) for _ in range(200)]
    lab.book(2, after=5000.0)
    jobs = [lab.submit(1, suspend=SuspendMode.NONE, time_limit_s=10_000.0 + number) for number in range(200)]
    jobs += [lab.submit(1) for _ in range(200)]
    calls = 0

    def count(frame: object, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        lab.wait(1)
    finally:
        sys.setprofile(None)
    assert lab.cluster.state.blocked_by_bookings.keys() == {job.id for job in jobs[:200]}
    assert all(job.state is JobState.STARTING for job in running)
    assert calls < 400, "those who wait, and those who run, are 600"
