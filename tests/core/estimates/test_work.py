"""What a job has done and has left: work that no checkpoint has when an attempt ends has to be done again."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.estimates.outlook import Outlooks
from ebbtide_core.estimates.work import LINEAR, Estimate, EstimateSource, remaining
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import Checkpointed, CheckpointFacts, ExitFacts, StartFacts, SuspendMode

from tests.core.lab import GIB, Lab, stepped_aside

CUT_OFF = ExitFacts(
    signal=9, stop_requested=True, delivered=True, killed=True, asked=True, checkpointed=Checkpointed.NO
)
LOST = ExitFacts(lost=True, lost_because="node a was confirmed dead")
FAILED = ExitFacts(exit_code=1)
UNSEEN = stepped_aside(acknowledged=False)
"""The end of a job without the SDK: nobody knows whether it saved."""


@pytest.fixture
def lab() -> Lab:
    return Lab(gpus=1)


def save(lab: Lab, job: Job, step: int | None) -> None:
    lab.tell(e.CheckpointPublished(job.id, len(job.attempts), CheckpointFacts(step, 1, "/c", True)))


def first_step(lab: Lab, job: Job, step: int) -> None:
    """The attempt has just made its first step."""
    attempt = job.attempts[-1]
    assert attempt.started is not None
    start = StartFacts(False, 1.0, None, lab.now - attempt.started - 1.0, step)
    lab.tell(e.FirstStepMade(job.id, attempt.number, start))


def leave(lab: Lab, job: Job, exit: ExitFacts) -> None:
    """The job is suspended, ends like this, and runs again."""
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job, exit)
    lab.tell(e.ResumeRequested(job.id))
    lab.start(job)


def break_off(lab: Lab, job: Job, exit: ExitFacts) -> None:
    """The job ends like this without being asked to, and runs again."""
    lab.end(job, exit)
    lab.wait(60)
    lab.start(job)


def left(lab: Lab, job: Job) -> Estimate:
    found = remaining(job, lab.now, lab.cluster.state.history, LINEAR)
    assert found is not None
    return found


def by_progress(seconds: float) -> Estimate:
    return Estimate(pytest.approx(seconds, rel=0.01), EstimateSource.PROGRESS)


@pytest.mark.parametrize(("ends", "exit"), [(leave, CUT_OFF), (break_off, LOST), (break_off, FAILED)])
def test_an_attempt_counts_up_to_its_last_checkpoint_however_it_ended(lab, ends, exit):
    job = lab.running(retries=1, time_limit_s=1e6)
    lab.wait(5000)
    lab.progress(job, 50)
    save(lab, job, 50)
    lab.wait(500)
    lab.progress(job, 55)
    ends(lab, job, exit)
    assert job.times.work_s == pytest.approx(5000, abs=5)
    assert left(lab, job) == by_progress(5000)  # it is at step 50 again, whatever it said last
    lab.wait(100)
    lab.progress(job, 51)
    assert left(lab, job) == by_progress(5100 * 49 / 51)


@pytest.mark.parametrize(("ends", "exit"), [(leave, CUT_OFF), (break_off, LOST), (break_off, FAILED)])
def test_a_job_that_saved_nothing_begins_anew_however_it_ended(lab, ends, exit):
    job = lab.running(retries=1, time_limit_s=1e6)
    lab.wait(5000)
    lab.progress(job, 50)
    ends(lab, job, exit)
    assert job.times.work_s == 0
    lab.wait(50)
    assert left(lab, job).source is EstimateSource.TIME_LIMIT  # it is not known how far it is
    lab.wait(50)
    first_step(lab, job, 1)
    lab.progress(job, 1)
    lab.wait(100)
    lab.progress(job, 2)
    assert left(lab, job) == by_progress(9800 * 1.04)


@pytest.mark.parametrize("exit", [LOST, FAILED])
def test_a_job_that_saved_by_itself_is_judged_by_the_steps_that_it_made_since_it_was_lost(lab, exit):
    job = lab.running(retries=1)
    lab.wait(5000)
    lab.progress(job, 50)
    break_off(lab, job, exit)
    assert remaining(job, lab.now, lab.cluster.state.history, LINEAR) is None
    lab.wait(150)
    first_step(lab, job, 51)
    lab.progress(job, 51)
    assert remaining(job, lab.now, lab.cluster.state.history, LINEAR) is None
    lab.wait(98)
    lab.progress(job, 52)
    assert left(lab, job) == by_progress(48 * 98 * 1.04)
    outlook = Outlooks(lab.cluster.state.pools["default"]).of(job, lab.now)
    assert outlook.left_s == pytest.approx(left(lab, job).work_s)


def test_a_job_that_does_not_report_every_step_is_judged_by_the_work_between_its_reports_after_it_was_lost(lab):
    job = lab.running(retries=1)
    lab.wait(500)
    lab.progress(job, 50)
    break_off(lab, job, FAILED)
    lab.wait(100)
    first_step(lab, job, 10)
    lab.progress(job, 10)
    lab.wait(100)
    lab.progress(job, 20)
    assert left(lab, job) == by_progress(800 * 1.04)


def test_work_that_an_earlier_attempt_saved_stays_when_a_later_one_is_lost(lab):
    job = lab.running()
    lab.wait(1000)
    lab.progress(job, 10)
    save(lab, job, 10)
    leave(lab, job, stepped_aside(checkpointed=Checkpointed.YES))
    lab.wait(700)
    lab.progress(job, 17)
    break_off(lab, job, LOST)
    assert job.times.work_s == pytest.approx(1000, abs=5)
    assert left(lab, job) == by_progress(9000)


def test_an_attempt_that_was_lost_before_it_ran_takes_nothing_back(lab):
    job = lab.running()
    lab.wait(1000)
    lab.progress(job, 10)
    save(lab, job, 5)
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job, UNSEEN)
    lab.tell(e.ResumeRequested(job.id))
    lab.end(job, LOST)
    assert left(lab, job) == by_progress(9000)


def test_a_checkpoint_made_in_the_grace_period_has_the_work_up_to_the_request(lab):
    job = lab.running()
    lab.wait(1000)
    lab.tell(e.SuspendRequested(job.id))
    worked = lab.now - job.attempts[0].started
    lab.wait(20)
    save(lab, job, 10)
    lab.end(job, CUT_OFF)
    assert job.times.work_s == worked


def test_work_counts_if_nobody_knows_whether_it_was_saved(lab):
    job = lab.running()
    lab.wait(1000)
    leave(lab, job, UNSEEN)
    assert job.times.work_s == pytest.approx(1000, abs=5)


@pytest.mark.parametrize("saves", [True, False])
def test_a_job_that_dies_in_host_memory_loses_what_it_did_since_its_last_checkpoint(lab, saves):
    job = lab.running(suspend=SuspendMode.SWAP)
    lab.wait(1000)
    if saves:
        save(lab, job, 10)
    lab.wait(500)
    lab.tell(e.SuspendRequested(job.id))
    lab.tell(e.AttemptSwapped(job.id, 1, 1, GIB, 1.0))
    assert job.times.work_s == pytest.approx(1500, abs=5)
    lab.tell(e.ResumeRequested(job.id))
    lab.tell(e.AttemptStarted(job.id, 1, 1001, swaps=1))
    lab.wait(300)
    lab.tell(e.SuspendRequested(job.id))
    lab.tell(e.AttemptSwapped(job.id, 1, 2, GIB, 1.0))
    lab.end(job, ExitFacts(signal=9, stop_requested=True, killed=True, swap_failure="ended while swapped out"))
    assert job.times.work_s == pytest.approx(1000 if saves else 0, abs=3)


def test_a_checkpoint_made_after_a_swap_has_what_was_done_before_it(lab):
    job = lab.running(suspend=SuspendMode.SWAP)
    lab.wait(1000)
    lab.tell(e.SuspendRequested(job.id))
    lab.tell(e.AttemptSwapped(job.id, 1, 1, GIB, 1.0))
    lab.tell(e.ResumeRequested(job.id))
    lab.tell(e.AttemptStarted(job.id, 1, 1001, swaps=1))
    lab.wait(300)
    save(lab, job, 10)
    lab.wait(200)
    break_off(lab, job, LOST)
    assert job.times.work_s == pytest.approx(1300, abs=5)


def test_a_job_that_is_over_did_all_that_it_computed(lab):
    job = lab.running(time_limit_s=1000.0)
    lab.wait(1000)
    lab.end(job, CUT_OFF)
    assert (job.state.value, job.times.work_s) == ("FAILED", pytest.approx(1001))


def test_a_checkpoint_from_before_the_clock_was_set_back_is_as_old_as_it_was(lab):
    job = lab.running()
    lab.wait(1000)
    save(lab, job, 10)
    lab.wait(500)
    lab.now -= 5000
    lab.tell(e.ClockSetBack(5000.0))
    break_off(lab, job, LOST)
    assert job.times.work_s == pytest.approx(1000, abs=5)
