"""A node on which everything fails does not eat the queue."""

from ebbtide_core import events as e
from ebbtide_core.job.job import Job
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import ExitFacts, JobId, JobState, parts

from tests.core.lab import Lab

FAILED = ExitFacts(exit_code=1)


def beside_a_full_node() -> Lab:
    """Whatever is submitted starts on the second node."""
    lab = Lab(nodes="ab")
    lab.running(4)
    return lab


def submitted(lab: Lab, user: str, **spec: int) -> Job:
    """A job of ``user`` that has started, on whichever node."""
    id = JobId(str(len(lab.cluster.state.jobs) + 1))
    lab.tell(
        e.JobSubmitted(id, JobSpec(command=("x",), workdir="/", gpus_min=parts(1), gpus_max=parts(1), **spec), user)
    )
    job = lab.cluster.state.jobs[id]
    lab.start(job)
    return job


def fail(lab: Lab, users: str, after_s: float = 0.0) -> None:
    for user in users:
        job = submitted(lab, user)
        lab.wait(after_s)
        lab.end(job, FAILED)


def drained(lab: Lab) -> list[str]:
    return [node.id for node in lab.cluster.state.nodes.values() if node.drain is not None]


def test_a_node_on_which_jobs_of_several_users_fail_one_after_the_other_is_drained() -> None:
    lab = beside_a_full_node()
    fail(lab, "aabb")
    assert not drained(lab)
    fail(lab, "a")
    assert len(drained(lab)) == 1
    reason = lab.cluster.state.nodes[drained(lab)[0]].drain.reason
    failed = "at least 5 jobs of 2 users in a row failed here soon after their start"
    assert reason == f"{failed}: jobs 2, 3, 4, 5 and 1 more"
    lab.submit()
    assert not lab.cluster.state.jobs[JobId("7")].attempts


def test_the_only_node_stays_in_service() -> None:
    lab = Lab(nodes="a")
    fail(lab, "abababab")
    assert not drained(lab)


def test_one_user_whose_jobs_fail_says_nothing_of_the_node() -> None:
    lab = beside_a_full_node()
    fail(lab, "aaaaaaaa")
    assert not drained(lab)


def test_however_many_fail_there_few_are_remembered_and_named() -> None:
    lab = beside_a_full_node()
    fail(lab, "a" * 300)
    [remembered] = lab.cluster.state.failing.values()
    assert len(remembered) == 5
    fail(lab, "b")
    [node] = drained(lab)
    reason = lab.cluster.state.nodes[node].drain.reason
    failed = "at least 6 jobs of 2 users in a row failed here soon after their start"
    assert reason == f"{failed}: jobs 2, 3, 4, 5 and 2 more"


def test_one_job_that_completes_or_lasts_in_between_speaks_for_the_node() -> None:
    lab = beside_a_full_node()
    fail(lab, "abab")
    lab.end(submitted(lab, "a"), ExitFacts())
    fail(lab, "abab")
    fail(lab, "a", after_s=100.0)
    fail(lab, "abab")
    assert not drained(lab)


def test_put_back_into_service_it_is_given_another_chance() -> None:
    lab = beside_a_full_node()
    fail(lab, "ababa")
    (node,) = drained(lab)
    lab.tell(e.NodeResumed(lab.cluster.state.nodes[node].id))
    fail(lab, "abab")
    assert not drained(lab)


def test_a_job_that_fails_at_once_backs_off_ever_longer_and_then_has_failed() -> None:
    lab = Lab()
    job = submitted(lab, "a", retries=3)
    pauses = []
    for _ in range(3):
        lab.exit(job, FAILED)
        pauses.append(job.next.not_before - lab.now)
        lab.free(job)
        lab.wait(pauses[-1])
        lab.start(job)
    lab.end(job, FAILED)
    assert job.state is JobState.FAILED
    assert pauses[0] < pauses[1] < pauses[2]
