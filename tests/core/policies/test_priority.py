"""Priorities with preemption and backfill (seed 003)."""

from collections import Counter

import pytest
from ebbtide_core.events import ReleaseRequested, ResizeRequested
from ebbtide_core.model.types import WHOLE, JobState, SuspendMode

from tests.core.lab import DONE, GIB, Lab, gpus_of, launched, registration, stopped

NOTEBOOK = {"suspend": SuspendMode.NONE}


def lab_of(nodes="a", gpus=2, **options):
    return Lab("priority", nodes, gpus, **options)


# --- the seed's worked example, on 8 GPUs ---


class Example:
    """The seven steps, told as the seed tells them; experiments are known by name."""

    def __init__(self, **options):
        self.lab = lab_of(gpus=8, **options)
        self.jobs = {}

    def submits(self, name, priority, gpus, count=1, **spec):
        self.jobs[name] = [self.lab.submit(gpus, priority=priority, **spec) for _ in range(count)]
        self.lab.settle()

    def completes(self, name):
        for job in self.jobs[name]:
            while not job.state.finished:
                self.lab.end(job, DONE)
                self.lab.settle()

    def completes_first(self, name, count):
        """So many of its running trials are done."""
        for _ in range(count):
            self.lab.end(next(job for job in self.jobs[name] if job.state is JobState.RUNNING), DONE)
            self.lab.settle()

    @property
    def gpus(self):
        held = Counter()
        for name, jobs in self.jobs.items():
            held[name] += sum(len(gpus_of(job)) for job in jobs)
        return {name: count for name, count in held.items() if count}


def test_the_seven_steps_of_the_seed() -> None:
    example = Example()
    steps = [
        ("1", lambda: example.submits("asha", 2, 1, count=20), {"asha": 8}),
        ("2", lambda: example.submits("large", 1, 4), {"asha": 4, "large": 4}),
        ("3", lambda: example.submits("notebook", 3, 1, **NOTEBOOK), {"asha": 4, "large": 4}),
        ("3, with 5 trials left", lambda: example.completes_first("asha", 15), {"asha": 4, "large": 4}),
        ("3, with 4 left", lambda: example.completes_first("asha", 1), {"asha": 4, "large": 4}),
        ("3, with 3 left", lambda: example.completes_first("asha", 1), {"asha": 3, "large": 4, "notebook": 1}),
        ("4", lambda: (example.completes("asha"), example.completes("large")), {"notebook": 1}),
        ("5", lambda: example.submits("whole", 1, 8), {"notebook": 1}),
        ("6", lambda: example.submits("half", 2, 4), {"notebook": 1, "half": 4}),
        ("7", lambda: example.completes("notebook"), {"whole": 8}),
        ("7, afterwards", lambda: example.completes("whole"), {"half": 4}),
    ]
    for step, do, expected in steps:
        do()
        assert example.gpus == expected, f"step {step}"
    assert {job.suspending.preemptions for job in example.jobs["notebook"] + example.jobs["whole"]} == {0}
    assert [job.suspending.preemptions for job in example.jobs["half"]] == [1]


def test_without_preemption_the_large_experiment_of_step_2_waits_until_the_trials_need_4_gpus() -> None:
    example = Example(preemption="off")
    example.submits("asha", 2, 1, count=20)
    example.submits("large", 1, 4)
    for left in range(19, 4, -1):
        example.completes_first("asha", 1)
        assert example.gpus == {"asha": min(8, left)}
    example.completes_first("asha", 1)
    assert example.gpus == {"asha": 4, "large": 4}


# --- order ---


def test_the_most_urgent_job_starts_first_and_equal_ones_in_order_of_submission() -> None:
    lab = lab_of(gpus=1)
    running = lab.running(1, priority=1)
    jobs = [lab.submit(1, priority=priority) for priority in (9, 5, 5, 7)]
    started = []
    for _ in jobs:
        lab.end(running, DONE)
        [running] = [job for job in jobs if job.state is JobState.STARTING]
        lab.start(running)
        started.append(jobs.index(running))
    assert started == [1, 2, 3, 0]


def test_those_that_were_preempted_keep_their_place_by_submission() -> None:
    lab = lab_of(gpus=1)
    first = lab.running(1, priority=5)
    urgent = lab.submit(1, priority=1)
    lab.settle()
    second = lab.submit(1, priority=5)
    more_urgent = lab.submit(1, priority=4)
    lab.end(urgent, DONE)
    lab.settle()
    assert more_urgent.state is JobState.RUNNING
    lab.end(more_urgent, DONE)
    assert launched(lab.last) == {first.id}
    assert second.state is JobState.PENDING


# --- preemption ---


def test_equally_urgent_jobs_never_preempt_each_other() -> None:
    lab = lab_of(gpus=1)
    lab.running(1, priority=5)
    second = lab.submit(1, priority=5)
    assert stopped(lab.last) == set()
    assert second.reason == "waiting for 1 GPU"


def test_the_least_urgent_job_is_preempted_first_and_of_these_the_newest() -> None:
    lab = lab_of(gpus=4)
    jobs = [lab.running(1, priority=priority) for priority in (7, 9, 9, 8)]
    lab.submit(1, priority=5)
    assert stopped(lab.last) == {jobs[2].id}


def test_one_victim_is_preferred_to_several_equally_urgent_ones() -> None:
    lab = lab_of(gpus=4)
    pair = lab.running(2, priority=9)
    lab.running(1, priority=9)
    lab.running(1, priority=9)
    lab.submit(2, priority=5)
    assert stopped(lab.last) == {pair.id}


def test_two_of_the_least_urgent_jobs_are_preferred_to_one_that_is_more_urgent() -> None:
    lab = lab_of(gpus=4)
    lab.running(2, priority=8)
    ones = [lab.running(1, priority=9) for _ in range(2)]
    lab.submit(2, priority=5)
    assert stopped(lab.last) == {job.id for job in ones}


def test_only_what_is_needed_is_preempted_and_only_on_one_node() -> None:
    """Determined preempts all that it looked at until the job fits, on nodes that do not help, too."""
    lab = lab_of("abc", gpus=4)
    jobs = [lab.running(1, priority=9) for _ in range(12)]
    big = lab.submit(3, priority=5)
    victims = [job for job in jobs if job.id in stopped(lab.last)]
    assert len(victims) == 3
    assert len({job.attempts[-1].allocation.node_ids for job in victims}) == 1
    lab.settle()
    assert len(gpus_of(big)) == 3


def test_a_victim_of_the_least_urgent_priority_that_does_not_help_is_left_alone() -> None:
    lab = lab_of(gpus=2)
    lab.tell(registration("b", 4))
    useless = lab.running(2, priority=99)
    useful = lab.running(4, priority=50)
    assert [job.attempts[-1].allocation.node_ids for job in (useless, useful)] == [("a",), ("b",)]
    lab.submit(4, priority=5)
    assert stopped(lab.last) == {useful.id}


def test_nobody_is_preempted_for_a_job_that_could_not_start_even_so() -> None:
    lab = lab_of(gpus=4)
    lab.running(1, priority=9)
    lab.running(1, priority=99, **NOTEBOOK)
    big = lab.submit(4, priority=1)
    assert stopped(lab.last) == set()
    assert big.reason == "waiting for 4 GPUs"


def test_room_that_is_being_freed_for_a_job_is_not_freed_twice() -> None:
    lab = lab_of(gpus=4)
    jobs = [lab.running(2, priority=9) for _ in range(2)]
    lab.submit(1, priority=5)
    assert stopped(lab.last) == {jobs[1].id}
    lab.submit(1, priority=5)
    assert stopped(lab.last) == set()


def test_who_waits_for_room_that_is_being_freed_gives_it_up_to_a_more_urgent_job() -> None:
    lab = lab_of(gpus=1)
    victim = lab.running(1, priority=9)
    urgent = lab.submit(1, priority=5)
    most_urgent = lab.submit(1, priority=1)
    assert stopped(lab.last) == set()
    lab.end(victim)
    assert launched(lab.last) == {most_urgent.id}
    assert urgent.state is JobState.PENDING


def test_gpu_memory_and_cpus_count_when_victims_are_chosen() -> None:
    lab = lab_of(gpus=2)
    lab.running("1/2", priority=50, gpu_mem_bytes=30 * GIB)
    cpus = lab.running("1/2", priority=50, gpu_mem_bytes=8 * GIB, cpus=30.0)
    lab.running(1, priority=60, suspend=SuspendMode.NONE)
    assert lab.submit("1/2", priority=5, gpu_mem_bytes=GIB, cpus=8.0).state is JobState.PENDING
    assert stopped(lab.last) == {cpus.id}


def test_surplus_is_taken_back_before_anybody_is_preempted() -> None:
    lab = lab_of(gpus=4, resize_after_s="0")
    elastic = lab.running(1, 3, priority=9)
    lab.running(1, priority=99)
    lab.settle()
    lab.submit(2, priority=5)
    lab.settle()
    assert len(gpus_of(elastic)) == 1
    assert elastic.suspending.preemptions == 0


def test_a_resumed_job_is_spared_for_a_while() -> None:
    lab = lab_of(gpus=1, min_run_s="600")
    low = lab.running(1, priority=9)
    urgent = lab.submit(1, priority=5)
    lab.settle()
    lab.end(urgent, DONE)
    lab.settle()
    lab.submit(1, priority=5)
    assert stopped(lab.last) == set()
    assert lab.wakes[-1][1] == pytest.approx(low.attempts[-1].started + 600)
    lab.wait(600)
    assert stopped(lab.last) == {low.id}


def test_a_gang_preempts_on_several_nodes_all_that_it_needs_or_nobody() -> None:
    lab = lab_of("abc", gpus=2)
    jobs = [lab.running(1, priority=9) for _ in range(6)]
    gang = lab.submit(4, priority=5, max_nodes=2)
    assert len(stopped(lab.last)) == 4
    assert launched(lab.last) == set()
    lab.settle()
    assert len(gpus_of(gang)) == 4
    assert len(gang.attempts[-1].allocation.node_ids) == 2
    other = lab.submit(5, priority=4, max_nodes=3, **NOTEBOOK)
    lab.settle()
    assert len(gpus_of(other)) == 5
    assert lab.submit(4, priority=1, max_nodes=2).state is JobState.PENDING
    assert stopped(lab.last) == set()  # one GPU is all that could be freed
    assert sum(job.suspending.preemptions for job in jobs) == 5 - 1 + 1


# --- backfill ---


def blocked_head(**options):
    """A notebook and a job that cannot start beside it, with three idle GPUs."""
    lab = lab_of(gpus=4, **options)
    notebook = lab.running(1, priority=50, **NOTEBOOK)
    head = lab.submit(4, priority=5)
    return lab, notebook, head


def test_less_urgent_jobs_use_what_a_blocked_one_cannot_and_go_when_it_can_start() -> None:
    lab, notebook, head = blocked_head()
    filler = lab.running(2, priority=9)
    lab.end(notebook, DONE)
    assert filler.state is JobState.SUSPENDING
    lab.settle()
    assert (head.state, filler.state) == (JobState.RUNNING, JobState.SUSPENDED)


def test_equally_urgent_jobs_do_not_pass_a_blocked_one() -> None:
    lab, _, _ = blocked_head()
    assert lab.submit(1, priority=5).state is JobState.PENDING


def test_of_two_that_are_blocked_neither_is_passed_by_its_equals() -> None:
    lab, _, _ = blocked_head()
    second = lab.submit(4, priority=9)
    assert lab.submit(1, priority=9).state is JobState.PENDING
    assert lab.submit(1, priority=10).state is JobState.STARTING
    assert second.state is JobState.PENDING


def test_with_preemption_a_job_that_could_not_be_preempted_is_no_backfill() -> None:
    lab, _, _ = blocked_head()
    assert lab.submit(1, priority=9, **NOTEBOOK).state is JobState.PENDING


def test_without_preemption_all_less_urgent_jobs_may_pass() -> None:
    """Determined backfills only with preemption, and only what can be preempted."""
    lab, notebook, head = blocked_head(preemption="off")
    jobs = [lab.submit(1, priority=9), lab.submit(1, priority=9, **NOTEBOOK)]
    assert [job.state for job in jobs] == [JobState.STARTING] * 2
    lab.settle()
    lab.end(notebook, DONE)
    assert stopped(lab.last) == set()
    assert head.state is JobState.PENDING


def test_with_backfill_off_a_blocked_job_blocks_all_behind_it() -> None:
    lab, notebook, head = blocked_head(backfill="off")
    filler = lab.submit(1, priority=99)
    assert filler.state is JobState.PENDING
    lab.end(notebook, DONE)
    assert (head.state, filler.state) == (JobState.STARTING, JobState.PENDING)


def test_others_start_in_the_pass_in_which_somebody_is_asked_to_step_aside() -> None:
    """Determined starts nothing less urgent then."""
    lab = lab_of(gpus=2)
    lab.running(2, priority=9)
    lab.tell(registration("b", 1))
    jobs = [lab.submit(gpus, priority=priority, hold=True) for gpus, priority in ((2, 5), (1, 50))]
    for job in jobs:
        lab.cluster.handle(ReleaseRequested(job.id), lab.now)
    lab.wait(0)
    assert (len(stopped(lab.last)), launched(lab.last)) == (1, {jobs[1].id})


# --- jobs without GPUs ---


def test_jobs_without_gpus_block_nobody_and_are_not_blocked() -> None:
    lab, _, head = blocked_head(backfill="off")
    assert lab.submit(0, priority=99).state is JobState.STARTING
    lab.submit(0, priority=1, cpus=32.0)  # there are no 32 left for it once this one runs
    cpus = lab.submit(0, priority=1, cpus=31.0)
    assert cpus.state is JobState.PENDING
    assert head.reason == "waiting for 4 GPUs"
    lab = lab_of(gpus=1)
    lab.running(0, priority=9, cpus=20.0)
    waiting = lab.submit(0, priority=9, cpus=20.0)
    assert (waiting.state, waiting.reason) == (JobState.PENDING, "waiting for CPUs only")
    assert lab.submit(1, priority=10, cpus=1.0).state is JobState.STARTING


def test_jobs_without_gpus_preempt_only_their_like() -> None:
    lab = lab_of(gpus=2)
    lab.running(1, priority=90, cpus=20.0)
    low = lab.running(0, priority=50, cpus=10.0)
    assert lab.submit(0, priority=5, cpus=32.0).state is JobState.PENDING
    assert stopped(lab.last) == set()
    lab.submit(0, priority=5, cpus=8.0)
    assert stopped(lab.last) == {low.id}


def test_a_size_that_is_changed_while_a_job_waits_counts_at_once() -> None:
    lab = lab_of(gpus=2)
    lab.running(1, priority=1)
    big = lab.submit(2)
    lab.tell(ResizeRequested(big.id, WHOLE, WHOLE))
    assert launched(lab.last) == {big.id}
