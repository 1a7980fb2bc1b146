"""Jobs that do not use their GPUs: when they are idle, what is said of them, and who is suspended for it."""

from collections.abc import Iterable

import pytest
from ebbtide_core import events as e
from ebbtide_core.events.codec import decode_event, encode
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle.idling import facts
from ebbtide_core.model.settings import IdleAction, IdleSettings
from ebbtide_core.model.types import CheckpointFacts, ExitFacts, GpuId, HeldBy, JobState, NodeId, SuspendMode
from ebbtide_core.views.narrate import narrate

from tests.core.lab import Lab, registration, stepped_aside, stopped
from tests.core.lifecycle.test_successive_halving import Sweep
from tests.core.views.test_ledger import usage

A = NodeId("a")
TELL = IdleSettings()
SUSPEND = IdleSettings(action=IdleAction.SUSPEND)


@pytest.fixture
def lab() -> Lab:
    return Lab(gpus=2)


def look(lab: Lab, job: Job, quiet: Iterable[str] = ("a0", "a1"), since: float = 0.0, how: IdleSettings = TELL) -> list:
    """A reading in which ``quiet`` GPUs are not used, and were not ``since`` then; what the cluster is told."""
    quiet_since = {GpuId(gpu): since for gpu in quiet}
    found = list(facts(job, quiet_since, frozenset({GpuId("a0"), GpuId("a1")}), how, lab.now))
    for event in found:
        lab.tell(event)
    return found


def idle(lab: Lab, how: IdleSettings = TELL, **spec) -> Job:
    """A job on two GPUs that is idle."""
    job = lab.running(2, **spec)
    lab.wait(how.after_s)
    assert len(look(lab, job, how=how)) == 1
    return job


def test_who_uses_none_of_its_gpus_for_so_long_is_told_of(lab: Lab) -> None:
    job = lab.running(2)
    started = job.attempts[-1].started
    lab.wait(1790)
    assert look(lab, job) == []
    lab.wait(10)
    assert look(lab, job) == [e.JobIdle(job.id, 1, started)]
    assert (job.state, job.reason) == (JobState.RUNNING, "running, but idle on 2 GPUs")
    assert look(lab, job) == []
    lab.wait(10_000)
    assert job.state is JobState.RUNNING


def test_one_gpu_in_use_or_unknown_is_enough_not_to_be_idle(lab: Lab) -> None:
    job = lab.running(2)
    lab.wait(10_000)
    assert look(lab, job, quiet=["a1"]) == []


def test_it_counts_from_the_last_use_and_from_the_last_step(lab: Lab) -> None:
    job = lab.running(2)
    lab.wait(10_000)
    assert look(lab, job, since=lab.now - 1000) == []
    lab.progress(job, 5)
    assert look(lab, job) == []


def test_who_uses_a_gpu_again_or_makes_a_step_is_busy(lab: Lab) -> None:
    job = idle(lab)
    assert look(lab, job, quiet=["a0"]) == [e.JobBusy(job.id, 1)]
    assert (job.reason, job.attempts[-1].idle) == ("running", None)
    lab.wait(10)
    assert len(look(lab, job)) == 1
    lab.progress(job, 5)
    assert look(lab, job) == [e.JobBusy(job.id, 1)]


def test_who_was_submitted_with_idle_ok_and_who_has_no_gpu_are_never_idle(lab: Lab) -> None:
    tolerated, without = lab.running(2, idle_ok=True), lab.running(0)
    lab.wait(10_000)
    assert look(lab, tolerated) == look(lab, without, quiet=[]) == []


def test_after_a_warning_it_is_suspended_until_somebody_resumes_it(lab: Lab) -> None:
    job = idle(lab, SUSPEND)
    lab.wait(590)
    assert job.state is JobState.RUNNING
    assert stopped(lab.wait(20)) == {job.id}
    assert (job.state, job.held_by) == (JobState.SUSPENDING, HeldBy.SYSTEM)
    lab.end(job)
    assert job.state is JobState.SUSPENDED
    assert job.reason == "idle on 2 GPUs for 40 min; 'ebb resume 1' when it is to go on"
    assert job.suspending.preemptions == 0
    lab.wait(100)
    lab.tell(e.ResumeRequested(job.id))
    assert job.state is JobState.STARTING
    assert job.attempts[-1].idle is None


def test_who_works_again_in_time_goes_on(lab: Lab) -> None:
    job = idle(lab, SUSPEND)
    lab.wait(500)
    look(lab, job, quiet=[], how=SUSPEND)
    lab.wait(1000)
    assert (job.state, job.held_by) == (JobState.RUNNING, None)


@pytest.mark.parametrize("away", [(e.MasterStarted(2),), (e.NodeDisconnected(A), e.NodeLost(A, 20.0))])
def test_who_was_not_heard_since_the_warning_is_warned_anew(lab: Lab, away: tuple[e.Event, ...]) -> None:
    job = idle(lab, SUSPEND)
    for event in away:
        lab.tell(event)
    lab.wait(10_000)
    assert (job.attempts[-1].stop, job.held_by) == (None, None)
    lab.tell(registration("a", 2, known=lab.known(job)))
    lab.wait(590)
    assert (job.state, job.held_by) == (JobState.RUNNING, None)
    assert lab.wakes[-1][1] > lab.now
    assert stopped(lab.wait(20)) == {job.id}


def test_who_worked_while_its_node_was_not_heard_goes_on(lab: Lab) -> None:
    job = idle(lab, SUSPEND)
    lab.tell(e.MasterStarted(2))
    lab.wait(10_000)
    lab.tell(registration("a", 2, known=lab.known(job)))
    look(lab, job, quiet=[], how=SUSPEND)
    lab.wait(10_000)
    assert (job.state, job.held_by) == (JobState.RUNNING, None)


@pytest.mark.parametrize("spec", [{"te": True}, {"suspend": SuspendMode.NONE}])
def test_only_who_may_be_preempted_is_suspended(lab: Lab, spec: dict) -> None:
    job = idle(lab, SUSPEND, **spec)
    lab.wait(10_000)
    assert job.state is JobState.RUNNING


def test_one_that_lies_in_host_memory_and_comes_back_is_not_suspended_at_once(lab: Lab) -> None:
    job = lab.running(1, suspend=SuspendMode.SWAP)
    lab.wait(1800)
    look(lab, job, how=SUSPEND)
    lab.wait(700)
    lab.tell(e.AttemptSwapped(job.id, 1, 1, 1 << 30, 1.0))
    assert (job.state, job.held_by) == (JobState.SUSPENDED, HeldBy.SYSTEM)
    lab.tell(e.ResumeRequested(job.id))
    lab.tell(e.AttemptStarted(job.id, 1, 1001, swaps=1))
    lab.wait(10_000)
    assert (job.state, job.attempts[-1].idle) == (JobState.RUNNING, None)


def test_reports_that_come_late_say_nothing(lab: Lab) -> None:
    job = lab.running(2)
    lab.tell(e.JobBusy(job.id, 1))
    lab.end(job, stepped_aside())
    lab.tell(e.JobIdle(job.id, 1, 0.0))
    kinds = {type(event) for _, event in lab.journal}
    assert kinds.isdisjoint({e.JobIdle, e.JobBusy})


def test_events_survive_the_journal_and_are_told_in_words(lab: Lab) -> None:
    idle(lab, SUSPEND)
    [event] = [event for _, event in lab.journal if isinstance(event, e.JobIdle)]
    assert decode_event("JobIdle", encode(event)) == event
    assert narrate(event) == "attempt 1 does not use its GPUs; it is suspended unless it soon does"
    assert narrate(e.JobBusy(event.job, 1)) == "attempt 1 uses its GPUs again"


def test_idle_time_is_waste_and_nothing_of_it_is_lost(lab: Lab) -> None:
    job = lab.running(2)
    lab.wait(99)
    lab.tell(e.CheckpointPublished(job.id, 1, CheckpointFacts(1, 1, "/c", True)))
    lab.wait(99)
    lab.progress(job, 7)
    lab.wait(2000)
    look(lab, job)
    look(lab, job, quiet=[])  # two seconds later
    lab.wait(49)
    lab.end(job, ExitFacts(exit_code=1))
    total = usage(lab).total
    assert total.idle == 2 * 2003
    assert total.lost == 2 * (101 + 51)


def test_who_is_busy_again_still_says_that_its_script_was_edited(lab: Lab) -> None:
    job = lab.submit(2)
    lab.tell(e.AttemptStarted(job.id, 1, 1001, edited=("train.py",)))
    lab.wait(1800)
    look(lab, job)
    look(lab, job, quiet=[])
    assert job.reason == "running; train.py was edited since submit"


def test_a_task_that_was_suspended_for_being_idle_is_not_sent_on_when_it_is_among_the_best() -> None:
    halving = Sweep([1.0, 2.0, 3.0, 4.0], gpus=1)
    first = halving.tasks[0]
    halving.report(0, 100)
    halving.settle()
    halving.tell(e.ReleaseRequested(first.id))  # it goes on, though nobody knows yet how good it is
    halving.report(1, 100)
    halving.settle()
    assert first.state is JobState.RUNNING
    halving.wait(1800)
    look(halving, first, quiet=["a0"], how=SUSPEND)
    halving.wait(700)
    for index in (2, 3):
        halving.settle()
        halving.report(index, 100)
    assert not halving.cluster.state.halvings["1"].tasks[first.id].waits
    assert (first.held_by, first.reason[:4]) == (HeldBy.SYSTEM, "idle")
