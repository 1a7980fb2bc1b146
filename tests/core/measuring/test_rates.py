"""How fast jobs get on, by what they report: measured, recorded, and known of their scripts."""

from itertools import chain, pairwise

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.estimates.curves import fit, largest_of_use
from ebbtide_core.job.job import Job
from ebbtide_core.job.meter import NO_NEIGHBOURS, WINDOW_S, AttemptMeter, MeasuredRate
from ebbtide_core.measuring.rates import MOST_RECORDS, speed_now
from ebbtide_core.model.types import WHOLE, AttemptRef, CheckpointFacts, ExitFacts, JobId, ProgressFacts
from hypothesis import given
from hypothesis import strategies as st

from tests.core.lab import DONE, Lab

SOMEBODY = frozenset({AttemptRef(JobId("9"), 1)})


def measured(times: list[tuple[float, int]], saves: tuple[float, ...] = ()) -> AttemptMeter:
    """What a meter makes of steps at their times, with saves between."""
    meter = AttemptMeter(0.0)
    for now, step in sorted([*times, *((now, -1) for now in saves)]):
        if step < 0:
            meter.interrupt()
        else:
            meter.note(step, now, NO_NEIGHBOURS)
    return meter


def steps(count: int, per_s: float, start: float = 0.0, first: int = 0) -> list[tuple[float, int]]:
    return [(start + number / per_s, first + number) for number in range(count)]


class TestMeter:
    def test_the_speed_is_the_steps_between_two_reports_by_the_time_between_them(self) -> None:
        meter = measured(steps(100, per_s=2.0))
        assert (meter.alone.steps_per_s, meter.alone.count) == (2.0, 9)

    def test_start_up_counts_for_nothing(self) -> None:
        meter = measured([(0.0, 0), *steps(30, per_s=2.0, start=60.0, first=1)])
        assert set(meter.alone.recent) == {2.0}

    def test_a_step_that_takes_a_minute_is_a_window_of_its_own(self) -> None:
        meter = measured([(60.0 * step, step) for step in range(5)])
        assert list(meter.alone.recent) == [pytest.approx(1 / 60)] * 3

    def test_a_report_that_is_sent_again_ends_no_window(self) -> None:
        meter = measured([(0.0, 1), (1.0, 2), (7.0, 2), (11.0, 12)])
        assert list(meter.alone.recent) == [1.0]

    def test_a_save_is_in_no_window(self) -> None:
        before, after = steps(8, per_s=2.0), steps(30, per_s=2.0, start=40.0, first=8)
        meter = measured(before + after, saves=(39.0,))
        assert set(meter.alone.recent) == {2.0}

    def test_a_job_that_saves_all_the_time_is_measured_between_its_saves(self) -> None:
        rounds = [steps(9, per_s=2.0, start=10.0 * number, first=9 * number) for number in range(4)]
        meter = measured([*chain(*rounds)], saves=(9.0, 19.0, 29.0))
        assert (meter.alone.steps_per_s, meter.alone.count) == (2.0, 3)

    def test_one_long_evaluation_changes_nothing(self) -> None:
        meter = measured(steps(40, per_s=2.0) + steps(60, per_s=2.0, start=300.0, first=40))
        assert meter.alone.steps_per_s == 2.0

    def test_a_job_that_counts_from_zero_in_each_epoch_is_measured_within_its_epochs(self) -> None:
        meter = measured(steps(30, per_s=2.0) + steps(30, per_s=2.0, start=15.0))
        assert set(meter.alone.recent) == {2.0}

    def test_time_with_and_without_company_is_kept_apart(self) -> None:
        meter = AttemptMeter(0.0)
        for now, step in steps(40, per_s=2.0):
            meter.note(step, now, NO_NEIGHBOURS)
        for now, step in steps(20, per_s=0.5, start=20.0, first=40):
            meter.note(step, now, SOMEBODY)
        assert (meter.alone.steps_per_s, meter.shared.steps_per_s, meter.together.steps_per_s) == (2.0, 0.5, 0.5)


def train(lab: Lab, job: Job, seconds: float, per_s: float) -> None:
    """The job reports a step ``per_s`` times a second."""
    step, number = job.measured.progress.step if job.measured.progress else 0, 0
    until = lab.now + seconds
    while lab.now < until:
        number += 1
        lab.now += 1 / per_s
        report = e.ProgressReported(job.id, len(job.attempts), ProgressFacts(step + number, 10**6))
        lab.journal += [(lab.now, c.event) for c in lab.cluster.handle(report, lab.now) if hasattr(c, "event")]


def recorded(lab: Lab, job: Job) -> list[e.RateMeasured]:
    return [event for _, event in lab.journal if isinstance(event, e.RateMeasured) and event.job == job.id]


def test_a_solid_speed_is_recorded_once_and_shown() -> None:
    lab = Lab()
    job = lab.running(2)
    train(lab, job, 60, per_s=4)
    [event] = recorded(lab, job)
    assert (event.share, event.nodes, event.alone, event.steps_per_s, event.model) == (2 * WHOLE, 1, True, 4.0, "A100")
    assert speed_now(job) == 4.0


def test_it_is_recorded_again_if_it_changes_by_more_than_a_tenth() -> None:
    lab = Lab()
    job = lab.running(1)
    train(lab, job, 60, per_s=4)
    train(lab, job, 200, per_s=4.2)
    assert len(recorded(lab, job)) == 1
    train(lab, job, 300, per_s=2)
    assert [event.steps_per_s for event in recorded(lab, job)][-1] == pytest.approx(2.0, rel=0.1)


def test_however_wild_it_is_the_journal_does_not_fill_with_it() -> None:
    lab = Lab()
    job = lab.running(1)
    for number in range(60):
        train(lab, job, 60, per_s=1 + number % 2 * 5)
    assert 4 < len(recorded(lab, job)) <= MOST_RECORDS


def test_what_an_attempt_adds_to_what_is_known_is_recorded_at_its_end() -> None:
    lab = Lab()
    job = lab.running(1)
    train(lab, job, 60, per_s=4)
    lab.end(job, DONE)
    assert [event.samples for event in recorded(lab, job)] == [3, 12]


def test_of_an_attempt_that_was_too_short_nothing_is_recorded() -> None:
    lab = Lab()
    job = lab.running(1)
    train(lab, job, 8, per_s=4)
    lab.end(job, DONE)
    assert recorded(lab, job) == []


def test_a_job_that_is_suspended_and_resumed_is_not_measured_across_the_gap() -> None:
    lab = Lab()
    job = lab.running(1)
    train(lab, job, 30, per_s=4)
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job)
    lab.wait(1000)
    lab.tell(e.ResumeRequested(job.id))
    lab.start(job)
    train(lab, job, 30, per_s=4)
    lab.end(job, DONE)
    assert {event.steps_per_s for event in recorded(lab, job)} == {4.0}


def test_resizes_give_one_job_several_points() -> None:
    lab = Lab()
    job = lab.running(1)
    train(lab, job, 30, per_s=4)
    lab.tell(e.ResizeRequested(job.id, 2 * WHOLE, 2 * WHOLE))
    lab.settle()
    train(lab, job, 30, per_s=6)
    assert [at.share // WHOLE for at in job.measured.rates] == [1, 2]
    assert [rate.steps_per_s for rate in job.measured.rates.values()] == pytest.approx([4.0, 6.0])
    curve = lab.cluster.state.curve(job)
    assert curve is not None
    assert [curve(size * WHOLE) for size in (1, 2, 3)] == pytest.approx([1.0, 1.5, 2.0])


def test_a_new_master_knows_what_was_recorded() -> None:
    lab = Lab()
    job = lab.running(1)
    train(lab, job, 30, per_s=4)
    again = Cluster(lab.cluster.policy)
    for now, event in lab.journal:
        again.replay(event, now)
    assert again.state.jobs[job.id].measured.rates == job.measured.rates != {}


def test_shares_of_a_gpu_are_told_apart_by_company() -> None:
    lab = Lab(gpus=1)
    first = lab.running("1/4")
    train(lab, first, 30, per_s=4)
    lab.running("1/4")
    train(lab, first, 30, per_s=2)
    assert [(event.alone, event.steps_per_s) for event in recorded(lab, first)] == [(True, 4.0), (False, 2.0)]


def test_a_save_is_left_out_when_its_checkpoint_is_published() -> None:
    lab = Lab()
    job = lab.running(1)
    for number in range(5):
        train(lab, job, 6, per_s=4)
        lab.now += 30
        assert job.measured.progress is not None
        lab.tell(
            e.CheckpointPublished(job.id, 1, CheckpointFacts(job.measured.progress.step, 10, f"/c/{number}", True))
        )
    assert {event.steps_per_s for event in recorded(lab, job)} == {4.0}


class TestCurve:
    def points(self, *rates: tuple[float, float]) -> list[tuple[int, float, float]]:
        return [(int(gpus * WHOLE), rate, 1.0) for gpus, rate in rates]

    def test_it_is_one_on_one_gpu_and_straight_between_sizes(self) -> None:
        curve = fit(self.points((1, 10.0), (4, 25.0)))
        assert curve is not None
        assert [curve(gpus * WHOLE) for gpus in (1, 2, 4)] == [1.0, 1.5, 2.5]

    def test_without_one_gpu_it_is_in_proportion_below_the_smallest_size(self) -> None:
        curve = fit(self.points((2, 10.0), (4, 15.0)))
        assert curve is not None
        assert [curve(gpus * WHOLE) for gpus in (1, 2, 4)] == [1.0, 2.0, 3.0]

    def test_the_last_slope_goes_on(self) -> None:
        curve = fit(self.points((0.25, 2.0), (0.5, 4.0)))
        assert curve is not None
        assert [curve(int(gpus * WHOLE)) for gpus in (0.25, 1, 2)] == pytest.approx([0.25, 1.0, 2.0])

    def test_it_never_falls(self) -> None:
        curve = fit(self.points((1, 10.0), (2, 12.0), (4, 8.0)))
        assert curve is not None
        assert [curve(gpus * WHOLE) for gpus in (1, 2, 3, 4, 8)] == [1.0] * 5

    def test_what_never_got_on_has_none(self) -> None:
        assert fit(self.points((1, 0.0), (2, 0.0))) is None

    def test_gpus_that_add_next_to_nothing_are_of_no_use(self) -> None:
        sizes = [gpus * WHOLE for gpus in range(1, 9)]
        flat, plateau = (
            fit(self.points((1, 10.0), (2, 18.0), (8, 20.0))),
            fit(self.points((2, 10.0), (3, 10.0), (4, 19))),
        )
        assert flat is not None
        assert plateau is not None
        assert largest_of_use(sizes, flat) == 2 * WHOLE
        assert largest_of_use(sizes[:4], plateau) == 4 * WHOLE


def test_the_curve_that_was_known_at_its_start_counts_for_a_whole_attempt() -> None:
    lab = Lab()
    first = lab.running(1)
    train(lab, first, 30, per_s=4)
    lab.end(first, DONE)
    early = lab.running(2)
    train(lab, early, 30, per_s=6)
    assert early.attempts[-1].speedup is None
    late = lab.running(2)
    lab.now = (late.attempts[-1].started or 0.0) + 100.0
    lab.cluster.handle(e.ProgressReported(late.id, 1, ProgressFacts(100, 200)), lab.now)
    assert late.attempts[-1].speedup == lab.cluster.state.curve(late)
    lab.tell(e.AttemptExited(late.id, 1, ExitFacts(exit_code=85, acknowledged=True, stop_requested=True)))
    assert late.times.work_s == pytest.approx(1.5 * 101.0)


def test_rates_of_the_last_jobs_count_each_once() -> None:
    lab = Lab()
    for per_s in (4, 8, 32):
        job = lab.running(1)
        train(lab, job, 30, per_s)
        lab.end(job, DONE)
    [setting] = job.measured.rates
    assert job.measured.rates[setting] == MeasuredRate(32.0, 6)
    assert lab.cluster.state.rates.typical(("ann", "x"), setting) == 8.0


def test_a_window_is_long_against_the_interval_of_reports() -> None:
    assert WINDOW_S >= 10 * 0.3


def taught(lab: Lab, **rates: float) -> None:
    """An earlier job of the same script was measured: ``on_2=18`` are 18 steps per second on two GPUs."""
    earlier = lab.running(1)
    lab.end(earlier, DONE)
    for name, per_s in rates.items():
        share = int(name.removeprefix("on_")) * WHOLE
        lab.tell(e.RateMeasured(earlier.id, 1, share, 1, True, per_s, 9, "A100"))


def held(job: Job) -> int:
    assert job.planned is not None
    return job.planned.share // WHOLE


@pytest.mark.parametrize("policy", ["fitgpp", "moldable-equipartition", "malleable-equipartition"])
def test_nobody_gets_gpus_that_are_of_no_use(policy: str) -> None:
    lab = Lab(policy, gpus=8)
    taught(lab, on_1=10, on_2=19, on_4=20)
    assert held(lab.running(1, 8)) == 2


def test_who_has_more_than_is_of_use_keeps_it_until_somebody_needs_it() -> None:
    lab = Lab("malleable-equipartition", gpus=4, min_work_s="0", resize_after_s="0", gain_restarts="0")
    first = lab.running(1, 4)
    taught_by_itself = [(1, 10.0), (2, 10.5), (4, 11.0)]
    for count, per_s in taught_by_itself:
        lab.tell(e.RateMeasured(first.id, 1, count * WHOLE, 1, True, per_s, 9, "A100"))
    lab.wait(100)
    assert held(first) == 4
    other = lab.submit(3, 3, name="other")
    lab.settle()
    assert (held(first), held(other)) == (1, 3)


def test_a_job_that_scales_as_measured_does_not_grow_for_less_than_a_restart_costs() -> None:
    lab = Lab(gpus=2)
    taught(lab, on_1=10, on_2=12)
    blocker, job = lab.running(1, name="other"), lab.running(1, 2)
    lab.tell(e.DrillRequested(job.id))
    lab.end(job)
    lab.start(job)
    job.suspending.restart_cost_s = 700.0
    lab.end(blocker, DONE)
    lab.wait(10_000)
    assert held(job) == 1, "an hour more at 1.2 times the speed saves ten minutes"
    job.suspending.restart_cost_s = 500.0
    lab.wait(10_000)
    assert job.attempts[-1].stop is not None
    assert held(job) == 2


@given(st.lists(st.floats(0.1, 1000.0), min_size=2, max_size=6), st.lists(st.floats(1, 50), min_size=6, max_size=6))
def test_whatever_was_measured_the_curve_never_falls_and_is_one_on_one_gpu(
    rates: list[float], weights: list[float]
) -> None:
    shares = [WHOLE // 4, WHOLE // 2, WHOLE, 2 * WHOLE, 4 * WHOLE, 8 * WHOLE]
    curve = fit(list(zip(shares, rates, weights, strict=False)))
    assert curve is not None
    assert curve(WHOLE) == pytest.approx(1.0)
    speeds = [curve(share) for share in range(WHOLE // 8, 20 * WHOLE, WHOLE // 8)]
    assert all(later >= earlier - 1e-9 for earlier, later in pairwise(speeds))
