"""A cluster refuses what cannot be, ends jobs in time, and is the fold of its journal."""

from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.dispatch import apply
from ebbtide_core.job.facets import End
from ebbtide_core.job.job import InvalidTransitionError
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, ExitFacts, JobId, JobState
from ebbtide_core.views.digest import digest

from tests.core.lab import DONE, Lab

FAILED = ExitFacts(exit_code=1)


@pytest.fixture
def lab() -> Lab:
    return Lab(gpus=2)


def test_an_illegal_transition_raises_with_the_story_of_the_job(lab: Lab) -> None:
    job = lab.running()
    lab.end(job, DONE)
    job.end = End(JobState.FAILED, lab.now, 1)
    with pytest.raises(InvalidTransitionError, match="JobSubmitted"):
        apply(lab.cluster.state, e.HoldRequested(job.id), lab.now)


def test_running_time_of_all_attempts_counts(lab: Lab) -> None:
    job = lab.running(time_limit_s=100.0)
    lab.wait(60)
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job)
    lab.wait(1000)
    lab.tell(e.ResumeRequested(job.id))
    lab.start(job)
    lab.wait(20)
    assert job.state is JobState.RUNNING
    lab.wait(30)
    assert job.state is JobState.STOPPING
    lab.end(job)
    assert (job.state, job.reason) == (JobState.FAILED, "time limit reached")


def test_replaying_the_journal_gives_the_same_cluster(lab: Lab) -> None:
    _eventful_day(lab)
    again = Cluster(lab.cluster.policy)
    for now, event in lab.journal:
        again.replay(event, now)
    assert again.state.jobs == lab.cluster.state.jobs
    assert _books(again) == _books(lab.cluster)
    assert digest(again.state) == digest(lab.cluster.state)


def test_the_digest_changes_with_every_event_that_changes_a_job(lab: Lab) -> None:
    seen = {digest(lab.cluster.state)}
    job = lab.submit(1)
    for step in (lab.start, lab.exit, lab.free):
        seen.add(digest(lab.cluster.state))
        step(job)
    assert len(seen | {digest(lab.cluster.state)}) == 5


def test_impossible_jobs_are_refused_and_change_nothing(lab: Lab) -> None:
    spec = JobSpec(command=("x",), workdir="/", gpus_min=3 * WHOLE, gpus_max=3 * WHOLE)
    refusal = lab.cluster.refusal(e.JobSubmitted(JobId("1"), spec, "ann"))
    assert refusal is not None
    assert refusal.message == "--gpus: 3 is more than the 2 of the largest node"


def _eventful_day(lab: Lab) -> None:
    elastic = lab.running(1, 2)
    trial = lab.submit(1, te=True)
    lab.end(elastic)
    lab.start(elastic)
    lab.start(trial)
    lab.end(trial, DONE)
    failing = lab.submit(1, retries=2)
    lab.wait(100)
    lab.tell(e.SuspendRequested(elastic.id))
    lab.exit(elastic)
    lab.tell(e.CancelRequested(failing.id))


def _books(cluster: Cluster) -> dict[str, Any]:
    return {id: (node.held, node.promised, node.attempts, node.planned) for id, node in cluster.state.nodes.items()}
