"""Priority and weight, changed while a job waits or runs (seed 003)."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, RefusalKind
from ebbtide_core.model.types import JobId, JobState, SuspendMode
from ebbtide_core.views.narrate import narrate

from tests.core.lab import DONE, Lab, gpus_of, launched, stopped


def changed(job, priority=None, weight=None):
    """The fact that bob gives ``job`` what is named."""
    return e.JobChanged(
        job.id,
        job.priority if priority is None else priority,
        job.weight if weight is None else weight,
        job.priority,
        job.weight,
        "bob",
    )


PREEMPTIVE = pytest.mark.parametrize("policy", ["priority", "pri", "pri-limit"])


@PREEMPTIVE
def test_a_waiting_job_made_more_urgent_preempts_at_once(policy) -> None:
    lab = Lab(policy, gpus=1)
    running, waiting = lab.running(1, priority=42), lab.submit(1, priority=42)
    lab.tell(changed(waiting, priority=5))
    assert stopped(lab.last) == {running.id}
    lab.settle()
    assert (running.state, waiting.state) == (JobState.SUSPENDED, JobState.RUNNING)


@PREEMPTIVE
def test_a_running_job_made_less_urgent_is_preempted_at_once(policy) -> None:
    lab = Lab(policy, gpus=2)
    first, second = lab.running(1, priority=9), lab.running(1, priority=9)
    lab.submit(1, priority=9)
    lab.tell(changed(first, priority=10))
    assert stopped(lab.last) == {first.id}
    assert gpus_of(second)


@PREEMPTIVE
def test_waiting_jobs_start_in_the_order_of_their_new_priorities(policy) -> None:
    lab = Lab(policy, gpus=1)
    running = lab.running(1, priority=1)
    first, second, third = (lab.submit(1, priority=9) for _ in range(3))
    lab.tell(changed(third, priority=8))
    lab.tell(changed(first, priority=10))
    for job in (third, second, first):
        lab.end(running, DONE)
        assert launched(lab.last) == {job.id}
        lab.start(job)
        running = job


def test_what_is_not_preemptible_goes_on_whatever_its_priority_becomes() -> None:
    lab = Lab("priority", gpus=1)
    notebook = lab.running(1, priority=5, suspend=SuspendMode.NONE)
    waiting = lab.submit(1, priority=9)
    lab.tell(changed(notebook, priority=99))
    assert stopped(lab.last) == set()
    lab.end(notebook, DONE)
    assert launched(lab.last) == {waiting.id}


def test_room_that_is_being_freed_goes_to_another_if_its_claimant_becomes_less_urgent_than_that() -> None:
    lab = Lab("priority", gpus=1)
    victim = lab.running(1, priority=42)
    claimant, other = lab.submit(1, priority=5), lab.submit(1, priority=7)
    assert victim.live.stop.for_job == claimant.id
    lab.tell(changed(claimant, priority=8))
    lab.end(victim)
    assert launched(lab.last) == {other.id}
    assert claimant.state is JobState.PENDING


def test_shares_follow_weights_that_are_changed_at_run_time() -> None:
    lab = Lab("fair-share", gpus=8)
    first = [lab.submit(1, group="first") for _ in range(8)]
    second = [lab.submit(1, group="second") for _ in range(8)]
    lab.settle()
    assert [sum(len(gpus_of(job)) for job in group) for group in (first, second)] == [4, 4]
    for job in first:
        lab.tell(changed(job, weight=3.0))
    lab.settle()
    assert [sum(len(gpus_of(job)) for job in group) for group in (first, second)] == [6, 2]


def test_what_a_job_has_already_is_no_news() -> None:
    lab = Lab("priority")
    job = lab.running(priority=5, weight=2.0)
    lab.tell(changed(job))
    assert not any(isinstance(event, e.JobChanged) for _, event in lab.journal)


def test_a_change_outlives_the_master() -> None:
    lab = Lab("priority", gpus=1)
    lab.running(1, priority=1)
    jobs = [lab.submit(1) for _ in range(2)]
    lab.tell(changed(jobs[1], priority=7, weight=2.5))
    again = Cluster(lab.cluster.policy)
    for now, event in lab.journal:
        again.replay(event, now)
    assert [job.id for job in again.state.pools["default"].queue] == [jobs[1].id, jobs[0].id]
    twin = again.job(jobs[1].id)
    assert (twin.priority, twin.weight, twin.spec.priority) == (7, 2.5, 42)


def test_the_story_says_what_was_changed_and_by_whom() -> None:
    job = JobId("1")
    assert narrate(e.JobChanged(job, 5, 1.0, 42, 1.0, "alice")) == "priority 42 → 5 by alice"
    assert narrate(e.JobChanged(job, 5, 2.5, 42, 1.0, "alice")) == "priority 42 → 5, weight 1 → 2.5 by alice"
    assert narrate(e.JobChanged(job, 42, 2.0, 42, 1.0)) == "weight 1 → 2"


@pytest.mark.parametrize(
    ("priority", "weight", "named"),
    [
        (0, 1.0, "--priority: 0 is not between 1 and 99"),
        (100, 1.0, "--priority: 100 is not between 1 and 99"),
        (42, 0.0, "--weight: 0.0 is not between 0.001 and 1000"),
        (42, float("nan"), "--weight: nan is not between 0.001 and 1000"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_its_field_and_limit(priority, weight, named) -> None:
    lab = Lab()
    job = lab.submit()
    refusal = lab.cluster.refusal(changed(job, priority, weight))
    assert (refusal.kind, refusal.message) == (RefusalKind.INVALID, named)


def test_only_an_unfinished_job_that_exists_can_be_changed() -> None:
    lab = Lab()
    job = lab.running()
    lab.end(job, DONE)
    assert lab.cluster.refusal(changed(job, priority=5)).kind is RefusalKind.CONFLICT
    assert lab.cluster.refusal(e.JobChanged(JobId("9"), 5, 1.0, 42, 1.0)).kind is RefusalKind.UNKNOWN
