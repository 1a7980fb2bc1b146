"""Why a job waits, and when there is room for it."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.estimates.work import EstimateSource
from ebbtide_core.events.bookings import BookedGpu
from ebbtide_core.job.job import Job
from ebbtide_core.model.constraints import Needs
from ebbtide_core.model.types import GpuId, JobId, NodeId, SuspendMode
from ebbtide_core.views.explain import Explanation, explain

from tests.core.lab import DONE, Lab, registration
from tests.core.lifecycle.test_swaps import away, swapped, swapper


def explained(lab: Lab, job: Job) -> Explanation:
    return explain(lab.cluster.state, job, lab.now, lab.cluster.policy)


@pytest.fixture
def lab() -> Lab:
    return Lab("fifo", gpus=4)


def test_a_job_behind_others_is_told_how_many(lab: Lab) -> None:
    lab.running(4)
    lab.submit(1)
    lab.submit(1)
    assert explained(lab, lab.submit(2)).ahead == 2


def test_there_is_room_once_those_have_ended_whose_time_limits_come_first(lab: Lab) -> None:
    long = lab.running(2, time_limit_s=1000.0)
    short = lab.running(2, time_limit_s=100.0)
    waiting = explained(lab, lab.submit(2))
    assert waiting.room_at == pytest.approx(short.attempts[0].started + 100)
    assert waiting.basis == f"once job {short.id} and the jobs that end before it have ended"
    assert explained(lab, lab.submit(3)).room_at == pytest.approx(long.attempts[0].started + 1000)


def test_nothing_is_promised_if_nothing_tells_when_the_others_end(lab: Lab) -> None:
    lab.running(4)
    waiting = explained(lab, lab.submit(1))
    assert waiting.room_at is None
    assert waiting.basis == "not known: no estimate says when 1 of the 1 jobs that run will end"


def test_progress_tells_how_long_another_job_still_runs(lab: Lab) -> None:
    running = lab.running(4)
    started = running.attempts[0].started
    lab.wait(98.0)
    lab.progress(running, 50)  # of 100, after 100 seconds
    room_at = explained(lab, lab.submit(1)).room_at
    assert room_at == pytest.approx(started + 200, abs=5)


def test_earlier_runs_of_the_same_script_tell_how_long_a_job_is(lab: Lab) -> None:
    first = lab.running(1, name="train")
    lab.wait(59.0)
    lab.end(first, DONE)
    waiting = explained(lab, lab.submit(1, name="train", hold=True))
    assert waiting.remaining_from is EstimateSource.EARLIER_RUNS
    assert waiting.remaining_s == pytest.approx(60, abs=5)


def test_each_node_says_what_is_in_the_way() -> None:
    lab = Lab("fifo", nodes="", gpus=2)
    lab.tell(registration("a", 2, cpus=4.0))
    lab.tell(registration("b", 1))
    lab.running(2)
    views = {view.node: view for view in explained(lab, lab.submit(2, cpus=8.0)).nodes}
    assert (views["a"].idle, views["a"].gpus, views["a"].obstacle) == (0, 2, "too few CPUs left")
    assert (views["b"].idle, views["b"].gpus, views["b"].obstacle) == (1, 1, "too few GPUs left")


def test_a_node_without_gpus_is_not_too_small_for_a_job_that_needs_none() -> None:
    lab = Lab(nodes="")
    lab.tell(registration("a", 0))
    lab.running(0, cpus=32.0)
    [node] = explained(lab, lab.submit(0, cpus=1.0)).nodes
    assert node.obstacle == "too few CPUs left"


def test_a_node_without_gpus_has_none_for_a_job_that_needs_one() -> None:
    lab = Lab("fifo", nodes="")
    lab.tell(registration("a", 0))
    lab.tell(registration("b", 1))
    lab.running(1)
    views = {view.node: view.obstacle for view in explained(lab, lab.submit(1)).nodes}
    assert views == {"a": "no GPUs", "b": "too few GPUs left"}


def test_for_a_job_in_host_memory_only_its_own_gpu_counts() -> None:
    lab = Lab(gpus=1)
    job, _ = away(lab, cpus=20.0)
    lab.tell(registration("b", 1))
    views = {view.node: view.obstacle for view in explained(lab, job).nodes}
    elsewhere = "it can go on only on GPU a0 of node a"
    assert views == {"a": "GPU a0 is taken", "b": elsewhere}
    lab.tell(e.NodeDrained(node=NodeId("a"), reason="new fans"))
    assert explained(lab, job).nodes[0].obstacle == "GPU a0 is taken"
    lab.tell(e.NodeDrained(node=NodeId("a"), reason="new fans", deadline=lab.now))
    assert explained(lab, job).nodes[0].obstacle == "being drained: new fans; GPU a0 is taken"
    lab.tell(e.NodeResumed(node=NodeId("a")))
    lab.tell(e.GpuHealthChanged(NodeId("a"), GpuId("a0"), False, "Xid 79"))
    assert explained(lab, job).nodes[0].obstacle == "GPU 0 is unusable: Xid 79"
    lab.tell(e.NodeLost(NodeId("a"), 20.0))
    assert explained(lab, job).nodes[0].obstacle == "not connected"


def test_a_job_in_the_memory_of_a_drained_node_is_told_when_it_comes_back() -> None:
    lab = Lab(gpus=1)
    job = swapper(lab)
    urgent = lab.submit(te=True, time_limit_s=500.0)
    swapped(lab, job)
    lab.start(urgent)
    ends = urgent.attempts[0].started + 500.0
    lab.tell(e.NodeDrained(node=NodeId("a"), deadline=ends + 10.0))
    assert job.reason == "waiting for GPU a0 of node a, the one that it was swapped out from, which is being drained"
    seen = explained(lab, job)
    assert (seen.room_at, seen.basis) == (pytest.approx(ends), f"once job {urgent.id} has ended")
    lab.tell(e.NodeDrained(node=NodeId("a"), deadline=ends - 10.0))
    seen = explained(lab, job)
    late = f"not known: job {urgent.id} is expected to end only after the drain's deadline"
    assert (seen.room_at, seen.basis) == (None, late)


def test_a_job_in_the_memory_of_a_drained_node_is_told_if_nothing_says_when_it_comes_back() -> None:
    lab = Lab(gpus=1)
    job, _ = away(lab)
    lab.tell(e.NodeDrained(node=NodeId("a")))
    seen = explained(lab, job)
    assert (seen.room_at, seen.basis) == (None, "not known: GPU a0 is taken")


def test_a_job_in_host_memory_whose_gpu_is_booked_for_another_is_told_so() -> None:
    lab = Lab(gpus=1)
    job, urgent = away(lab)
    since, gpus = lab.now, (BookedGpu(NodeId("a"), GpuId("a0")),)
    lab.tell(e.BookingMade(booking="1", user="bob", since=since, until=since + 3600.0, gpus=gpus, window="now"))
    lab.end(urgent, DONE)
    [node] = explained(lab, job).nodes
    assert node.obstacle == "1 GPU is reserved for bob, now (reservation 1)"


def test_a_running_job_waits_for_nothing(lab: Lab) -> None:
    running = explained(lab, lab.running(1))
    assert (running.ahead, running.nodes, running.room_at) == (None, (), None)
    assert running.needs == "1 GPU"


def test_the_end_of_a_reservation_makes_room_if_nothing_else_tells(lab: Lab) -> None:
    running = lab.running(4, time_auto=True)
    reserved_s = running.attempts[0].reserved_s
    assert explained(lab, lab.submit(1)).room_at == pytest.approx(running.attempts[0].started + reserved_s)


def test_what_the_head_is_promised_under_backfill_is_what_is_explained() -> None:
    lab = Lab("fifo", gpus=4, backfill="easy")
    running = lab.running(3, time_limit_s=1000.0, grace_s=0.0)
    head = lab.submit(4)
    lab.running(1, time_limit_s=100.0, grace_s=0.0)
    assert f"at the latest when the time of job {running.id} is up" in head.reason
    assert explained(lab, head).room_at == pytest.approx(running.attempts[0].started + 1000)


def stays(lab: Lab, job: Job) -> list[tuple[str, list[str], float | None]]:
    return [(found.why.reason, list(found.jobs), found.why.until) for found in explained(lab, job).stays]


def preempted_once(lab: Lab) -> Job:
    """A job that had to leave all of the node, and is back."""
    job = lab.running(4)
    lab.submit(4, te=True)
    lab.settle()
    lab.end(lab.cluster.state.jobs[JobId("2")], DONE)
    lab.settle()
    assert job.running
    assert job.suspending.preemptions == 1
    return job


def test_who_is_spared_after_a_resume_is_told_with_the_time() -> None:
    """A trial-and-error job that waits says for whom, and until when these are spared."""
    lab = Lab("fitgpp", gpus=4)
    job = preempted_once(lab)
    urgent = lab.submit(1, te=True)
    assert urgent.reason == "waiting for 1 GPU: job 1, resumed lately, is spared for now (min_run_s)"
    until = job.attempts[-1].started + 600.0
    assert stays(lab, urgent) == [("resumed lately, min_run_s", ["1"], until)]
    lab.wait(600)
    assert job.attempts[-1].stop is not None


def test_nobody_is_named_as_spared_whose_room_would_not_help() -> None:
    lab = Lab("fitgpp", gpus=4)
    preempted_once(lab)
    lab.tell(registration("b", 8))
    lab.running(8, suspend=SuspendMode.NONE)
    assert lab.submit(8, te=True).reason == "waiting for 8 GPUs"


@pytest.mark.parametrize("policy", ["fitgpp", "lrtp", "rand"])
def test_classes_are_told(policy: str) -> None:
    lab = Lab(policy, gpus=2)
    lab.running(1, te=True)
    lab.running(1, suspend=SuspendMode.NONE)
    assert stays(lab, lab.submit(1, te=True)) == [
        ("trial-and-error, which is not preempted", ["1"], None),
        ("not preemptible", ["2"], None),
    ]
    assert stays(lab, lab.submit(1)) == [
        ("only trial-and-error jobs preempt others (ebb submit --te)", ["1", "2"], None)
    ]


@pytest.mark.parametrize("policy", ["priority", "pri"])
def test_priorities_are_told(policy: str) -> None:
    lab = Lab(policy, gpus=2)
    lab.running(2, priority=40)
    assert stays(lab, lab.submit(1, priority=42)) == [("of priority 40, which is not less urgent than 42", ["1"], None)]
    assert stays(lab, lab.submit(4, priority=1)) == []  # it may be preempted: that is no use


def test_a_policy_without_preemption_says_so() -> None:
    for lab in (Lab("fifo", gpus=1), Lab("priority", gpus=1, preemption="off")):
        lab.running(1)
        assert stays(lab, lab.submit(1)) == [("this policy suspends no job", ["1"], None)]


def test_as_often_preempted_as_the_policy_allows_is_told() -> None:
    lab = Lab("fitgpp", gpus=4, p="1", min_run_s="0")
    preempted_once(lab)
    assert stays(lab, lab.submit(1, te=True)) == [("preempted 1 times already, and p is 1", ["1"], None)]


def test_of_many_who_stay_the_first_are_named() -> None:
    lab = Lab("fitgpp", gpus=12)
    for _ in range(12):
        lab.running(1, te=True)
    [found] = explained(lab, lab.submit(1, te=True)).stays
    assert (found.many, found.jobs) == (12, [str(number) for number in range(1, 9)])


def test_only_who_is_where_the_job_could_run_is_told() -> None:
    lab = Lab("fitgpp", gpus=1)
    lab.tell(registration("b", 1, cpus=1.0))
    first = lab.running(1, te=True)
    lab.running(1, te=True)
    wanted = Needs(exclude=(NodeId("b"),))
    [found] = explained(lab, lab.submit(1, te=True, needs=wanted)).stays
    assert found.jobs == [first.id]
