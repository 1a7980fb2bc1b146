"""Attempts that used up their host memory: a failure of the job, told as that."""

from ebbtide_core import events as e
from ebbtide_core.job.facets import Gang, GangMember
from ebbtide_core.job.gang import exit_of
from ebbtide_core.job.job import Attempt
from ebbtide_core.model.types import Allocation, ExitFacts, JobState, NodeAllocation, NodeId
from ebbtide_core.views.narrate import narrate

from tests.core.lab import Lab
from tests.core.nodes.test_failing_nodes import drained, submitted

TOO_MUCH = "it used more than its --mem 4 GiB"
KILLED = ExitFacts(signal=9, memory_failure=TOO_MUCH)


def test_it_is_a_failure_with_its_reason_in_the_story_too() -> None:
    lab = Lab()
    job = lab.running()
    lab.end(job, KILLED)
    assert (job.state, job.reason) == (JobState.FAILED, f"failed with signal SIGKILL ({TOO_MUCH})")
    [told] = [narrate(event) for _, event in lab.journal if isinstance(event, e.AttemptExited)]
    assert told.startswith(f"attempt 1 ended: signal SIGKILL ({TOO_MUCH})")


def test_it_is_tried_again_as_often_as_any_failure_and_no_more() -> None:
    lab = Lab()
    job = lab.running(retries=1)
    lab.end(job, KILLED)
    lab.wait(1)
    assert (job.retries.failures, job.state) == (1, JobState.STARTING)
    lab.start(job)
    lab.end(job, KILLED)
    assert (job.retries.failures, job.state) == (1, JobState.FAILED)


def test_who_completed_although_a_process_of_it_was_killed_has_completed() -> None:
    lab = Lab()
    job = lab.running()
    lab.end(job, ExitFacts(memory_failure="the node ran out of memory, and the kernel killed a process of it"))
    assert job.state is JobState.COMPLETED


def test_a_save_that_takes_too_much_memory_is_told_and_saved_nothing() -> None:
    lab = Lab()
    job = lab.running()
    lab.tell(e.SuspendRequested(job.id))
    lab.end(job, ExitFacts(signal=9, stop_requested=True, delivered=True, caught=True, memory_failure=TOO_MUCH))
    assert job.attempts[-1].end.outcome == f"ended by signal SIGKILL ({TOO_MUCH}) when asked to step aside"
    assert job.suspending.fruitless_in_row == 1


def test_jobs_that_ask_for_too_little_do_not_speak_against_their_node() -> None:
    lab = Lab(nodes="ab")
    lab.running(4)
    for user in "ababab":
        lab.end(submitted(lab, user), KILLED)
    assert not drained(lab)


def test_of_several_nodes_the_one_that_ran_out_is_heard() -> None:
    nodes = [NodeId("a"), NodeId("b")]
    attempt = Attempt(1, Allocation(tuple(NodeAllocation(node, (), 1.0, 0) for node in nodes)), 0.0)
    left = ExitFacts(exit_code=85, stop_requested=True)
    attempt.gang = Gang({nodes[0]: GangMember(exit=left, ended=1.0), nodes[1]: GangMember(exit=KILLED, ended=1.0)})
    assert exit_of(attempt).memory_failure == TOO_MUCH
