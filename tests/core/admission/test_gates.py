"""Who may stand in the queue: arrays with limits, dependencies, times to begin, quotas (see `admission.gates`)."""

import dataclasses
from fractions import Fraction

import pytest
from ebbtide_core import events as e
from ebbtide_core.admission.gates import held_back
from ebbtide_core.cluster import Cluster, RefusalKind
from ebbtide_core.job.arrays import ranges, selected
from ebbtide_core.measuring.gpu_memory import learned_request
from ebbtide_core.model.dependency import AfterKind, Dependency
from ebbtide_core.model.quotas import Quota, Quotas
from ebbtide_core.model.settings import Settings
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, ExitFacts, JobId, JobState, SuspendMode, Task, parts
from ebbtide_core.policies.registry import POLICIES, create_policy
from ebbtide_core.views.narrate import narrate

from tests.core.lab import DONE, GIB, Lab, registration

FAILED = ExitFacts(exit_code=1)
OK, NOT_OK, ANY = AfterKind.OK, AfterKind.NOT_OK, AfterKind.ANY


def lab_with(gpus=None, queued=None, users=None, policy="fifo", node=8):
    """A cluster in which each user has such a quota."""
    lab = Lab(policy, nodes="")
    default = Quota(None if gpus is None else parts(Fraction(gpus)), queued)
    settings = Settings(quotas=Quotas(default, users or {}))
    lab.cluster = Cluster(create_policy(policy, {}), settings=settings)
    lab.tell(registration("a", node))
    return lab


def array(lab, count=6, *, gpus=1, to=None, concurrent=0, slots=0, user="ann", **spec):
    """Submit an array; its tasks."""
    id = JobId(str(100 + len(lab.cluster.state.gates.arrays)))
    low, high = parts(Fraction(gpus)), parts(Fraction(to or gpus))
    job = JobSpec(command=("x",), workdir="/", gpus_min=low, gpus_max=high, **spec)
    for index in range(count):
        task = Task(id, index, count, {}, concurrent, slots * WHOLE)
        lab.tell(e.JobSubmitted(JobId(f"{id}.{index}"), job, user, task=task))
    return [lab.cluster.state.jobs[JobId(f"{id}.{index}")] for index in range(count)]


def placed(jobs):
    """The indices of those that have room."""
    return [index for index, job in enumerate(jobs) if job.planned is not None]


def why(job):
    return held_back(job, lambda seconds: f"{seconds:g}")


def after(*others, kind=OK):
    return tuple(Dependency(getattr(other, "id", other), kind) for other in others)


# --- arrays ---


def test_so_many_tasks_of_an_array_run_at_a_time_in_order():
    lab = Lab("fifo", gpus=8)
    tasks = array(lab, 5, concurrent=2)
    assert placed(tasks) == [0, 1]
    assert why(tasks[2]) == "at most 2 jobs of array 100 run at once"
    lab.start(tasks[0])
    lab.end(tasks[0], DONE)
    assert placed(tasks) == [1, 2]
    assert why(tasks[2]) == ""


def test_so_many_gpus_of_an_array_are_taken_at_a_time():
    lab = Lab("fifo", gpus=8)
    tasks = array(lab, 4, gpus=2, slots=5)
    assert placed(tasks) == [0, 1]
    assert why(tasks[2]) == "jobs of array 100 have at most 5 GPUs at once"


def test_others_are_not_held_back_by_the_limit_of_an_array():
    lab = Lab("fifo", gpus=8)
    array(lab, 5, concurrent=1)
    assert lab.submit(1).planned is not None


def test_a_preempted_task_keeps_its_place_within_the_limit():
    lab = Lab("fitgpp", gpus=2)
    tasks = array(lab, 3, concurrent=1, gpus=2)
    lab.start(tasks[0])
    urgent = lab.submit(2, te=True)
    lab.end(tasks[0])
    assert urgent.planned is not None
    assert placed(tasks) == []
    assert tasks[1].queued is None
    assert tasks[0].queued is not None


@pytest.mark.parametrize("wish", [e.SuspendRequested, e.CancelRequested])
def test_whoever_is_suspended_or_ended_by_its_user_lets_the_next_in_once_it_has_left(wish):
    lab = Lab("fifo", gpus=8)
    tasks = array(lab, 3, concurrent=1)
    lab.start(tasks[0])
    lab.tell(wish(tasks[0].id))
    assert placed(tasks) == []
    lab.exit(tasks[0])
    assert placed(tasks) == []
    lab.free(tasks[0])
    assert placed(tasks) == [1]


def test_a_resumed_task_stands_in_line_again_before_those_submitted_later():
    lab = Lab("fifo", gpus=8)
    tasks = array(lab, 3, concurrent=1)
    lab.start(tasks[0])
    lab.tell(e.SuspendRequested(tasks[0].id))
    lab.end(tasks[0])
    lab.start(tasks[1])
    lab.tell(e.ResumeRequested(tasks[0].id))
    assert why(tasks[0]) == "at most 1 job of array 100 runs at once"
    lab.end(tasks[1], DONE)
    assert placed(tasks) == [0]


def test_a_held_task_does_not_keep_others_out():
    lab = Lab("fifo", gpus=8)
    lab.submit(8)
    tasks = array(lab, 3, concurrent=1)
    assert tasks[0].queued is not None
    lab.tell(e.HoldRequested(tasks[0].id))
    assert (tasks[0].queued, tasks[1].queued is not None) == (None, True)


def test_a_failed_attempt_that_is_tried_again_keeps_its_place():
    lab = Lab("fifo", gpus=8)
    tasks = array(lab, 2, concurrent=1, retries=1)
    lab.start(tasks[0])
    lab.exit(tasks[0], FAILED)
    assert placed(tasks) == []
    lab.free(tasks[0])
    assert placed(tasks) == [0]


def test_a_higher_limit_lets_more_in_at_once():
    lab = Lab("fifo", gpus=8)
    tasks = array(lab, 6, concurrent=1)
    lab.tell(e.ArrayChanged(JobId("100"), 4, 0, 1, 0, "ann"))
    assert placed(tasks) == [0, 1, 2, 3]
    lab.tell(e.ArrayChanged(JobId("100"), 0, 0, 4, 0))
    assert placed(tasks) == [0, 1, 2, 3, 4, 5]


def test_a_lower_limit_takes_those_out_of_the_queue_who_came_last_and_stops_nobody():
    lab = Lab("fifo", gpus=2)
    tasks = array(lab, 6, concurrent=4)
    assert placed(tasks) == [0, 1]
    assert [task.queued is not None for task in tasks] == [False, False, True, True, False, False]
    lab.tell(e.ArrayChanged(JobId("100"), 1, 0, 4, 0))
    assert placed(tasks) == [0, 1]
    assert all(task.queued is None for task in tasks)
    for task in tasks[:2]:
        lab.start(task)
        lab.end(task, DONE)
    assert placed(tasks) == [2]


def test_the_greatest_size_of_elastic_tasks_is_what_the_array_leaves_over():
    lab = Lab("malleable-equipartition", gpus=8)
    tasks = array(lab, 3, gpus=1, to=8, slots=5)
    assert [task.gpus_max // WHOLE for task in tasks] == [3, 1, 1]
    lab.settle()
    assert sum(task.planned.share for task in tasks) == 5 * WHOLE


# --- quotas ---


def test_the_quota_of_a_user_counts_gpus_in_order_of_submission():
    lab = lab_with(gpus=4)
    first, large, small = lab.submit(2), lab.submit(3), lab.submit(1)
    assert (first.planned is not None, large.queued, small.queued) == (True, None, None)
    assert why(large) == why(small) == "ann has 2 of 4 GPUs of the quota"
    lab.start(first)
    lab.end(first, DONE)
    assert large.planned is not None
    assert small.planned is not None


def test_the_quota_of_one_user_is_no_matter_to_another():
    lab = lab_with(gpus=1)
    lab.submit(1)
    assert array(lab, 2, user="bob")[0].planned is not None


def test_a_job_that_is_larger_than_a_lowered_quota_does_not_keep_its_users_other_jobs_out():
    lab = lab_with(gpus=4, node=4)
    first, large = lab.submit(4), lab.submit(4)
    small, tasks = lab.submit(1), array(lab, 2, gpus=4)
    lab.cluster.reconfigure(Settings(quotas=Quotas(Quota(2 * WHOLE, None), {})), lab.now)
    lab.start(first)
    lab.end(first, DONE)
    assert (large.planned, small.planned is not None, placed(tasks)) == (None, True, [])
    assert why(large) == why(tasks[0]) == "needs 4, more than the 2 GPUs of the quota of ann"
    later = lab.submit(1)
    assert later.planned is not None
    lab.tell(e.ResizeRequested(large.id, 2 * WHOLE, 2 * WHOLE))
    assert why(large) == "ann has 2 of 2 GPUs of the quota"
    for job in (small, later):
        lab.start(job)
        lab.end(job, DONE)
    assert large.planned is not None
    lab.cluster.reconfigure(Settings(quotas=Quotas(Quota(6 * WHOLE, None), {})), lab.now)
    lab.start(large)
    lab.end(large, DONE)
    assert placed(tasks) == [0]


def test_a_named_user_has_a_quota_of_their_own():
    lab = lab_with(gpus=1, users={"bob": Quota(3 * WHOLE, None)})
    assert placed(array(lab, 5, user="bob")) == [0, 1, 2]


def test_a_full_array_does_not_keep_its_users_other_jobs_from_the_quota():
    lab = lab_with(gpus=4)
    tasks = array(lab, 5, concurrent=1)
    other = lab.submit(2)
    assert placed(tasks) == [0]
    assert other.planned is not None


def test_jobs_without_gpus_do_not_wait_for_the_quota():
    lab = lab_with(gpus=1)
    lab.submit(1)
    lab.submit(1)
    assert lab.submit(0).planned is not None


@pytest.mark.parametrize("policy", ["malleable-equipartition", "fitgpp", "fifo", "priority", "fair-share", "hybrid"])
def test_elastic_jobs_do_not_grow_past_the_quota_and_shrink_for_the_users_next_job(policy):
    lab = lab_with(gpus=4, policy=policy)
    elastic = lab.submit(1, 8)
    assert elastic.gpus_max == 4 * WHOLE
    lab.settle()
    assert elastic.planned.share == 4 * WHOLE
    other = lab.submit(2)
    assert elastic.gpus_max == 2 * WHOLE
    lab.settle()
    assert (elastic.planned.share, other.planned.share) == (2 * WHOLE, 2 * WHOLE)
    lab.end(other, DONE)
    assert elastic.gpus_max == 4 * WHOLE


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_a_job_that_cannot_be_suspended_has_grown_to_counts_in_full_and_is_never_taken_back(policy):
    lab = lab_with(gpus=4, policy=policy)
    fixed = lab.submit(1, 4, suspend=SuspendMode.NONE)
    lab.settle()
    had = fixed.planned.share
    other = lab.submit(1)
    lab.settle()
    assert (fixed.planned.share, len(fixed.attempts)) == (had, 1)
    assert had + (other.planned.share if other.planned else 0) <= 4 * WHOLE
    lab.end(fixed, DONE)
    assert other.planned is not None


@pytest.mark.parametrize("size", [1, 2])
def test_a_job_that_cannot_grow_any_more_leaves_the_rest_of_the_quota_to_others(size):
    lab = lab_with(gpus=8, node=size)
    fixed = lab.running(1, 8, suspend=SuspendMode.NONE)
    assert fixed.planned.share == size * WHOLE
    lab.tell(registration("b", 8))
    other = lab.submit(1, 8)
    lab.settle()
    assert other.planned.share == (8 - size) * WHOLE


def test_room_that_is_kept_for_an_elastic_job_is_given_up_if_it_may_not_have_so_much_any_more():
    lab = lab_with(gpus=4)
    elastic = lab.running(1, 4)
    lab.tell(e.DrillRequested(elastic.id))
    assert (elastic.claiming, elastic.planned.share) == (True, 4 * WHOLE)
    lab.submit(1)
    assert (elastic.claiming, elastic.gpus_max) == (False, 3 * WHOLE)
    lab.settle()
    assert elastic.attempts[-1].allocation.share == 3 * WHOLE


def outgrown():
    """A cluster where the room kept for an elastic job became more than its quota leaves it, without any event."""
    lab = lab_with(users={"ann": Quota(4 * WHOLE, None)}, policy="fitgpp", node=4)
    spec = JobSpec(command=("x",), workdir="/", gpus_min=2 * WHOLE, gpus_max=2 * WHOLE)
    lab.tell(e.JobSubmitted(JobId("1"), spec, "bob"))
    other = lab.cluster.state.jobs["1"]
    lab.start(other)
    elastic, later = lab.running(1, 4), lab.submit(1, begin_at=lab.now + 10_000)
    lab.wait(9_000)
    lab.end(other, DONE)
    assert (elastic.state, elastic.planned.share) == (JobState.SUSPENDING, 4 * WHOLE)
    lab.wait(1_000)
    assert (elastic.gpus_max, later.state) == (3 * WHOLE, JobState.STARTING)
    return lab


def test_that_such_room_is_given_up_is_in_the_journal():
    lab = outgrown()
    [dropped] = [event for _, event in lab.journal if isinstance(event, e.ClaimDropped)]
    assert narrate(dropped) == "gave up the room kept for it: it may have 3 GPUs at most by now; waiting in the queue"


@pytest.mark.parametrize("gpus", [None, 4, 8])
@pytest.mark.parametrize("recorded", [True, False])
def test_the_journal_comes_to_the_same_books_whatever_the_quota_is_by_then(gpus, recorded):
    """Older versions gave such room up, and did not record it."""
    lab = outgrown()
    quotas = Quotas(Quota(), {} if gpus is None else {"ann": Quota(gpus * WHOLE, None)})
    again = Cluster(create_policy("fitgpp", {}), settings=Settings(quotas=quotas))
    for time, event in lab.journal:
        if recorded or not isinstance(event, e.ClaimDropped):
            again.replay(event, time)
    again.handle(e.MasterStarted(2), lab.now)
    assert again.state.problems == []
    assert again.state.nodes["a"].promised == lab.cluster.state.nodes["a"].promised
    assert again.state.nodes["a"].held == lab.cluster.state.nodes["a"].held


def test_what_really_is_given_out_twice_is_found_whether_or_not_a_claim_is_in_the_way():
    lab = outgrown()
    placed = next(event for _, event in lab.journal if isinstance(event, e.AttemptPlaced) and event.job == "3")
    again = Cluster(create_policy("fitgpp", {}))
    for time, event in lab.journal:
        again.replay(event, time)
    lab.tell(e.JobSubmitted(JobId("4"), JobSpec(command=("x",), workdir="/"), "eve", hold=True))
    again.replay(lab.journal[-1][1], lab.now)
    again.replay(e.AttemptPlaced(JobId("4"), 1, placed.allocation, "twice"), lab.now)
    assert again.state.problems == ["job 4 gets GPUs of node a that are held or promised already"]


def test_a_job_with_fractions_gets_a_size_that_it_may_have():
    lab = lab_with(gpus=1)
    lab.submit("1/4")
    elastic = lab.submit("1/4", 2)
    assert elastic.gpus_max == WHOLE // 2


@pytest.mark.parametrize("as_written", ["now", "by an older version"])
def test_what_a_job_asked_for_is_not_forgotten_when_it_is_given_the_memory_of_its_last_run(as_written):
    lab = lab_with(gpus=1)
    first = lab.running("1/4")
    lab.wait(60)
    lab.end(first, ExitFacts(gpu_mem_peak_bytes=4 * GIB))
    lab.running("1/2")
    elastic = lab.submit("1/4", 4)
    lab.tell(learned_request(lab.cluster.state, elastic))
    assert elastic.gpus_max == WHOLE // 2
    again = Cluster(create_policy("fifo", {}), settings=Settings(quotas=Quotas(Quota(8 * WHOLE))))
    for time, event in lab.journal:
        if isinstance(event, e.GpuMemoryChanged) and as_written != "now":
            event = dataclasses.replace(event, gpus_max=WHOLE // 2)
        again.replay(event, time)
    known = again.state.jobs[elastic.id]
    assert (known.gpus_max, known.gpu_memory.requested_bytes) == (4 * WHOLE, elastic.gpu_memory.requested_bytes)


def test_what_a_job_asked_for_is_not_forgotten_when_it_runs_out_of_gpu_memory():
    lab = lab_with(gpus=1)
    other, elastic = lab.running("1/2"), lab.running("1/4", 4)
    assert elastic.gpus_max == WHOLE // 2
    lab.end(elastic, ExitFacts(exit_code=1, out_of_memory=True))
    lab.end(other, DONE)
    assert (elastic.gpus_min, elastic.gpus_max) == (WHOLE, WHOLE)
    lab.cluster.reconfigure(Settings(quotas=Quotas(Quota(8 * WHOLE))), lab.now)
    assert (elastic.gpus_min, elastic.gpus_max) == (WHOLE, 4 * WHOLE)


def test_who_is_resized_keeps_within_the_quota():
    lab = lab_with(gpus=4)
    job, _ = lab.running(1), lab.running(2)
    refusal = lab.cluster.refusal(e.ResizeRequested(job.id, 3 * WHOLE, 3 * WHOLE))
    assert refusal.kind is RefusalKind.LIMIT
    assert "3 is more than the 2 left of the 4 of the quota of ann" in refusal.message
    lab.tell(e.ResizeRequested(job.id, WHOLE, 8 * WHOLE))
    assert job.gpus_max == 2 * WHOLE


def test_what_could_never_run_within_the_quota_is_refused():
    lab = lab_with(gpus=2)
    refusal = lab.cluster.refusal(
        e.JobSubmitted(JobId("9"), JobSpec(command=("x",), workdir="/", gpus_min=3 * WHOLE, gpus_max=3 * WHOLE), "ann")
    )
    assert (refusal.kind, refusal.message) == (RefusalKind.INVALID, "--gpus: 3 is more than the 2 of the quota of ann")


def test_more_unfinished_jobs_than_allowed_are_refused_and_an_array_counts_as_a_whole():
    lab = lab_with(queued=3)
    spec = JobSpec(command=("x",), workdir="/")
    jobs = [lab.submit(1) for _ in range(2)]
    task = Task(JobId("7"), 0, 2)
    refusal = lab.cluster.refusal(e.JobSubmitted(JobId("7.0"), spec, "ann", task=task))
    assert refusal.kind is RefusalKind.LIMIT
    assert refusal.message == "ann has 2 unfinished jobs: 2 more are over the limit of 3"
    assert lab.cluster.refusal(e.JobSubmitted(JobId("7"), spec, "ann")) is None
    lab.start(jobs[0])
    lab.end(jobs[0], DONE)
    assert lab.cluster.refusal(e.JobSubmitted(JobId("7.0"), spec, "ann", task=task)) is None


def test_the_quota_of_a_user_counts_after_a_restart_what_it_counted_before():
    lab = lab_with(gpus=2)
    jobs = [lab.submit(1) for _ in range(4)]
    lab.start(jobs[0])
    again = lab_with(gpus=2).cluster
    again = Cluster(create_policy("fifo", {}), settings=lab.cluster.state.settings)
    for time, event in lab.journal:
        again.replay(event, time)
    for id, job in lab.cluster.state.jobs.items():
        assert again.state.jobs[id].admission.admitted == job.admission.admitted
    assert again.state.gates.user_quotas["ann"].cap.parts == 2 * WHOLE


# --- dependencies ---


@pytest.mark.parametrize(
    ("kind", "end", "goes_on"),
    [(ANY, DONE, True), (ANY, FAILED, True), (OK, DONE, True), (OK, FAILED, False), (NOT_OK, DONE, False),
     (NOT_OK, FAILED, True)],
)  # fmt: skip
def test_a_job_waits_for_another_and_goes_on_or_is_cancelled(kind, end, goes_on):
    lab = Lab("fifo", gpus=8)
    first = lab.running(1)
    second = lab.submit(1, after=after(first, kind=kind))
    assert second.queued is None
    assert why(second).startswith("waits for job 1 to ")
    lab.end(first, end)
    assert second.state is (JobState.STARTING if goes_on else JobState.CANCELLED)


def test_those_who_wait_for_one_that_was_cancelled_are_cancelled_too():
    lab = Lab("fifo", gpus=8)
    first = lab.running(1)
    second = lab.submit(1, after=after(first))
    third = lab.submit(1, after=after(second), hold=True)
    last = lab.submit(1, after=after(third, kind=ANY))
    lab.end(first, FAILED)
    assert second.reason == "cancelled: it was to wait for job 1 to complete, but that failed"
    assert third.reason == "cancelled: it was to wait for job 2 to complete, but that was cancelled"
    assert last.state is JobState.STARTING
    assert [narrate(event) for _, event in third.story][-1] == third.reason


def test_who_waits_for_an_array_is_looked_at_once_however_many_of_its_tasks_end():
    lab = Lab("fifo", gpus=8)
    tasks = array(lab, 4)
    waits = {kind: lab.submit(1, after=after("100", kind=kind) * 2) for kind in (OK, NOT_OK, ANY)}
    dependents = lab.cluster.state.gates.dependents
    assert {kind: len(admissions) for kind, admissions in dependents[JobId("100")].items()} == {
        OK: 1,
        NOT_OK: 1,
        ANY: 1,
    }
    for task in tasks:
        lab.start(task)
    lab.end(tasks[0], FAILED)
    assert waits[OK].state is JobState.CANCELLED
    assert set(dependents[JobId("100")]) == {NOT_OK, ANY}
    for task in tasks[1:]:
        lab.end(task, DONE)
    assert waits[NOT_OK].planned is not None
    assert waits[ANY].planned is not None
    assert dependents == {}


def test_a_job_may_wait_for_several():
    lab = Lab("fifo", gpus=8)
    first, second = lab.running(1), lab.running(1)
    third = lab.submit(1, after=(*after(first), *after(second, kind=ANY)))
    assert why(third) == "waits for job 1 to complete, and 1 more"
    lab.end(first, DONE)
    assert third.queued is None
    lab.end(second, FAILED)
    assert third.planned is not None


def test_what_is_over_already_is_looked_at_at_once():
    lab = Lab("fifo", gpus=8)
    first = lab.running(1)
    lab.end(first, FAILED)
    assert lab.submit(1, after=after(first, kind=NOT_OK)).planned is not None
    assert lab.submit(1, after=after(first, kind=OK)).state is JobState.CANCELLED


def test_an_array_stands_for_all_its_tasks():
    lab = Lab("fifo", gpus=8)
    tasks = array(lab, 2)
    every, failed, good = (lab.submit(1, after=after(JobId("100"), kind=kind)) for kind in (ANY, NOT_OK, OK))
    for task in tasks:
        lab.start(task)
    lab.end(tasks[0], FAILED)
    assert (good.state, every.queued, failed.queued) == (JobState.CANCELLED, None, None)
    assert good.reason.endswith("but 1 of its tasks did not")
    lab.end(tasks[1], DONE)
    assert every.planned is not None
    assert failed.planned is not None


def test_an_unknown_job_to_wait_for_is_refused():
    lab = Lab("fifo")
    spec = JobSpec(command=("x",), workdir="/", after=after(JobId("1")))
    refusal = lab.cluster.refusal(e.JobSubmitted(JobId("1"), spec, "ann"))
    assert (refusal.kind, refusal.message) == (RefusalKind.INVALID, "--after: job 1 does not exist")


# --- times, requeuing ---


def test_a_job_starts_not_before_its_time():
    lab = Lab("fifo")
    job = lab.submit(1, begin_at=lab.now + 100)
    assert why(job) == f"not before {job.spec.begin_at:g}"
    assert lab.wakes[-1][1] == job.spec.begin_at
    lab.wait(50)
    assert job.planned is None
    lab.wait(60)
    assert job.planned is not None


def test_a_task_that_waits_for_its_time_takes_no_place_of_its_array():
    lab = Lab("fifo", gpus=8)
    tasks = array(lab, 2, concurrent=1, begin_at=lab.now + 100)
    assert placed(tasks) == []
    lab.wait(110)
    assert placed(tasks) == [0]


def test_who_is_requeued_steps_aside_and_starts_again_uncharged():
    lab = Lab("fifo", gpus=1)
    job = lab.running(1)
    lab.tell(e.RequeueRequested(job.id))
    assert job.state is JobState.SUSPENDING
    lab.end(job)
    assert (job.state, len(job.attempts), job.retries.failures, job.suspending.preemptions) == (
        JobState.STARTING,
        2,
        0,
        0,
    )


def test_only_who_runs_can_be_requeued():
    lab = Lab("fifo", gpus=1)
    lab.running(1)
    waiting = lab.submit(1)
    assert lab.cluster.refusal(e.RequeueRequested(waiting.id)).kind is RefusalKind.CONFLICT


# --- ids ---


def test_indices_are_written_as_ranges():
    assert ranges([3, 1, 0, 2, 7, 9, 8]) == "0-3,7-9"
    assert ranges([5]) == "5"
    assert ranges([]) == ""


def test_tasks_are_selected_by_index_or_range():
    lab = Lab("fifo", gpus=8)
    array(lab, 6)
    found = lab.cluster.state.gates.arrays[JobId("100")]
    assert [job.id for job in selected(found, "2-4")] == ["100.2", "100.3", "100.4"]
    assert [job.id for job in selected(found, "5")] == ["100.5"]
    assert len(selected(found, "")) == 6
