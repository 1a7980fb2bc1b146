"""Jobs that disturb each other on one GPU: found by their speeds, taken apart, and kept apart."""

from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.job.job import Job
from ebbtide_core.job.meter import TOGETHER, WINDOW_S
from ebbtide_core.model.types import JobState, ProgressFacts, StopCause, SuspendMode
from ebbtide_core.policies.registry import POLICIES
from ebbtide_core.resources.anti_affinity import APART_S
from ebbtide_core.views.explain import explain
from ebbtide_core.views.narrate import narrate

from tests.core.lab import DONE, GIB, Lab, gpus_of

LONG = 2 * TOGETHER * WINDOW_S


def train(lab: Lab, seconds: float, *speeds: tuple[Job, float]) -> None:
    """The jobs report what they have done, each at its steps per second, every second, as long as they run."""
    for _ in range(int(seconds)):
        lab.now += 1.0
        for job, per_s in speeds:
            if job.running:
                step = (job.measured.progress.step if job.measured.progress else 0) + per_s
                report = e.ProgressReported(job.id, len(job.attempts), ProgressFacts(int(step), 10**6))
                commands = lab.cluster.handle(report, lab.now)
                lab.journal += [(lab.now, command.event) for command in commands if hasattr(command, "event")]
    lab.wait(0)


def pair(lab: Lab, second: dict[str, Any] | None = None) -> tuple[Job, Job]:
    """Two jobs on quarters of one GPU. Of each, or of its script, it is known that alone it makes 8 steps a second."""
    one = lab.running("1/4", name="one")
    train(lab, LONG, (one, 8))
    lab.tell(e.SuspendRequested(one.id))
    lab.end(one)
    earlier = lab.running("1/4", name="two")
    train(lab, LONG, (earlier, 8))
    lab.end(earlier, DONE)
    lab.tell(e.ResumeRequested(one.id))
    lab.start(one)
    train(lab, LONG, (one, 8))
    return one, lab.running("1/4", name="two", **(second or {}))


def found(lab: Lab) -> list[e.InterferenceFound]:
    return [event for _, event in lab.journal if isinstance(event, e.InterferenceFound)]


def test_two_that_only_take_turns_stay_together() -> None:
    lab = Lab(gpus=1)
    one, two = pair(lab)
    train(lab, LONG, (one, 4), (two, 4))
    assert found(lab) == []
    assert (one.state, two.state) == (JobState.RUNNING, JobState.RUNNING)


def test_where_two_get_on_worse_than_in_turns_the_newcomer_is_suspended_and_the_first_recovers() -> None:
    lab = Lab(gpus=1)
    one, two = pair(lab)
    train(lab, LONG, (one, 3), (two, 2))
    [event] = found(lab)
    assert (event.job, event.others, event.speeds) == (two.id, (one.id,), (0.25, 0.375))
    assert (two.state, two.attempts[-1].stop.cause) == (JobState.SUSPENDING, StopCause.INTERFERENCE)
    assert two.reason == (
        f"suspended until there is room elsewhere: beside job {one.id} it got on worse than in turns: "
        "all together at 0.62 of the speed of one alone"
    )
    assert "0.25 + 0.38 of their speeds alone" in narrate(event)
    lab.end(two)
    lab.wait(600)
    assert (one.state, two.state, two.live) == (JobState.RUNNING, JobState.SUSPENDED, None)
    assert two.reason == f"suspended until there is room apart from job {one.id}"
    assert explain(lab.cluster.state, two, lab.now).ahead == 0


def test_it_goes_on_as_soon_as_the_other_is_done() -> None:
    lab = Lab(gpus=1)
    one, two = pair(lab)
    train(lab, LONG, (one, 3), (two, 2))
    lab.end(two)
    lab.end(one, DONE)
    assert (two.state, len(two.attempts)) == (JobState.STARTING, 2)


def test_with_room_on_another_gpu_it_moves_there() -> None:
    lab = Lab(gpus=2)
    blocker = lab.running(1, name="whole")
    one, two = pair(lab)
    lab.end(blocker, DONE)
    assert gpus_of(one) == gpus_of(two)
    train(lab, LONG, (one, 3), (two, 2))
    assert two.reason.startswith(f"moved: beside job {one.id}")
    lab.end(two)
    lab.start(two)
    assert (two.state, gpus_of(one) & gpus_of(two)) == (JobState.RUNNING, set())
    train(lab, LONG, (one, 8), (two, 8))
    assert len(found(lab)) == 1


def test_who_was_suspended_holds_up_nobody_in_the_queue() -> None:
    lab = Lab("fifo", gpus=1)
    one, two = pair(lab)
    train(lab, LONG, (one, 3), (two, 2))
    lab.end(two)
    third = lab.submit("1/4", name="three")
    assert (two.state, third.state) == (JobState.SUSPENDED, JobState.STARTING)


def test_their_scripts_are_not_put_together_again_for_a_day() -> None:
    lab = Lab(gpus=1)
    one, two = pair(lab)
    train(lab, LONG, (one, 3), (two, 2))
    lab.end(two)
    lab.tell(e.CancelRequested(two.id))
    again = lab.submit("1/4", name="two")
    assert again.state is JobState.PENDING
    assert "kept apart from job 1" in again.reason
    view = explain(lab.cluster.state, again, lab.now).nodes[0]
    assert view.obstacle == f"kept apart from job {one.id}"
    lab.wait(APART_S)
    assert again.state is JobState.STARTING


def test_two_that_are_kept_apart_are_not_started_together_either() -> None:
    lab = Lab(gpus=1)
    one, two = pair(lab)
    train(lab, LONG, (one, 3), (two, 2))
    lab.end(two)
    lab.tell(e.CancelRequested(two.id))
    lab.end(one, DONE)
    first, second = (lab.submit("1/4", name=name, hold=True) for name in ("one", "two"))
    for job in (first, second):
        lab.cluster.handle(e.ReleaseRequested(job.id), lab.now)
    lab.wait(0)
    assert {first.state, second.state} == {JobState.STARTING, JobState.PENDING}


@pytest.mark.parametrize("policy", [*POLICIES])
def test_every_policy_keeps_them_apart(policy: str) -> None:
    lab = Lab(policy, gpus=1)
    one, two = pair(lab)
    train(lab, LONG, (one, 3), (two, 2))
    lab.end(two)
    lab.wait(1000)
    assert (one.state, two.state) == (JobState.RUNNING, JobState.SUSPENDED)
    lab.end(one, DONE)
    assert two.state is JobState.STARTING


def test_one_that_cannot_save_lies_in_host_memory_until_the_other_is_done() -> None:
    lab = Lab(gpus=2)
    blocker = lab.running(1, name="whole")
    one, two = pair(lab, second={"suspend": SuspendMode.SWAP})
    lab.end(blocker, DONE)
    train(lab, LONG, (one, 3), (two, 2))
    lab.tell(e.AttemptSwapped(two.id, 1, 1, GIB, 1.0))
    lab.wait(1000)
    assert (two.state, two.attempts[-1].off_gpu) == (JobState.SUSPENDED, True)
    lab.end(one, DONE)
    assert two.attempts[-1].swap.returning_since is not None


def test_without_a_speed_alone_nothing_happens() -> None:
    lab = Lab(gpus=1)
    one = lab.running("1/4", name="one")
    two = lab.running("1/4", name="two")
    train(lab, 10 * LONG, (one, 3), (two, 2))
    assert found(lab) == []


def test_one_bad_moment_is_not_enough() -> None:
    lab = Lab(gpus=1)
    one, two = pair(lab)
    train(lab, 2 * WINDOW_S, (one, 1), (two, 1))
    train(lab, LONG, (one, 6), (two, 6))
    assert found(lab) == []


def test_who_may_not_be_suspended_stays_and_the_other_leaves() -> None:
    lab = Lab(gpus=1)
    one, two = pair(lab, second={"suspend": SuspendMode.NONE})
    train(lab, LONG, (one, 3), (two, 2))
    assert (one.state, two.state) == (JobState.SUSPENDING, JobState.RUNNING)


def test_among_those_who_may_not_be_suspended_nothing_happens() -> None:
    lab = Lab(gpus=1)
    one = lab.running("1/4", name="one", suspend=SuspendMode.NONE)
    train(lab, LONG, (one, 8))
    two = lab.running("1/4", name="one", suspend=SuspendMode.NONE)
    train(lab, LONG, (one, 2), (two, 2))
    assert found(lab) == []


def test_a_new_master_keeps_them_apart() -> None:
    lab = Lab(gpus=1)
    one, two = pair(lab)
    train(lab, LONG, (one, 3), (two, 2))
    lab.end(two)
    again = Cluster(lab.cluster.policy)
    for now, event in lab.journal:
        again.replay(event, now)
    again.handle(e.SchedulingDue(), lab.now)
    assert again.state.jobs[two.id].state is JobState.SUSPENDED
    assert again.state.displaced == {two.id: True}


def test_of_three_the_last_one_leaves_and_the_others_stay() -> None:
    lab = Lab(gpus=1)
    one, two = pair(lab)
    train(lab, LONG, (one, 4), (two, 4))
    three = lab.running("1/4", name="one")
    train(lab, LONG, (one, 2), (two, 2), (three, 2))
    [event] = found(lab)
    assert (event.job, event.others) == (three.id, (one.id, two.id))
    assert (one.state, two.state) == (JobState.RUNNING, JobState.RUNNING)


@pytest.mark.parametrize("policy", ["fair-share", "moldable-equipartition", "rigid-fcfs", "rigid-shortest", "tide"])
def test_only_the_script_that_is_kept_apart_waits_where_jobs_may_pass_each_other(policy: str) -> None:
    lab = Lab(policy, gpus=1)
    running, earlier = lab.running("1/2", name="one"), lab.running("1/2", name="two")
    waiting = lab.submit("1/2", name="two"), lab.submit("1/2", name="three")
    lab.cluster.state.add_anti_affinity(running, earlier, lab.now + APART_S)
    lab.end(earlier, DONE)
    lab.settle()
    assert [job.state for job in waiting] == [JobState.PENDING, JobState.RUNNING]
