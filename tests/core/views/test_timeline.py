"""The timeline: where each span begins and ends, why, and that spans come to what the ledger adds up."""

from collections import Counter
from collections.abc import Iterable

import pytest
from ebbtide_core import events as e
from ebbtide_core.events.bookings import BookedGpu
from ebbtide_core.events.fencing import StrayKind
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, ExitFacts, GpuId, JobId, Loan, NodeId, RefusalCause, SuspendMode
from ebbtide_core.views.gpu_time import Dimension, Periods
from ebbtide_core.views.phases import KINDS, Rest
from ebbtide_core.views.timeline import Began, BookedSpan, Ended, JobSpan, RestSpan, Timeline
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule

from tests.core.admission.test_gates import array
from tests.core.lab import DONE, Lab, registration
from tests.core.resources.test_pools_world import WorldOfPools
from tests.core.views.test_ledger import usage_of
from tests.core.world import World
from tests.drawing import share_of

ALWAYS = Periods((0.0, 1e9))
Span = tuple[Began, float, str]


def followed(journal: Iterable[tuple[float, e.Event]], now: float) -> list[Span]:
    """All spans, with their ends, or with ``now`` for those that go on, and why they ended."""
    timeline, begun, ended = Timeline(), dict[int, Began](), dict[int, Ended]()
    for line, (at, event) in enumerate(journal, 1):
        if type(event).__name__ not in KINDS:
            continue
        for change in timeline.take(line, event, at):
            if isinstance(change, Began):
                assert change.key not in begun
                begun[change.key] = change
            else:
                assert change.what == begun[change.key].what
                assert change.key not in ended or isinstance(change.what, BookedSpan)
                ended[change.key] = change
    spans = []
    for key, span in begun.items():
        end = ended.get(key)
        spans.append((span, now if end is None else end.at, "" if end is None else end.why))
    return [span for span in spans if span[1] > span[0].at]


def of_job(lab: Lab, job: Job) -> list[tuple[str, float, str]]:
    """What a job did in order: what it was, for how long, and why it ended."""
    return [
        (span.what.doing.value, end - span.at, why)
        for span, end, why in followed(lab.journal, lab.now)
        if isinstance(span.what, JobSpan) and span.what.job == job.id
    ]


def test_an_attempt_starts_computes_and_leaves_and_says_how_it_ended() -> None:
    lab = Lab(gpus=2)
    job = lab.submit(2)
    lab.wait(9)
    lab.start(job)
    lab.wait(99)
    lab.exit(job, DONE)
    lab.wait(4)
    lab.free(job)
    assert of_job(lab, job) == [
        ("starting", 11, ""), ("computing", 101, "completed"), ("leaving", 6, "completed"),
    ]  # fmt: skip


def test_a_preempted_job_says_for_whom_and_waits_until_it_is_back() -> None:
    lab = Lab(gpus=1)
    victim = lab.running(1)
    lab.wait(99)
    urgent = lab.submit(1, te=True)
    lab.wait(4)
    lab.end(victim)
    lab.start(urgent)
    spans = of_job(lab, victim)
    assert ("computing", spans[1][1], f"preempted for job {urgent.id}") == spans[1]
    assert [doing for doing, _, _ in spans] == ["starting", "computing", "leaving", "suspended"]
    assert of_job(lab, urgent)[0][0] == "waiting"


def test_a_job_that_is_swapped_out_leaves_its_gpu_and_is_suspended() -> None:
    lab = Lab(gpus=1)
    job = lab.running(1, suspend=SuspendMode.SWAP)
    lab.wait(9)
    lab.tell(e.SuspendRequested(job.id))
    lab.tell(e.AttemptSwapped(job.id, 1, 1, 1 << 30, 1.0))
    lab.wait(99)
    assert of_job(lab, job)[-1] == ("suspended", 100, "")
    assert of_job(lab, job)[-2][::2] == ("leaving", "suspended")


def test_a_node_registers_after_a_job_was_cancelled_in_host_memory_there() -> None:
    lab = Lab(gpus=1)
    job = lab.running(1, suspend=SuspendMode.SWAP)
    lab.tell(e.SuspendRequested(job.id))
    lab.tell(e.AttemptSwapped(job.id, 1, 1, 1 << 30, 1.0))
    lab.tell(e.CancelRequested(job.id))
    lab.end(job, ExitFacts(signal=9, stop_requested=True, killed=True, swap_failure="ended while swapped out"))
    lab.tell(registration("a", 1))
    assert [doing for doing, _, _ in of_job(lab, job)] == ["starting", "computing", "leaving", "suspended"]


def test_a_node_registers_after_a_job_ended_that_had_left_it_out() -> None:
    lab = Lab(gpus=1)
    job = lab.submit(1)
    while not job.eligibility.excluded:
        lab.tell(e.AttemptRefused(job.id, len(job.attempts), RefusalCause.NODE, "no room"))
        lab.wait(60)
    lab.tell(e.CancelRequested(job.id))
    lab.tell(registration("a", 1))
    assert of_job(lab, job)[-1][2] == "CANCELLED"


def test_a_gpu_is_idle_out_of_service_or_gone() -> None:
    lab = Lab(gpus=1)
    lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a0"), False, "Xid 79"))
    lab.wait(9)
    lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a0"), True, ""))
    lab.wait(4)
    rests = [
        (span.what.rest, end - span.at)
        for span, end, _ in followed(lab.journal, lab.now)
        if isinstance(span.what, RestSpan)
    ]
    assert [rest for rest, _ in rests][-2:] == [Rest.UNAVAILABLE, Rest.IDLE]
    assert rests[-2][1] == 11


def test_a_gpu_that_a_stray_has_or_left_dirty_is_out_of_service() -> None:
    lab = Lab(gpus=1)
    node, job, gpus = NodeId("a"), JobId("77"), (GpuId("a0"),)
    lab.tell(e.StrayFound(node=node, job=job, attempt=1, kind=StrayKind.UNKNOWN, gpus=gpus))
    lab.wait(9)
    lab.tell(e.StrayGone(node=node, job=job, attempt=1, dirty_gpus=gpus, dirty_reasons=("it is full",)))
    lab.wait(99)
    spans = followed(lab.journal, lab.now)
    rests = [(span.what.rest, end - span.at) for span, end, _ in spans if isinstance(span.what, RestSpan)]
    assert [rest for rest, _ in rests] == [Rest.IDLE, Rest.UNAVAILABLE]
    assert rests[-1][1] == 111


def test_a_booking_is_a_span_of_each_of_its_gpus_until_it_is_moved_or_cancelled() -> None:
    lab = Lab(gpus=2)
    began = lab.now
    first, second = (BookedGpu(NodeId("a"), GpuId(f"a{n}")) for n in (0, 1))
    lab.tell(e.BookingMade(booking="r1", user="bob", since=began + 100, until=began + 200, gpus=(first,), window=""))
    lab.tell(e.BookingMade(booking="r2", user="bob", since=began + 100, until=began + 200, gpus=(second,), window=""))
    lab.wait(149)
    lab.tell(e.BookingMoved("r1", (second,), "its GPU is lost"))
    lab.tell(e.BookingCancelled("r2"))
    found = [
        (span.what.booking, span.what.gpu, span.at - began, end - began, why)
        for span, end, why in followed(lab.journal, began + 200)
        if isinstance(span.what, BookedSpan)
    ]
    assert [(booking, gpu, why) for booking, gpu, _, _, why in found] == [
        ("r1", "a0", "moved"), ("r2", "a1", "cancelled"), ("r1", "a1", ""),
    ]  # fmt: skip
    assert found[0][2] == 100
    assert found[2][2:4] == (found[0][3], 200)


def test_the_same_keys_are_given_whenever_the_journal_is_read() -> None:
    lab = Lab(gpus=2)
    lab.end(lab.running(2), DONE)
    lab.running(1)
    again = [[span.key for span, _, _ in followed(lab.journal, lab.now)] for _ in range(2)]
    assert again[0] == again[1]
    assert len(set(again[0])) == len(again[0])


def test_what_is_over_takes_no_memory_any_more() -> None:
    lab = Lab("fifo", gpus=4)
    lab.tell(registration("b", 2, loan=Loan(lab.now + 1000.0, "ann")))
    tasks = array(lab, 105, concurrent=2, time_limit_s=100.0)
    held = lab.submit(1, begin_at=lab.now + 10.0, hold=True)
    lab.tell(e.ArrayChanged(JobId("100"), 0, 0, 2, 0))
    for task in tasks:
        lab.tell(e.CancelRequested(task.id))
    for task in [task for task in tasks if task.live is not None]:
        lab.end(task)
    lab.tell(e.ArrayChanged(JobId("100"), 1, 0, 0, 0))
    lab.wait(2000)
    lab.tell(e.ReleaseRequested(held.id))
    timeline = Timeline()
    for line, (at, event) in enumerate(lab.journal, 1):
        if type(event).__name__ in KINDS:
            timeline.take(line, event, at)
    state = timeline._state
    assert list(state.jobs) == [held.id]
    assert (state.next_time(), state.goes_on, state.gates.arrays, len(state.gates._groups)) == (None, False, {}, 1)


class Following:
    """Compares the spans with the sums of the ledger while a world goes on."""

    @rule()
    def spans_come_to_the_sums_of_the_ledger(self) -> None:
        now, began = self.now, self.now - 50.0
        window = Periods((began, now + 1.0))
        usage = usage_of(self.journal, now, window, (Dimension.USER, Dimension.JOB))
        seconds, allocated = Counter[tuple[str, ...]](), 0.0
        for span, end, _ in followed(self.journal, now):
            if not isinstance(span.what, JobSpan):
                continue
            inside, held = max(0.0, end - max(began, span.at)), span.what.allocation
            share = 1.0 if held is None else held.share / WHOLE
            seconds[span.what.user, span.what.job, span.what.doing.value] += inside * share
            allocated += 0.0 if held is None else inside * held.share / WHOLE
        for key, account in usage.accounts.items():
            for name in ("starting", "computing", "leaving", "waiting", "held", "suspended"):
                assert seconds[*key, name] == pytest.approx(getattr(account, name)), (key, name)
        assert allocated == pytest.approx(usage.gpus.allocated)


class FollowedWorld(Following, World):
    """The world, followed."""


class FollowedPools(Following, WorldOfPools):
    """The one of several pools."""


TestTimelineAgainstTheWorld, TestTimelineAgainstPools = FollowedWorld.TestCase, FollowedPools.TestCase
TestTimelineAgainstTheWorld.settings = TestTimelineAgainstPools.settings = settings(
    max_examples=share_of(25),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
