"""Other policies inside of priorities: the cheapest victim and classes of FitGpp, the sticky slots of HYBRID."""

import pytest
from ebbtide_core.events import GpuHealthChanged, NodeDrained
from ebbtide_core.model.types import GpuId, JobState, NodeId, SuspendMode
from ebbtide_core.policies.registry import POLICIES, PolicyError, create_policy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.lab import DONE, Lab, gpus_of, launched, registration, stopped
from tests.drawing import share_of

A = NodeId("a")


def lab_of(nodes="a", gpus=4, **options):
    return Lab("priority", nodes, gpus, **({"min_run_s": "0"} | options))


def sticky(job):
    return job.attempts[-1].sticky


OPTIONS = [
    *[(name, {}) for name in POLICIES],
    ("fifo", {"backfill": "easy"}),
    ("fair-share", {"per": "user", "half_life_s": "3600"}),
    ("priority", {"preemption": "off"}),
    ("priority", {"backfill": "off"}),
    ("priority", {"backfill": "easy"}),
    ("priority", {"victims": "cheapest", "classes": "on"}),
    ("priority", {"sticky": "1"}),
    ("priority", {"sticky": "0.5", "victims": "cheapest", "classes": "on", "preemption": "off"}),
]
KEEPS_ITS_SIZE = ("rigid-", "moldable-")


# --- elastic jobs, under all of them ---


@pytest.mark.parametrize(
    ("policy", "options"), [pair for pair in OPTIONS if not pair[0].startswith(KEEPS_ITS_SIZE)], ids=str
)
def test_an_elastic_job_grows_into_what_is_left_and_gives_it_back_before_anybody_is_preempted(policy, options) -> None:
    known = {"resize_after_s": "0"} | ({"min_work_s": "0"} if policy.startswith("malleable-") else {})
    lab = Lab(policy, gpus=4, **known, **options)
    elastic = lab.running(1, 4, priority=50)
    lab.settle()
    assert len(gpus_of(elastic)) == 4
    other = lab.submit(2, priority=50, te=True)
    lab.settle()
    assert (len(gpus_of(elastic)), len(gpus_of(other)), elastic.suspending.preemptions) == (2, 2, 0)
    lab.end(other, DONE)
    lab.wait(1000)  # its restart has cost something, so that it is left alone for a while
    lab.settle()
    assert len(gpus_of(elastic)) == 4


# --- victims=cheapest ---


def test_of_the_least_urgent_the_cheapest_is_preempted_and_not_the_newest() -> None:
    for victims, expected in (("newest", 2), ("cheapest", 1)):
        lab = lab_of(gpus=3, victims=victims)
        jobs = [lab.running(1, priority=9, grace_s=grace) for grace in (100.0, 10.0, 300.0)]
        lab.submit(1, priority=5)
        assert stopped(lab.last) == {jobs[expected].id}, victims


def test_a_cheaper_job_that_is_more_urgent_is_left_alone() -> None:
    lab = lab_of(gpus=2, victims="cheapest")
    lab.running(1, priority=8, grace_s=0.0)
    dear = lab.running(1, priority=9, grace_s=300.0)
    lab.submit(1, priority=5)
    assert stopped(lab.last) == {dear.id}


def test_what_a_job_was_measured_to_need_counts_instead_of_its_grace_period() -> None:
    lab = lab_of(gpus=2, victims="cheapest")
    first, second = (lab.running(1, priority=9, grace_s=300.0) for _ in range(2))
    first.suspending.save_s, first.suspending.proved = 2.0, True
    lab.cluster.state.refresh(first, lab.now)
    lab.submit(1, priority=5)
    assert stopped(lab.last) == {first.id}
    assert second.state is JobState.RUNNING


# --- classes=on ---


def test_within_a_priority_a_trial_comes_first_and_preempts_the_others() -> None:
    for classes, expected in (("off", set()), ("on", {"1"})):
        lab = lab_of(gpus=1, classes=classes)
        lab.running(1, priority=9)
        lab.submit(1, priority=9)
        lab.submit(1, priority=9, te=True)
        assert stopped(lab.last) == expected, classes


def test_a_trial_takes_the_place_of_nobody_more_urgent_and_of_no_other_trial() -> None:
    lab = lab_of(gpus=2, classes="on")
    lab.running(1, priority=9, te=True)
    lab.running(1, priority=8)
    trial = lab.submit(1, priority=9, te=True)
    assert (stopped(lab.last), trial.state) == (set(), JobState.PENDING)


def test_a_more_urgent_job_preempts_the_others_of_the_least_urgent_priority_before_its_trials() -> None:
    lab = lab_of(gpus=3, classes="on")
    lab.running(1, priority=8)
    other = lab.running(1, priority=9)
    trial = lab.running(1, priority=9, te=True)
    lab.submit(1, priority=7)
    assert stopped(lab.last) == {other.id}
    lab.settle()
    lab.submit(1, priority=7)
    assert stopped(lab.last) == {trial.id}


def test_behind_a_trial_that_waits_the_others_of_its_priority_may_fill_what_it_cannot_use() -> None:
    lab = lab_of(classes="on")
    lab.running(1, suspend=SuspendMode.NONE)
    trial = lab.submit(4, te=True)
    assert lab.submit(1, te=True).state is JobState.PENDING
    assert lab.submit(1).state is JobState.STARTING
    assert trial.state is JobState.PENDING


# --- sticky slots ---


def test_who_came_first_has_the_sticky_slot_and_is_not_preempted() -> None:
    lab = lab_of(gpus=2, sticky="1")
    first, second = lab.running(1, priority=99), lab.running(1, priority=99)
    assert (sticky(first), sticky(second)) == (True, False)
    lab.submit(1, priority=1)
    assert stopped(lab.last) == {second.id}
    lab.settle()
    lab.submit(1, priority=1)
    assert stopped(lab.last) == set()


def test_a_sticky_slot_that_is_free_goes_to_the_first_to_have_come_whatever_its_priority() -> None:
    lab = lab_of(gpus=2, sticky="1")
    first = lab.running(1, priority=9)
    lab.running(1, priority=1)
    patient, urgent = lab.submit(1, priority=99), lab.submit(1, priority=2)
    lab.end(first, DONE)
    assert launched(lab.last) == {patient.id}
    assert sticky(patient)
    assert urgent.state is JobState.PENDING


def test_sticky_slots_are_kept_free_for_the_first_to_have_come_until_it_fits() -> None:
    lab = lab_of(sticky="2")
    one = lab.running(1, priority=9)
    regular = lab.running(2, priority=1, suspend=SuspendMode.NONE)
    assert (sticky(one), sticky(regular)) == (True, False)
    pair = lab.submit(2, priority=50)
    assert (lab.submit(1, priority=1).state, lab.submit(1, priority=60).state) == (JobState.PENDING,) * 2
    lab.end(one, DONE)
    assert sticky(pair)
    assert len(gpus_of(pair)) == 2


def test_an_urgent_job_does_not_use_what_is_kept_for_the_first_to_have_come() -> None:
    """Two GPUs are idle, but one of them belongs to a sticky slot that somebody waits for."""
    lab = lab_of(sticky="2")
    first = lab.running(1, priority=9)
    ones = [lab.running(1, priority=9) for _ in range(2)]
    assert [sticky(job) for job in (first, *ones)] == [True, True, False]
    pair = lab.submit(2, priority=99)
    lab.end(first, DONE)
    assert pair.state is JobState.PENDING
    assert [job.state for job in ones] == [JobState.RUNNING] * 2
    lab.submit(2, priority=5)
    assert stopped(lab.last) == {ones[1].id}


@pytest.mark.parametrize("lost", [NodeDrained(node=A), GpuHealthChanged(A, GpuId("a0"), healthy=False)])
def test_a_job_that_runs_on_what_is_out_of_service_takes_no_slot_of_the_others(lost) -> None:
    lab = lab_of(gpus=2, sticky="2")
    on_a0, on_a1 = lab.running(1), lab.running(1)
    lab.tell(lost)
    lab.tell(registration("b", 2))
    lab.end(on_a1, DONE)
    others = [lab.running(1) for _ in range(2)]
    assert (gpus_of(on_a0), [sticky(job) for job in others]) == ({"a0"}, [True, True])


@settings(max_examples=share_of(40), deadline=None, derandomize=True)
@given(steps=st.lists(st.one_of(st.integers(1, 12), st.just(0)), min_size=4, max_size=25), count=st.integers(1, 3))
def test_jobs_of_one_slot_fare_as_under_hybrid(steps, count) -> None:
    """A priority is submitted; 0: the job that was placed first is done."""
    fates = []
    for policy in ("hybrid", "priority"):
        lab = Lab(policy, gpus=4, min_run_s="0", sticky=str(count))
        jobs = []
        for step in steps:
            running = sorted((job for job in jobs if job.running), key=lambda job: job.attempts[-1].placed)
            if step:
                jobs.append(lab.submit(1, priority=step))
            elif running:
                lab.end(running[0], DONE)
            lab.settle()
        fates.append([(job.state, job.suspending.preemptions, bool(job.attempts) and sticky(job)) for job in jobs])
    assert fates[0] == fates[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sticky": "-1"}, "sticky is at least 0, not -1.0"),
        ({"sticky": "1", "backfill": "easy"}, "sticky and backfill=easy do not go together"),
        ({"victims": "all"}, "victims is one of newest, cheapest, not 'all'"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message) -> None:
    with pytest.raises(PolicyError, match=message):
        create_policy("priority", options)
