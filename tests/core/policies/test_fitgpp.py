"""FitGpp: who steps aside for a trial-and-error job (seed 000, Eq. 1 and 2)."""

import pytest
from ebbtide_core.events import CancelRequested, SuspendRequested
from ebbtide_core.model.types import HeldBy, JobState, SuspendMode
from ebbtide_core.policies.registry import PolicyError, create_policy

from tests.core.lab import DONE, GIB, Lab, gpus_of, launched, stopped


def test_a_trial_that_fits_preempts_nobody() -> None:
    lab = Lab(gpus=2)
    lab.running(1)
    trial = lab.submit(1, te=True)
    assert trial.state is JobState.STARTING
    assert stopped(lab.last) == set()


def test_the_victim_keeps_its_gpus_until_they_are_proven_free() -> None:
    lab = Lab(gpus=1)
    victim = lab.running(1)
    trial = lab.submit(1, te=True)
    assert stopped(lab.last) == {victim.id}
    assert victim.state is JobState.SUSPENDING
    lab.exit(victim)
    assert victim.state is JobState.SUSPENDED
    assert trial.state is JobState.PENDING
    lab.free(victim)
    assert trial.state is JobState.STARTING
    assert gpus_of(trial) == {"a0"}


def test_the_victim_goes_back_to_the_head_of_the_queue_and_resumes() -> None:
    lab = Lab(gpus=1)
    victim = lab.running(1)
    later = lab.submit(1)
    trial = lab.submit(1, te=True)
    lab.end(victim)
    lab.start(trial)
    lab.end(trial, exit=DONE)
    assert victim.state is JobState.STARTING
    assert later.state is JobState.PENDING
    assert len(victim.attempts) == 2
    assert victim.suspending.preemptions == 1


def test_the_job_with_the_shorter_grace_period_steps_aside() -> None:
    lab = Lab(gpus=2)
    slow = lab.running(1, grace_s=600.0)
    quick = lab.running(1, grace_s=30.0)
    lab.submit(1, te=True)
    assert stopped(lab.last) == {quick.id}
    assert slow.state is JobState.RUNNING


def test_with_equal_grace_the_smaller_job_steps_aside() -> None:
    lab = Lab(gpus=4)
    big = lab.running(3)
    small = lab.running(1)
    lab.submit(1, te=True)
    assert stopped(lab.last) == {small.id}
    assert big.state is JobState.RUNNING


def test_with_s_zero_only_size_counts() -> None:
    lab = Lab(gpus=4, s="0")
    lab.running(3, grace_s=1.0)
    small = lab.running(1, grace_s=900.0)
    lab.submit(1, te=True)
    assert stopped(lab.last) == {small.id}


def test_a_victim_must_make_room_alone_if_one_can() -> None:
    lab = Lab(gpus=4)
    lab.running(1, grace_s=1.0)
    lab.running(1, grace_s=1.0)
    pair = lab.running(2, grace_s=600.0)
    lab.submit(2, te=True)
    assert stopped(lab.last) == {pair.id}


def test_room_counts_what_is_free_on_the_victims_node() -> None:
    lab = Lab(gpus=4)
    victim = lab.running(1)
    lab.running(2, te=True)
    lab.submit(2, te=True)
    assert stopped(lab.last) == {victim.id}


def test_if_nobody_alone_makes_room_the_cheapest_minimal_set_of_one_node_steps_aside() -> None:
    lab = Lab(nodes="ab", gpus=2)
    jobs = [lab.running(1, grace_s=grace) for grace in (60.0, 60.0, 10.0, 10.0)]
    cheap = {job.id for job in jobs if job.spec.grace_s == 10.0}
    lab.submit(2, te=True)
    assert stopped(lab.last) == cheap


def test_with_fallback_wait_the_paper_rule_waits_if_nobody_alone_makes_room() -> None:
    lab = Lab(gpus=2, fallback="wait")
    lab.running(1)
    lab.running(1)
    trial = lab.submit(2, te=True)
    assert stopped(lab.last) == set()
    assert trial.reason == "waiting for 2 GPUs"


def test_a_job_is_preempted_at_most_p_times() -> None:
    lab = Lab(gpus=1, p="1")
    victim = lab.running(1)
    first = lab.submit(1, te=True)
    lab.end(victim)
    lab.start(first)
    lab.end(first, exit=DONE)
    lab.start(victim)
    lab.wait(10_000)
    lab.submit(1, te=True)
    assert stopped(lab.last) == set()
    assert victim.state is JobState.RUNNING


def test_a_resumed_job_is_spared_for_ten_minutes_and_the_policy_looks_again_then() -> None:
    lab = Lab(gpus=1)
    victim = lab.running(1)
    first = lab.submit(1, te=True)
    lab.end(victim)
    lab.start(first)
    lab.end(first, exit=DONE)
    lab.start(victim)
    lab.submit(1, te=True)
    assert stopped(lab.last) == set()
    lab.wait(601)
    assert stopped(lab.last) == {victim.id}


def test_nobody_is_preempted_twice_for_the_same_trial() -> None:
    lab = Lab(gpus=2)
    lab.running(1)
    lab.running(1)
    lab.submit(1, te=True)
    assert len(stopped(lab.last)) == 1
    for _ in range(3):
        lab.wait(1)
        assert stopped(lab.last) == set()


def test_room_being_freed_for_a_trial_is_not_given_to_anybody_else() -> None:
    lab = Lab(gpus=1)
    victim = lab.running(1)
    trial = lab.submit(1, te=True)
    lab.exit(victim)
    other = lab.submit(1)
    lab.free(victim)
    assert launched(lab.last) == {trial.id}
    assert other.state is JobState.PENDING


def test_a_trial_starts_elsewhere_if_other_room_is_free_sooner() -> None:
    lab = Lab(gpus=2)
    lab.running(1, grace_s=600.0, suspend=SuspendMode.NONE)
    other = lab.running(1, grace_s=600.0)
    trial = lab.submit(1, te=True)
    assert stopped(lab.last) == {other.id}
    first = lab.cluster.state.jobs[other.id]
    quick = next(job for job in lab.cluster.state.jobs.values() if job is not first and job is not trial)
    lab.end(quick, exit=DONE)
    assert trial.state is JobState.STARTING
    assert gpus_of(trial).isdisjoint(gpus_of(other))


def test_a_preemptor_that_is_cancelled_gives_its_room_back() -> None:
    lab = Lab(gpus=1)
    victim = lab.running(1)
    trial = lab.submit(1, te=True)
    lab.tell(CancelRequested(trial.id))
    assert trial.state is JobState.CANCELLED
    lab.end(victim)
    assert victim.state is JobState.STARTING


def test_nobody_grows_into_what_a_waiting_trial_will_need() -> None:
    lab = Lab(gpus=4, resize_after_s="0")
    ending, _ = (lab.running(1, suspend=SuspendMode.NONE) for _ in range(2))
    elastic = lab.running(1, 4)
    trial = lab.submit(4, te=True)
    lab.end(ending, DONE)
    assert (trial.state, elastic.state) == (JobState.PENDING, JobState.RUNNING)
    lab.tell(CancelRequested(trial.id))
    assert stopped(lab.last) == {elastic.id}  # now it grows


def test_jobs_that_must_not_be_suspended_and_trials_are_no_victims() -> None:
    lab = Lab(gpus=2)
    lab.running(1, te=True)
    lab.running(1, suspend=SuspendMode.NONE)
    trial = lab.submit(1, te=True)
    assert stopped(lab.last) == set()
    assert trial.state is JobState.PENDING


def test_trials_wait_in_line_before_best_effort_jobs() -> None:
    lab = Lab(gpus=1, fallback="wait")
    blocker = lab.running(1, te=True)
    best_effort = lab.submit(1)
    trial = lab.submit(1, te=True)
    lab.end(blocker, exit=DONE)
    assert trial.state is JobState.STARTING
    assert best_effort.state is JobState.PENDING


def test_room_is_checked_per_gpu_not_by_sums() -> None:
    lab = Lab(gpus=2)
    lab.running("1/2", suspend=SuspendMode.NONE)
    whole = lab.running(1)
    trial = lab.submit(1, te=True)
    assert stopped(lab.last) == {whole.id}
    lab.end(whole)
    assert trial.state is JobState.STARTING


def test_gpu_memory_counts_for_jobs_that_share() -> None:
    lab = Lab(gpus=1)
    lab.running("1/4", gpu_mem_bytes=30 * GIB)
    second = lab.submit("1/4", gpu_mem_bytes=20 * GIB)
    assert second.state is JobState.PENDING
    third = lab.submit("1/4", gpu_mem_bytes=5 * GIB, te=True)
    assert third.state is JobState.STARTING


def test_a_held_victim_stays_suspended() -> None:
    lab = Lab(gpus=1)
    victim = lab.running(1)
    trial = lab.submit(1, te=True)
    lab.tell(SuspendRequested(victim.id))
    lab.end(victim)
    lab.start(trial)
    lab.end(trial, exit=DONE)
    assert victim.state is JobState.SUSPENDED
    assert victim.held_by is HeldBy.USER


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"s": "-1"}, "s is at least 0"),
        ({"s": "nan"}, "s is at least 0"),
        ({"s": "x"}, "s takes a number"),
        ({"q": "1"}, "fitgpp has no 'q'"),
        ({"fallback": "never"}, "fallback is one of multi, wait"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        create_policy("fitgpp", options)
