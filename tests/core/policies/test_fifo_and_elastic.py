"""Strict FIFO, and the elastic stage that follows every rigid policy."""

from ebbtide_core.events import NodeLost, ResizeRequested
from ebbtide_core.model.types import WHOLE, JobState, NodeId
from hypothesis import given
from hypothesis import strategies as st

from tests.core.lab import DONE, Lab, gpus_of, launched, stopped, wake_times


def test_the_head_of_the_line_blocks() -> None:
    lab = Lab("fifo", gpus=2)
    lab.running(1)
    big = lab.submit(2)
    small = lab.submit(1)
    assert big.state is JobState.PENDING
    assert small.state is JobState.PENDING
    assert big.reason == "waiting for 2 GPUs"


def test_jobs_start_in_order_of_submission() -> None:
    lab = Lab("fifo", gpus=1)
    first = lab.running(1)
    second, third = lab.submit(1), lab.submit(1)
    lab.end(first, DONE)
    assert second.state is JobState.STARTING
    assert third.state is JobState.PENDING


def test_a_rigid_job_takes_the_fullest_node_that_fits() -> None:
    lab = Lab("fifo", nodes="ab", gpus=4)
    lab.running(2)
    job = lab.running(1)
    assert job.attempts[0].allocation.node_ids == (NodeId("a"),)


def test_fractions_share_a_gpu_before_another_is_opened() -> None:
    lab = Lab("fifo", gpus=2)
    jobs = [lab.running("1/4") for _ in range(4)]
    assert {gpu for job in jobs for gpu in gpus_of(job)} == {"a0"}
    assert gpus_of(lab.running("1/2")) == {"a1"}


def test_an_elastic_job_starts_on_all_idle_gpus_within_its_range() -> None:
    lab = Lab("fifo", gpus=4)
    lab.running(1)
    assert gpus_of(lab.running(1, 8)) == {"a1", "a2", "a3"}


def test_idle_gpus_are_shared_out_evenly_among_elastic_jobs_that_start_together() -> None:
    lab = Lab("fifo", gpus=4)
    first = lab.running(4)
    one, other = lab.submit(1, 4), lab.submit(1, 4)
    lab.end(first, DONE)
    assert len(gpus_of(one)) == len(gpus_of(other)) == 2


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20)), min_size=1, max_size=5))
def test_what_is_left_is_shared_out_as_if_one_gpu_after_the_other_went_to_the_job_with_fewest(
    ranges: list[tuple[int, int]],
) -> None:
    lab = Lab("fifo", gpus=24)
    first = lab.running(24)
    jobs = [lab.submit(least, least + more) for least, more in ranges]
    lab.end(first, DONE)
    expected = [least for least, _ in ranges]
    growing = [index for index, (_, more) in enumerate(ranges) if more]
    while growing and sum(expected) < 24:
        index = min(growing, key=lambda index: (expected[index], index))
        expected[index] += 1
        if expected[index] == sum(ranges[index]):
            growing.remove(index)
    assert [len(gpus_of(job)) for job in jobs] == expected
    assert len({gpu for job in jobs for gpu in gpus_of(job)}) == sum(expected)


def test_a_waiting_job_shrinks_an_elastic_one_instead_of_waiting() -> None:
    lab = Lab("fifo", gpus=4, resize_after_s="0")
    elastic = lab.running(1, 4)
    job = lab.submit(1)
    assert stopped(lab.last) == {elastic.id}
    lab.end(elastic)
    assert (elastic.suspending.resizes, elastic.suspending.preemptions) == (1, 0)
    assert launched(lab.last) == {elastic.id, job.id}
    assert len(gpus_of(elastic)) == 3  # not smaller than it had to be
    assert elastic.suspensions[0].reason.startswith("making room for job 2")


def test_a_trial_shrinks_an_elastic_job_before_it_preempts_anyone() -> None:
    lab = Lab("fitgpp", gpus=4)
    rigid = lab.running(1, grace_s=1.0)
    elastic = lab.running(1, 3, grace_s=600.0)
    lab.submit(1, te=True)
    assert stopped(lab.last) == {elastic.id}
    assert rigid.state is JobState.RUNNING


def test_an_elastic_job_grows_only_after_it_has_run_long_enough() -> None:
    lab = Lab("fifo", gpus=4, resize_after_s="60")
    rigid = lab.running(3)
    elastic = lab.running(1, 4)
    lab.end(rigid, DONE)
    assert stopped(lab.last) == set()
    assert lab.cluster.state.jobs[elastic.id].state is JobState.RUNNING
    lab.wait(60)
    assert stopped(lab.last) == {elastic.id}
    lab.end(elastic)
    assert len(gpus_of(elastic)) == 4


def test_the_core_asks_to_be_woken_when_an_elastic_job_may_grow() -> None:
    lab = Lab("fifo", gpus=2, resize_after_s="60")
    rigid = lab.running(1)
    elastic = lab.running(1, 2)
    started = elastic.attempts[0].started
    assert started is not None
    lab.end(rigid, DONE)
    assert started + 60 in [time for _, time in lab.wakes]


def test_a_resize_waits_for_ten_times_what_a_restart_has_cost() -> None:
    lab = Lab("fifo", gpus=2, resize_after_s="0")
    elastic = lab.running(1, 2)
    job = lab.submit(1)
    lab.end(elastic)
    lab.wait(29)
    lab.start(elastic)  # it took 1 s to step aside, and 30 s to come back
    lab.start(job)
    lab.end(job, DONE)
    lab.wait(200)
    assert stopped(lab.last) == set()
    lab.wait(130)
    assert stopped(lab.last) == {elastic.id}


def test_a_user_resizes_a_running_job_and_it_keeps_its_gpus_until_the_new_size_fits() -> None:
    lab = Lab("fifo", gpus=3)
    job = lab.running(1)
    other = lab.running(2)
    lab.tell(ResizeRequested(job.id, 2 * WHOLE, 2 * WHOLE))
    assert job.state is JobState.RUNNING
    assert job.reason == "running; waiting for 2 GPUs to resize"
    lab.end(other, DONE)
    assert stopped(lab.last) == {job.id}
    lab.end(job)
    assert len(gpus_of(job)) == 2


def test_a_user_shrinks_a_running_job_at_once() -> None:
    lab = Lab("fifo", gpus=4)
    job = lab.running(4)
    lab.tell(ResizeRequested(job.id, WHOLE, WHOLE))
    assert stopped(lab.last) == {job.id}
    lab.end(job)
    assert len(gpus_of(job)) == 1


def test_nothing_is_placed_on_a_node_that_is_lost() -> None:
    lab = Lab("fifo", nodes="ab", gpus=1)
    lab.tell(NodeLost(NodeId("a"), 20.0))
    job = lab.running(1)
    assert gpus_of(job) == {"b0"}
    assert lab.submit(1).state is JobState.PENDING


def test_nothing_wakes_the_core_when_nothing_is_to_come() -> None:
    lab = Lab("fifo", gpus=1)
    lab.running(1)
    assert wake_times(lab.last) == []
