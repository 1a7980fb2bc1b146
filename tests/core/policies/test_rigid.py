"""Rigid FCFS and Rigid Shortest, the baselines of seed 001."""

from ebbtide_core.events import ProgressReported, ReleaseRequested, ResizeRequested
from ebbtide_core.model.types import WHOLE, JobState, ProgressFacts

from tests.core.lab import DONE, GIB, Lab, gpus_of, launched, stopped


def test_a_job_that_does_not_fit_is_passed_over() -> None:
    lab = Lab("rigid-fcfs", gpus=2)
    lab.running(1)
    big = lab.submit(2)
    small = lab.submit(1)
    assert big.reason == "waiting for 2 GPUs"
    assert (big.state, small.state) == (JobState.PENDING, JobState.STARTING)


def test_those_that_fit_start_in_order_of_arrival() -> None:
    lab = Lab("rigid-fcfs", gpus=2)
    first = lab.running(2)
    jobs = [lab.submit(1) for _ in range(3)]
    lab.end(first, DONE)
    assert [job.state for job in jobs] == [JobState.STARTING, JobState.STARTING, JobState.PENDING]


def test_an_elastic_job_gets_its_greatest_size_or_waits() -> None:
    lab = Lab("rigid-fcfs", gpus=4)
    first = lab.running(1)
    elastic = lab.submit(1, 4)
    assert (elastic.state, elastic.reason) == (JobState.PENDING, "waiting for 4 GPUs")
    lab.end(first, DONE)
    assert len(gpus_of(elastic)) == 4


def test_an_elastic_job_that_asks_for_more_than_there_is_gets_all_there_is() -> None:
    lab = Lab("rigid-fcfs", nodes="ab", gpus=2)
    assert len(gpus_of(lab.submit(1, 8))) == 2
    gang = Lab("rigid-fcfs", nodes="ab", gpus=2)
    assert len(gpus_of(gang.submit(1, 8, max_nodes=2))) == 4


def test_nobody_is_resized_but_by_their_user() -> None:
    lab = Lab("rigid-fcfs", gpus=4)
    elastic = lab.running(1, 4)
    lab.wait(1000)
    lab.submit(1)
    assert stopped(lab.last) == set()
    lab.tell(ResizeRequested(elastic.id, WHOLE, WHOLE))
    assert stopped(lab.last) == {elastic.id}


def test_a_size_that_is_changed_while_a_job_waits_counts_at_once() -> None:
    lab = Lab("rigid-fcfs", gpus=2)
    lab.running(1)
    first, second = lab.submit(2), lab.submit(2)
    lab.tell(ResizeRequested(second.id, WHOLE, WHOLE))
    assert launched(lab.last) == {second.id}
    assert first.state is JobState.PENDING


def test_a_share_starts_although_no_gpu_is_idle() -> None:
    lab = Lab("rigid-fcfs", gpus=1)
    lab.running("1/2")
    whole = lab.submit(1)
    assert lab.submit("1/2").state is JobState.STARTING
    assert lab.submit(0).state is JobState.STARTING
    assert whole.state is JobState.PENDING


def test_gpu_memory_is_a_constraint() -> None:
    lab = Lab("rigid-fcfs", gpus=1)
    lab.running("1/4", gpu_mem_bytes=30 * GIB)
    assert lab.submit("1/4", gpu_mem_bytes=11 * GIB).state is JobState.PENDING
    assert lab.submit("1/4", gpu_mem_bytes=8 * GIB).state is JobState.STARTING


def test_the_shortest_job_goes_first_and_those_of_unknown_work_last() -> None:
    lab = Lab("rigid-shortest", gpus=1)
    running = lab.running(1)
    unknown = lab.submit(1)
    long, short, middle = (lab.submit(1, work_s=work) for work in (900.0, 100.0, 500.0))
    started = []
    for _ in range(4):
        lab.end(running, DONE)
        [running] = [job for job in (unknown, long, short, middle) if job.state is JobState.STARTING]
        lab.start(running)
        started.append(running)
    assert started == [short, middle, long, unknown]


def test_the_time_limit_and_progress_tell_how_long_a_job_is() -> None:
    lab = Lab("rigid-shortest", gpus=1)
    half = lab.running(1)
    lab.wait(1000)
    lab.tell(ProgressReported(half.id, 1, ProgressFacts(50, 100)))  # as much again is to come
    lab.end(half)
    assert half.state is JobState.STARTING
    lab.start(half)
    longer, shorter = (lab.submit(1, time_limit_s=limit) for limit in (1500.0, 900.0))
    lab.end(half)
    assert shorter.state is JobState.STARTING
    lab.start(shorter)
    lab.end(shorter, DONE)
    assert half.state is JobState.STARTING
    assert longer.state is JobState.PENDING


def test_equally_short_jobs_start_in_order_of_arrival() -> None:
    lab = Lab("rigid-shortest", gpus=1)
    running = lab.running(1)
    first, second = lab.submit(1, work_s=60.0), lab.submit(1, work_s=60.0)
    lab.end(running, DONE)
    assert (first.state, second.state) == (JobState.STARTING, JobState.PENDING)


def test_the_shortest_first_changes_its_mind_with_a_size() -> None:
    lab = Lab("rigid-shortest", gpus=2)
    lab.running(1)
    job = lab.submit(2, work_s=60.0)
    lab.tell(ResizeRequested(job.id, WHOLE, WHOLE))
    assert job.state is JobState.STARTING


def test_two_tasks_of_the_paper_run_one_after_the_other() -> None:
    """Seed 001 §VI-A: p = 2 and v = 4 each on two processors; flow times 2 and 4, 3 on average."""
    lab = Lab("rigid-fcfs", gpus=2)
    first = lab.submit(1, 2, work_s=4.0)
    second = lab.submit(1, 2, work_s=4.0)
    assert len(gpus_of(first)) == 2
    assert second.state is JobState.PENDING
    lab.end(first, DONE)
    assert len(gpus_of(second)) == 2


def test_shares_that_start_in_the_same_pass_leave_the_other_gpus_free() -> None:
    lab = Lab("rigid-fcfs", gpus=2)
    jobs = [lab.submit(share, hold=True) for share in ("1/2", "1/2", 1)]
    for job in jobs:
        lab.cluster.handle(ReleaseRequested(job.id), lab.now)
    lab.wait(0)
    assert [job.state for job in jobs] == [JobState.STARTING] * 3
