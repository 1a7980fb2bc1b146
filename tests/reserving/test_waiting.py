"""Waiting time by requested time, read off a journal."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.events.codec import encode
from ebbtide_core.job.job import Job
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_sim.replay import RecordedEvent
from ebbtide_sim.reserving.waiting import MIN_STARTS, FitError, ObservedWait, fit_waiting, starts
from ebbtide_sim.workload import WorkloadError

from tests.core.lab import DONE, Lab, stepped_aside


def recorded(lab: Lab) -> list[RecordedEvent]:
    return [RecordedEvent(n, t, type(event).__name__, encode(event)) for n, (t, event) in enumerate(lab.journal, 1)]


def asked_and_waited(lab: Lab) -> list[tuple[float, float]]:
    return [(start.requested_s, start.waited_s) for start in starts(recorded(lab))]


def waiting(lab: Lab, seconds: float, **spec: object) -> Job:
    """A job that has waited for ``seconds`` and now runs, after one that asked for nothing and held the only GPU."""
    blocker = lab.running(1)
    job = lab.submit(1, **spec)
    lab.wait(seconds - 3)  # ending the blocker takes two steps, starting the job another one, and waiting a fourth
    lab.end(blocker, DONE)
    lab.start(job)
    return job


@pytest.fixture
def lab() -> Lab:
    return Lab("fifo", gpus=1)


def line_of(*points: tuple[float, float]) -> list[ObservedWait]:
    return [ObservedWait(asked, waited) for asked, waited in points]


# --- which starts count ---


def test_a_job_with_a_time_limit_asked_for_that(lab: Lab) -> None:
    waiting(lab, 50, time_limit_s=200.0)
    assert asked_and_waited(lab) == [(200, pytest.approx(51, abs=1))]


def test_a_job_without_one_asked_for_nothing(lab: Lab) -> None:
    waiting(lab, 50)
    assert asked_and_waited(lab) == []


def test_a_reservation_asks_for_what_is_left_until_its_end_and_waits_from_the_end_of_the_last_one(lab: Lab) -> None:
    job = lab.running(1, time_auto=True)
    lab.wait(3600)
    lab.exit(job, stepped_aside())
    lab.wait(500)  # what it held is not free any earlier
    lab.free(job)
    lab.start(job)
    (first, _), (second, waited) = asked_and_waited(lab)
    assert first == 3600
    assert second == pytest.approx(7200 - 3602, abs=2)
    assert waited == pytest.approx(503, abs=1)


def test_the_nearer_of_limit_and_reservation_counts(lab: Lab) -> None:
    lab.running(1, time_auto=True, time_limit_s=100.0)
    assert asked_and_waited(lab) == [(100, pytest.approx(1))]


def test_who_comes_back_after_a_preemption_asked_for_nothing() -> None:
    lab = Lab("fitgpp", gpus=1)
    job = lab.running(1, time_limit_s=1000.0)
    trial = lab.submit(1, te=True)
    lab.end(job, stepped_aside())
    lab.start(trial)
    lab.end(trial, DONE)
    lab.start(job)
    assert len(asked_and_waited(lab)) == 1


@pytest.mark.parametrize("held_at_once", [True, False])
def test_who_was_held_waited_for_its_user(lab: Lab, held_at_once: bool) -> None:
    job = lab.submit(1, time_limit_s=100.0, hold=True) if held_at_once else lab.submit(1, time_limit_s=100.0)
    if not held_at_once:
        lab.tell(e.HoldRequested(job.id))
    lab.tell(e.ReleaseRequested(job.id))
    lab.start(job)
    assert asked_and_waited(lab) == []


def test_a_job_waits_from_the_time_at_which_it_was_to_begin_and_not_for_those_it_depends_on(lab: Lab) -> None:
    waiting(lab, 50.0, time_limit_s=60.0, begin_at=lab.now + 30.0)
    [(_, waited)] = asked_and_waited(lab)
    assert waited == pytest.approx(20.0, abs=5.0)
    other = Lab("fifo", gpus=1)
    first = other.running(1)
    dependent = other.submit(1, time_limit_s=60.0, after=(Dependency(first.id, AfterKind.ANY),))
    other.wait(50.0)
    other.end(first, DONE)
    other.start(dependent)
    assert asked_and_waited(other) == []


def test_who_was_suspended_at_the_end_of_a_reservation_waited_for_its_user(lab: Lab) -> None:
    job = lab.running(1, time_auto=True)
    lab.wait(3600)
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job, stepped_aside())
    lab.tell(e.ResumeRequested(job.id))
    lab.start(job)
    assert len(asked_and_waited(lab)) == 1


def test_a_journal_whose_beginning_is_lost_tells_of_the_rest(lab: Lab) -> None:
    waiting(lab, 50, time_limit_s=200.0)
    lines = recorded(lab)
    assert list(starts(lines[2:])) == list(starts(lines))


def test_an_event_that_cannot_be_read_is_named() -> None:
    with pytest.raises(WorkloadError, match="event 7 of the journal, a JobFlew, cannot be read"):
        list(starts([RecordedEvent(7, 0.0, "JobFlew", {})]))


# --- the fit ---


def test_points_on_a_line_give_that_line() -> None:
    fit = fit_waiting(line_of(*((100.0 * n, 20 + 50.0 * n) for n in range(MIN_STARTS))))
    assert (fit.alpha, fit.gamma, fit.starts) == (pytest.approx(0.5), pytest.approx(20), MIN_STARTS)
    assert fit.residual_s == pytest.approx(0, abs=1e-9)


def test_the_residual_is_the_root_mean_square_of_what_is_off() -> None:
    points = [(asked, asked + 10 + off) for asked in (0.0, 10.0, 20.0, 30.0, 40.0) for off in (-3.0, 3.0)]
    fit = fit_waiting(line_of(*points))
    assert (fit.alpha, fit.gamma, fit.residual_s) == (pytest.approx(1), pytest.approx(10), pytest.approx(3))


def test_gamma_is_at_least_0_and_alpha_is_then_the_best_without_it() -> None:
    points = [(float(asked), 2.0 * asked - 5) for asked in range(5, 15)]
    fit = fit_waiting(line_of(*points))
    assert fit.gamma == 0
    best = sum(asked * waited for asked, waited in points) / sum(asked**2 for asked, _ in points)
    assert fit.alpha == pytest.approx(best)


TOO_LITTLE = {
    "few starts": (
        [(float(n), float(n)) for n in range(9)],
        "has 9 starts of jobs that asked for a time, 10 are needed",
    ),
    "one request": ([(60.0, float(n)) for n in range(10)], "all 10 starts asked for the same 60 s"),
    "no waiting": ([(float(n), 0.0) for n in range(10)], "did not wait longer"),
    "shorter waiting": ([(float(n), 100.0 - n) for n in range(10)], "alpha would be -1"),
}


@pytest.mark.parametrize("case", TOO_LITTLE)
def test_what_does_not_tell_is_refused_in_one_line(case: str) -> None:
    points, message = TOO_LITTLE[case]
    with pytest.raises(FitError, match=message) as refused:
        fit_waiting(line_of(*points))
    assert "\n" not in str(refused.value)
