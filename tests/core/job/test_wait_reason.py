"""For what a job waited is told at the end of each wait: its policy, a gate, or a delay after a failure."""

from ebbtide_core import events as e
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import ExitFacts, HeldBy, JobId, Task
from ebbtide_core.views.narrate import narrate

from tests.core.lab import DONE, Lab


def told(lab, job):
    """For what the job waited before it was last placed."""
    return [event.waited for _, event in lab.journal if isinstance(event, e.AttemptPlaced) and event.job == job.id][-1]


def test_a_job_that_waited_for_another_says_so_once_it_has_room():
    lab = Lab()
    first = lab.running(1)
    second = lab.submit(1, after=(Dependency(first.id, AfterKind.OK),))
    lab.end(first, DONE)
    assert told(lab, second) == f"waits for job {first.id} to complete"


def test_a_task_that_waited_for_its_arrays_limit_says_so():
    lab = Lab()
    for index in range(2):
        spec = JobSpec(command=("x",), workdir="/")
        lab.tell(e.JobSubmitted(JobId(f"1.{index}"), spec, "ann", task=Task(JobId("1"), index, 2, {}, 1, 0)))
    first, second = lab.cluster.state.jobs.values()
    lab.start(first)
    lab.end(first, DONE)
    assert told(lab, second) == "at most 1 job of array 1 runs at once"
    lab.start(second)
    lab.tell(e.RequeueRequested(second.id))
    lab.end(second)
    assert told(lab, second) == ""


def test_a_job_that_is_tried_again_tells_how_long_after_its_failure():
    lab = Lab()
    job = lab.running(1, retries=1)
    lab.end(job, ExitFacts(exit_code=3))
    lab.wait(60)
    assert told(lab, job) == "failed with exit code 3; tried again 1 s later"


def test_how_an_attempt_ended_is_not_what_the_job_waited_for_afterwards():
    lab = Lab("fifo", gpus=1)
    first = lab.running(1)
    lab.submit(1)
    third = lab.submit(1)
    assert third.reason != ""
    lab.tell(e.RequeueRequested(first.id))
    lab.end(first)
    assert "stepped aside" not in told(lab, first)


def test_who_is_held_while_they_wait_keeps_the_reason_in_the_story():
    assert narrate(e.HoldRequested(JobId("1"), "waiting for 1 GPU")) == "held by user (until then: waiting for 1 GPU)"
    assert narrate(e.SuspendRequested(JobId("1"), "waiting for 1 GPU")).endswith("(until then: waiting for 1 GPU)")


def test_the_time_that_its_user_holds_a_job_is_no_waiting():
    lab = Lab(gpus=1)
    lab.running(1)
    job = lab.submit(1)
    lab.wait(9)
    before = job.waiting_s(lab.now)
    lab.tell(e.HoldRequested(job.id))
    held_at = lab.now
    lab.wait(600)
    assert job.waiting_s(lab.now) == job.waiting_s(held_at) == before + 1
    lab.tell(e.ReleaseRequested(job.id))
    lab.wait(59)
    assert job.waiting_s(lab.now) == before + 1 + 60


def test_a_job_that_its_user_suspends_waits_only_before_it_ran_and_once_it_is_resumed():
    lab = Lab(gpus=1)
    job = lab.running(1)
    before = job.waiting_s(lab.now)
    lab.wait(100)
    lab.tell(e.SuspendRequested(job.id))
    lab.wait(50)
    lab.end(job)  # until then it ran
    lab.wait(3600)
    assert job.waiting_s(lab.now) == before
    urgent = lab.running(1, te=True)
    lab.tell(e.ResumeRequested(job.id))
    lab.wait(19)
    assert job.waiting_s(lab.now) == before + 20
    lab.tell(e.HoldRequested(job.id))
    lab.wait(100)
    lab.tell(e.CancelRequested(job.id))
    lab.wait(100)
    assert (job.waiting_s(lab.now), urgent.waiting_s(lab.now)) == (before + 21, 1.0)


def test_a_job_that_is_submitted_on_hold_has_not_waited_and_one_that_the_system_holds_does():
    lab = Lab(gpus=1)
    job = lab.submit(1, hold=True)
    lab.wait(600)
    assert job.waiting_s(lab.now) == 0
    lab.tell(e.ReleaseRequested(job.id))
    lab.start(job)
    lab.tell(e.RequeueRequested(job.id))
    lab.end(job)
    lab.tell(e.JobHeld(job.id, HeldBy.SYSTEM, "for a reason"))
    waited_s = job.waiting_s(lab.now)
    lab.wait(600)
    assert job.waiting_s(lab.now) == waited_s + 601
