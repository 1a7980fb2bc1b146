"""When a waiting job starts: the cluster itself goes on, on a copy."""

import pytest
from ebbtide_core import events as e
from ebbtide_core.planning.draft import jobs_text
from ebbtide_core.policies.registry import POLICIES
from ebbtide_core.views.digest import digest
from ebbtide_core.views.forecast import forecast, fork

from tests.core.lab import GIB, Lab, registration
from tests.core.lifecycle.test_swaps import swapper


def foreseen(lab, job, *changes):
    return forecast(fork(lab.cluster), job.id, lab.now, changes)


@pytest.fixture
def lab():
    return Lab("priority", gpus=4, min_run_s="0")


def test_those_ahead_are_reckoned_with(lab):
    long = lab.running(4, time_limit_s=1000.0)
    lab.submit(4, time_limit_s=500.0)
    waiting = lab.submit(1)
    seen = foreseen(lab, waiting)
    assert seen.start == pytest.approx(long.attempts[0].started + 1500, abs=5)
    assert seen.basis == "at the latest, by time limits"
    assert seen.after == (long.id,)


def test_with_another_priority_it_would_preempt_and_is_told_whom(lab):
    running = lab.running(4, time_limit_s=1000.0, grace_s=20.0)
    waiting = lab.submit(1)
    changed = e.JobChanged(waiting.id, 10, 1.0, 42, 1.0)
    seen = foreseen(lab, waiting, changed)
    assert (seen.preempted, seen.after) == ((running.id,), (running.id,))
    assert seen.start == pytest.approx(lab.now + 20.0)
    assert waiting.priority == 42, "the cluster itself is as it was"


def test_who_is_asked_to_stop_takes_as_long_as_it_was_measured_to_need(lab):
    running = lab.running(4, grace_s=100.0)
    running.suspending.save_s = 3.0
    lab.cluster.state.refresh(running, lab.now)
    seen = foreseen(lab, lab.submit(4, hold=False, priority=10))
    assert seen.start == pytest.approx(lab.now - 1 + 3.0, abs=2)


def test_a_job_in_host_memory_keeps_its_cpus_until_it_came_back_and_ended():
    lab = Lab("priority", gpus=1, min_run_s="0")
    swapper(lab, cpus=20.0, time_limit_s=1000.0)
    urgent = lab.submit(1, priority=10, time_limit_s=500.0)
    lab.tell(e.AttemptSwapped("1", 1, 1, GIB))
    lab.start(urgent)
    seen = foreseen(lab, lab.submit(0, cpus=20.0, priority=5))
    assert seen.start == pytest.approx(lab.now + 500 + 1000, abs=10)


def test_a_job_in_host_memory_comes_back_only_to_its_own_gpu():
    lab = Lab("priority", gpus=1, min_run_s="0")
    job = swapper(lab)
    urgent = lab.submit(1, priority=10)
    lab.tell(e.AttemptSwapped("1", 1, 1, GIB))
    lab.start(urgent)
    lab.tell(registration("b", 1, checkpoint_root_id="root-a"))
    seen = foreseen(lab, job)
    assert (seen.start, seen.basis) == (None, f"not known: no estimate says when job {urgent.id} ends")


def test_a_job_that_would_be_swapped_out_ends_only_after_it_came_back():
    lab = Lab("priority", gpus=1, min_run_s="0")
    swapper(lab, cpus=20.0, time_limit_s=1000.0, grace_s=20.0)
    urgent = lab.submit(1, time_limit_s=500.0)
    seen = foreseen(lab, lab.submit(0, cpus=20.0), e.JobChanged(urgent.id, 10, 1.0, 42, 1.0))
    assert seen.start == pytest.approx(lab.now + 20 + 500 + 1000, abs=10)


def test_a_job_asked_to_leave_on_its_way_back_leaves_once_it_is_there():
    lab = Lab("priority", gpus=1, min_run_s="0")
    job = swapper(lab, time_limit_s=1000.0)
    lab.tell(e.SuspendRequested(job.id))
    lab.tell(e.AttemptSwapped(job.id, 1, 1, GIB, 1.0))
    lab.tell(e.ResumeRequested(job.id))
    assert (job.live.started, job.off_gpu) == (None, False)
    lab.running(0, mem_bytes=2 * GIB, cpus=1.0, time_limit_s=1000.0)
    lab.submit(1, priority=10, time_limit_s=500.0)
    assert job.live.stop is not None
    assert foreseen(lab, lab.submit(0, cpus=32.0, priority=60)).start == pytest.approx(lab.now + 500 + 1000, abs=10)


def test_a_job_that_may_run_for_ever_is_named(lab):
    running = lab.running(4)
    seen = foreseen(lab, lab.submit(1))
    assert seen.start is None
    assert seen.basis == f"not known: no estimate says when job {running.id} ends"


def test_of_many_that_may_run_for_ever_the_first_are_named(lab):
    first, second = lab.running(2), lab.running(1)
    assert foreseen(lab, lab.submit(4)).basis == f"not known: no estimate says when jobs {first.id} and {second.id} end"
    assert jobs_text(["3", "4", "5"]) == "jobs 3, 4 and 5"
    assert jobs_text([str(number) for number in range(9)]) == "jobs 0, 1, 2, 3 and 5 more"


def test_a_held_job_does_not_start_by_itself(lab):
    held = lab.submit(1, hold=True)
    assert foreseen(lab, held).basis == f"not before 'ebb release {held.id}': held by user"


def test_progress_tells_when_another_job_ends_even_if_it_is_stopped_in_between(lab):
    slow = lab.running(4)
    lab.wait(98.0)
    lab.progress(slow, 50)  # of 100, after 100 seconds
    lab.submit(4, priority=10, time_limit_s=30.0)
    seen = foreseen(lab, lab.submit(4, priority=60))
    # The first has 100 seconds to go, and steps aside for 30, with its grace period of three minutes.
    assert seen.start == pytest.approx(lab.now + 100 + 30 + 180, abs=15)


def test_room_that_an_elastic_job_gives_back_is_no_idle_room():
    lab = Lab("fitgpp", gpus=4)
    elastic = lab.running(1, 4)
    seen = foreseen(lab, lab.submit(1))
    assert (seen.basis, seen.after) == (f"once job {elastic.id} has given up GPUs", ())


def test_a_job_that_may_run_for_ever_is_named_once_however_often_it_is_resized():
    lab = Lab("malleable-equipartition", gpus=4)
    endless = lab.running(1, 4)
    lab.submit(1, 2, work_s=300.0)
    seen = foreseen(lab, lab.submit(4))
    assert seen.basis == f"not known: no estimate says when job {endless.id} ends"


@pytest.mark.parametrize("policy", list(POLICIES))
def test_a_copy_goes_its_own_way_under_every_policy(policy):
    lab = Lab(policy, nodes="ab", gpus=4)
    for size in (1, 2, "1/2", 4, 3, 1):
        lab.submit(size, time_limit_s=600.0)
    waiting = lab.submit(4, time_limit_s=60.0)
    before = digest(lab.cluster.state)
    copy = fork(lab.cluster)
    assert digest(copy.state) == before
    forecast(copy, waiting.id, lab.now)
    assert digest(lab.cluster.state) == before
    lab.wait(1.0)
