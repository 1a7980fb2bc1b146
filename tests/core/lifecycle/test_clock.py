"""What began while the clock was ahead, after it was set back: it goes on as if the clock had always been right."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.model.types import ExitFacts, JobId, JobState, NodeId, RefusalCause
from ebbtide_core.nodes.foreign_use import gpu_seconds
from ebbtide_core.views.digest import digest
from ebbtide_core.views.narrate import narrate

from tests.core.job.test_gang import Gangs
from tests.core.lab import Lab, stopped
from tests.core.lifecycle.test_idling import SUSPEND, idle, look
from tests.core.nodes.test_foreign_use import PYTHON, use

YEAR_S = 365 * 86_400.0
AGAIN = ExitFacts(exit_code=85)


@pytest.fixture
def lab() -> Lab:
    """A cluster whose clock is a year ahead."""
    lab = Lab(gpus=2)
    lab.wait(YEAR_S)
    return lab


def set_right(lab: Lab) -> None:
    lab.now -= YEAR_S
    lab.tell(e.SchedulingDue())


def test_a_job_is_stopped_at_its_time_limit_and_had_all_of_it(lab: Lab) -> None:
    job = lab.running(time_limit_s=1000.0)
    lab.wait(499)
    set_right(lab)
    assert job.running_s(lab.now) == pytest.approx(501.0, abs=2.0)
    assert stopped(lab.wait(490)) == set()
    assert stopped(lab.wait(10)) == {job.id}


def test_a_job_that_waits_to_be_run_again_is_run_in_time(lab: Lab) -> None:
    job = lab.running()
    for _ in range(7):
        lab.end(job, AGAIN)
        lab.wait(60)
        lab.start(job)
    lab.end(job, AGAIN)
    set_right(lab)
    lab.wait(50)
    assert job.state is JobState.SUSPENDED
    lab.wait(20)
    assert job.state is JobState.STARTING


def test_a_node_that_a_job_leaves_out_is_open_to_it_in_time(lab: Lab) -> None:
    job = lab.submit()
    while not job.eligibility.excluded:
        lab.tell(e.AttemptRefused(job.id, len(job.attempts), RefusalCause.NODE, "no room"))
        lab.wait(60)
    set_right(lab)
    assert job.state is JobState.PENDING
    lab.wait(300)
    assert job.attempts[-1].allocation.node_ids == (NodeId("a"),)
    assert job.state is JobState.STARTING


def test_a_suspension_takes_no_negative_time(lab: Lab) -> None:
    job = lab.running()
    lab.tell(e.SuspendRequested(job.id))
    lab.wait(9)
    set_right(lab)
    lab.end(job)
    lab.tell(e.ResumeRequested(job.id))
    lab.start(job)
    assert job.suspending.save_s == pytest.approx(11.0, abs=2.0)
    assert job.suspending.restart_cost_s == pytest.approx(12.0, abs=4.0)


def test_an_idle_job_is_suspended_in_time_unless_it_reports_a_step(lab: Lab) -> None:
    lazy = idle(lab, SUSPEND)
    set_right(lab)
    lab.wait(580)
    assert lazy.state is JobState.RUNNING
    assert stopped(lab.wait(20)) == {lazy.id}
    assert "idle on 2 GPUs for 40 min" in lazy.reason
    lab.end(lazy)
    lab.wait(YEAR_S)
    eager = idle(lab, SUSPEND)
    set_right(lab)
    lab.progress(eager, 5)
    assert look(lab, eager, how=SUSPEND) == [e.JobBusy(eager.id, 1)]
    assert stopped(lab.wait(1000)) == set()


def test_a_warning_from_before_the_clock_was_ahead_stays_as_it_was(lab: Lab) -> None:
    job = idle(lab, SUSPEND)
    before = job.attempts[-1].idle
    lab.wait(200)
    lab.now -= 100
    lab.tell(e.SchedulingDue())
    assert job.attempts[-1].idle == before


def test_nodes_that_do_not_follow_the_first_one_are_stopped_in_time() -> None:
    lab = Gangs()
    lab.wait(YEAR_S)
    job = lab.gang()
    lab.ends_on(job, "a")
    set_right(lab)
    assert stopped(lab.wait(2)) == set()
    assert stopped(lab.wait(10)) == {job.id}


def test_the_time_of_processes_that_belong_to_no_job_goes_on(lab: Lab) -> None:
    lab.tell(use("a0", PYTHON))
    lab.wait(99)
    set_right(lab)
    assert gpu_seconds(lab.cluster.state, lab.now) == {"alice": pytest.approx(100.0, abs=2.0)}


def test_it_is_told_and_the_fold_comes_to_the_same(lab: Lab) -> None:
    lab.running(time_limit_s=1000.0)
    lab.end(lab.running(), AGAIN)
    lab.wait(1800)
    lab.tell(e.JobIdle(JobId("1"), 1, lab.now - 1800, lab.now + 600))
    set_right(lab)
    [event] = [event for _, event in lab.journal if isinstance(event, e.ClockSetBack)]
    assert narrate(event) == "the clock had been ahead, and was set back by 8760 h"
    again = Lab(nodes="").cluster
    for time, event in lab.journal:
        again.replay(event, time)
    assert digest(again.state) == digest(lab.cluster.state)


def test_a_clock_that_goes_back_by_less_was_slowed_down_and_moves_nothing(lab: Lab) -> None:
    job = lab.running()
    started = job.attempts[-1].started
    lab.now -= 30.0
    lab.tell(e.SchedulingDue())
    assert job.attempts[-1].started == started
