"""A job that is swapped: the same attempt leaves its GPU, keeps its memory on the host, and can only go on there."""

import dataclasses

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, RefusalKind
from ebbtide_core.commands import Launch, Resume, Stop
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_core.model.types import WHOLE, ExitFacts, JobState, LaunchMode, SuspendMode
from ebbtide_core.policies.registry import POLICIES, create_policy

from tests.core.lab import GIB, Lab, registration

SWAP = {"suspend": SuspendMode.SWAP}


@pytest.fixture
def lab():
    return Lab(gpus=1)


def swapper(lab, **spec):
    return lab.running(1, **(SWAP | {"cpus": 2.0, "mem_bytes": 8 * GIB} | spec))


def swapped(lab, job, swaps=1, **facts):
    return lab.tell(e.AttemptSwapped(job.id, len(job.attempts), swaps, 30 * GIB, 10.0, **facts))


def returned(lab, job, swaps=1):
    return lab.tell(e.AttemptStarted(job.id, len(job.attempts), 1001, None, swaps))


def away(lab, **spec):
    """A job in host memory, and the urgent one that has its GPU."""
    job = swapper(lab, **spec)
    urgent = lab.submit(te=True)
    swapped(lab, job)
    lab.start(urgent)
    return job, urgent


def use(lab):
    node = lab.cluster.state.nodes["a"]
    assert node.held == node.promised
    return len(node.held.whole), node.held.cpus, node.held.mem_bytes // GIB


def orders(commands, kind):
    return [command for command in commands if isinstance(command, kind)]


def test_a_preempted_job_is_moved_to_host_memory_and_its_gpu_goes_to_the_preemptor(lab):
    job = swapper(lab)
    urgent = lab.submit(te=True)
    [stop] = orders(lab.last, Stop)
    assert (stop.job, stop.swaps) == (job.id, 0)
    assert job.state is JobState.SUSPENDING
    [launch] = orders(swapped(lab, job), Launch)
    assert launch.job == urgent.id
    assert job.state is JobState.SUSPENDED
    assert job.reason == "waiting for GPU a0 of node a, the one that it was swapped out from"


def test_off_its_gpu_it_keeps_its_cpus_and_its_host_memory_and_what_was_on_the_gpu(lab):
    job = swapper(lab)
    assert use(lab) == (1, 2.0, 8)
    lab.tell(e.SuspendRequested(job.id))
    swapped(lab, job)
    assert use(lab) == (0, 2.0, 38)
    lab.tell(e.ResumeRequested(job.id))
    returned(lab, job)
    assert use(lab) == (1, 2.0, 8)
    lab.end(job, ExitFacts())
    assert use(lab) == (0, 0.0, 0)


def test_it_goes_on_as_the_same_attempt_once_its_gpu_is_free(lab):
    job, urgent = away(lab)
    lab.end(urgent, ExitFacts())
    [resume] = orders(lab.last, Resume)
    assert (resume.job, resume.attempt, resume.swaps) == (job.id, 1, 1)
    assert job.state is JobState.STARTING
    returned(lab, job)
    assert job.state is JobState.RUNNING
    assert (len(job.attempts), job.retries.restarts, job.suspending.preemptions) == (1, 0, 1)


def test_it_goes_on_nowhere_else_though_others_have_room():
    lab = Lab(gpus=1)
    job, urgent = away(lab)
    lab.tell(registration("b", 4))
    assert job.state is JobState.SUSPENDED
    other = lab.submit()  # behind it in the line, and not held up by it
    assert other.attempts[-1].allocation.node_ids == ("b",)
    lab.end(urgent, ExitFacts())
    assert job.attempts[-1].allocation.gpu_ids == ("a0",)
    assert job.state is JobState.STARTING


def test_who_has_no_room_beside_its_memory_waits():
    lab = Lab(gpus=1)
    away(lab)
    big = lab.submit(0, mem_bytes=230 * GIB)
    assert big.state is JobState.PENDING


def test_a_user_suspends_and_resumes_it(lab):
    job = swapper(lab)
    lab.tell(e.SuspendRequested(job.id))
    swapped(lab, job)
    assert (job.state, job.held_by.value) == (JobState.SUSPENDED, "user")
    assert orders(lab.tell(e.ResumeRequested(job.id)), Resume)


def test_the_record_of_the_suspension_says_what_was_moved(lab):
    job, urgent = away(lab)
    lab.end(urgent, ExitFacts())
    returned(lab, job)
    [suspension] = job.suspensions
    assert suspension.note == "30.0 GiB moved to host memory in 10.0 s"
    assert suspension.exited == suspension.gpu_free
    assert (suspension.resumed, suspension.gpus_after) == (lab.now, ("a0",))


def test_time_in_host_memory_is_time_that_it_waits(lab):
    job = swapper(lab)
    began = lab.now
    lab.wait(99)
    lab.tell(e.SuspendRequested(job.id))
    swapped(lab, job)
    ran = job.times.ran_s
    assert ran == lab.now - began
    lab.wait(1000)
    assert job.running_s(lab.now) == ran
    lab.tell(e.ResumeRequested(job.id))
    returned(lab, job)
    lab.wait(9)
    assert job.running_s(lab.now) == ran + 10
    assert job.attempts[-1].first_started == began


def test_one_that_cannot_be_swapped_ends_and_goes_on_from_its_last_checkpoint(lab):
    job = swapper(lab)
    urgent = lab.submit(te=True)
    failure = "could not be moved out to host memory: driver 570 is too old to swap: it takes 580"
    lab.end(job, ExitFacts(signal=9, stop_requested=True, delivered=True, killed=True, swap_failure=failure))
    assert job.state is JobState.SUSPENDED
    assert job.suspensions[-1].note == failure
    assert job.attempts[-1].end.outcome == f"{failure}; it resumes from its last checkpoint"
    assert job.retries.failures == 0
    assert use(lab) == (1, 0.0, 0)
    lab.end(urgent, ExitFacts())
    assert len(job.attempts) == 2


def test_one_that_breaks_on_its_way_back_starts_again_and_is_not_charged_for_it(lab):
    job, urgent = away(lab)
    lab.end(urgent, ExitFacts())
    lab.end(job, ExitFacts(signal=9, stop_requested=True, swap_failure="could not be moved back to its GPU: x"))
    assert job.suspensions[-1].note.endswith("; could not be moved back to its GPU: x")
    assert job.retries.failures == 0
    assert len(job.attempts) == 2
    assert job.state is JobState.STARTING
    lab.start(job)
    assert use(lab) == (1, 2.0, 8)


def test_one_that_fails_in_host_memory_is_tried_again(lab):
    job, urgent = away(lab, retries=1)
    lab.end(job, ExitFacts(exit_code=1))
    assert (job.state, job.retries.failures) == (JobState.PENDING, 1)
    lab.end(urgent, ExitFacts())
    lab.wait(600)
    assert (job.state, len(job.attempts)) == (JobState.STARTING, 2)


def test_one_that_never_finds_room_on_its_gpu_tries_again_every_minute(lab):
    job, urgent = away(lab)
    lab.end(urgent, ExitFacts())
    job.retries = dataclasses.replace(job.retries, requeues_in_row=5_000)
    swapped(lab, job, swaps=2, note="the GPU has no room")
    assert job.next.not_before == lab.now + 60.0


def test_one_that_finds_no_room_on_its_gpu_stays_in_host_memory_and_tries_again_later(lab):
    job, urgent = away(lab)
    lab.end(urgent, ExitFacts())
    swapped(lab, job, swaps=2, note="the GPU has no room")
    assert job.state is JobState.SUSPENDED
    assert job.reason == "could not come back to its GPU: the GPU has no room"
    assert use(lab) == (0, 2.0, 38)
    assert orders(lab.wait(600), Resume)
    returned(lab, job, swaps=2)
    assert use(lab) == (1, 2.0, 8)


def test_a_reboot_of_its_node_loses_what_was_in_host_memory(lab):
    job, _ = away(lab)
    lab.tell(registration("a", 1, boot_id="boot-2"))
    assert job.attempts[0].end.outcome.startswith("interrupted")
    assert job.retries.failures == 0
    assert use(lab)[2] == (8 if len(job.attempts) == 2 else 0)


def test_a_reboot_while_it_comes_back_does_not_launch_the_same_attempt_again(lab):
    _, urgent = away(lab)
    lab.end(urgent, ExitFacts())
    lab.tell(registration("a", 1, boot_id="boot-2"))
    assert [launch.attempt for launch in orders(lab.last, Launch)] == [2]


def test_a_node_that_is_silent_makes_it_unreachable_and_its_return_does_not(lab):
    job, _ = away(lab)
    lab.tell(e.NodeDisconnected("a"))
    lab.tell(e.NodeLost("a", 20.0))
    assert job.state is JobState.UNREACHABLE
    known = tuple(ref for other in lab.cluster.state.jobs.values() for ref in lab.known(other))
    lab.tell(registration("a", 1, known=known))
    assert job.state is JobState.SUSPENDED


def test_a_node_that_comes_back_is_reminded_of_what_it_may_not_have_heard(lab):
    job = swapper(lab)
    lab.tell(e.SuspendRequested(job.id))
    again = lab.tell(registration("a", 1, known=lab.known(job)))
    assert [stop.swaps for stop in orders(again, Stop)] == [0]
    swapped(lab, job)
    assert not orders(lab.tell(registration("a", 1, known=lab.known(job))), Stop)
    lab.tell(e.ResumeRequested(job.id))
    again = lab.tell(registration("a", 1, known=lab.known(job)))
    assert [resume.swaps for resume in orders(again, Resume)] == [1]


def test_reports_that_come_twice_or_late_change_nothing(lab):
    job, urgent = away(lab)
    lab.end(urgent, ExitFacts())
    swapped(lab, job, swaps=1)
    assert job.state is JobState.STARTING
    returned(lab, job, swaps=0)
    assert job.state is JobState.STARTING
    returned(lab, job, swaps=1)
    swapped(lab, job, swaps=1)
    assert job.state is JobState.RUNNING


def test_cancelling_it_while_it_is_out_ends_it(lab):
    job, _ = away(lab)
    [stop] = orders(lab.tell(e.CancelRequested(job.id)), Stop)
    assert stop.swaps is None
    assert job.state is JobState.STOPPING
    lab.end(job, ExitFacts(signal=9, stop_requested=True, swap_failure="ended while it was swapped out"))
    assert job.state is JobState.CANCELLED
    assert use(lab) == (1, 0.0, 0)


def test_one_that_was_cancelled_on_its_way_out_does_not_come_back(lab):
    job = swapper(lab)
    lab.tell(e.DrillRequested(job.id))
    lab.tell(e.CancelRequested(job.id))
    assert orders(swapped(lab, job), Resume) == []
    assert job.state is JobState.STOPPING
    lab.end(job, ExitFacts(signal=9, stop_requested=True, swap_failure="ended while it was swapped out"))
    assert job.state is JobState.CANCELLED


def test_a_cluster_that_goes_down_ends_it_for_host_memory_does_not_last(lab):
    job = swapper(lab)
    lab.tell(e.SuspendRequested(job.id))
    swapped(lab, job)
    [stop] = orders(lab.tell(e.Quiesced()), Stop)
    assert (stop.job, stop.swaps) == (job.id, None)


def test_it_may_be_preempted_while_it_comes_back(lab):
    job, urgent = away(lab)
    lab.end(urgent, ExitFacts())
    next_one = lab.submit(te=True)
    assert job.attempts[-1].stop is not None or next_one.state is JobState.PENDING
    returned(lab, job)
    swapped(lab, job, swaps=2)
    assert next_one.state is JobState.STARTING


def test_it_cannot_be_resized(lab):
    job = swapper(lab)
    refusal = lab.cluster.refusal(e.ResizeRequested(job.id, WHOLE // 2, WHOLE // 2))
    assert refusal.kind is RefusalKind.CONFLICT


@pytest.mark.parametrize(
    "spec",
    [
        {"gpus_min": 2 * WHOLE, "gpus_max": 2 * WHOLE},
        {"gpus_min": WHOLE // 2},
        {"gpus_min": 0, "gpus_max": 0},
        {"launch": LaunchMode.DDP},
    ],
)
def test_what_the_driver_cannot_move_is_refused_at_submit(spec):
    with pytest.raises(SpecError, match="--suspend swap"):
        validate(JobSpec(command=("x",), workdir="/", suspend=SuspendMode.SWAP, **spec))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_under_every_policy_it_comes_back_to_its_gpu_and_to_no_other(name):
    lab = Lab(name, gpus=2)
    job = swapper(lab)
    [gpu] = job.attempts[-1].allocation.gpu_ids
    lab.tell(e.SuspendRequested(job.id))
    swapped(lab, job)
    visitor = lab.submit(2)
    if visitor.live is not None:
        lab.start(visitor)
    lab.tell(e.ResumeRequested(job.id))
    assert job.state is (JobState.SUSPENDED if visitor.running else JobState.STARTING), name
    if visitor.running:
        lab.end(visitor, ExitFacts())
    lab.wait(7200)
    assert job.state is JobState.STARTING
    assert job.attempts[-1].allocation.gpu_ids == (gpu,)
    returned(lab, job)
    lab.wait(7200)
    assert (job.state, len(job.attempts)) == (JobState.RUNNING, 1)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_under_every_policy_others_pass_it_while_its_gpu_is_taken(name):
    lab = Lab(name, gpus=2)
    job = swapper(lab)
    [gpu] = job.attempts[-1].allocation.gpu_ids
    lab.tell(e.SuspendRequested(job.id))
    swapped(lab, job)
    visitors = [lab.running(1), lab.running(1)]
    [elsewhere] = [visitor for visitor in visitors if gpu not in visitor.attempts[-1].allocation.gpu_ids]
    lab.tell(e.ResumeRequested(job.id))
    lab.end(elsewhere, ExitFacts())
    later = lab.submit(1)
    lab.wait(100)
    assert (job.state, later.state) == (JobState.SUSPENDED, JobState.STARTING)


def test_the_journal_leads_to_the_same_state(lab):
    job, urgent = away(lab)
    lab.end(urgent, ExitFacts())
    returned(lab, job)
    again = Cluster(create_policy("fitgpp", {}))
    for time, event in lab.journal:
        again.replay(event, time)
    assert again.state.jobs[job.id].attempts == job.attempts
    assert again.state.nodes["a"].held == lab.cluster.state.nodes["a"].held


def test_a_swap_share_is_not_put_beside_others_where_shares_are_under_mps():
    lab = Lab(gpus=0)
    facts = registration("b", 2)
    lab.tell(dataclasses.replace(facts, gpus=tuple(dataclasses.replace(gpu, mps=True) for gpu in facts.gpus)))
    neighbour = lab.submit("1/4")
    swap = lab.submit("1/4", **SWAP)
    late = lab.submit("1/4", **SWAP)
    assert neighbour.attempts[-1].allocation.gpu_ids == ("b0",)
    assert swap.attempts[-1].allocation.gpu_ids == ("b1",)
    assert late.state is JobState.PENDING
