"""Nobody is preempted who need not be, whatever the policy that says so and the state in which it looks."""

from unittest.mock import patch

import pytest
from ebbtide_core.model.types import JobState, SuspendMode
from ebbtide_core.planning.draft import Draft
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.lab import DONE, GIB, Lab, registration
from tests.drawing import share_of

NOW = {"min_run_s": "0", "resize_after_s": "0"}
"""Nobody is spared."""
SIZES = [(1, 1), (1, 1), (2, 2), (3, 3), (4, 4), (6, 6), (1, 4), ("1/2", 2), ("1/4", "1/4"), ("1/2", "1/2")]
SUBMITS = st.fixed_dictionaries(
    {
        "gpus": st.sampled_from(SIZES),
        "te": st.booleans(),
        "priority": st.integers(1, 6),
        "group": st.sampled_from(["", "", "x", "y"]),
        "weight": st.sampled_from([1.0, 1.0, 3.0]),
        "gpu_mem_bytes": st.sampled_from([0, 0, 10 * GIB]),
        "cpus": st.sampled_from([0.0, 0.0, 8.0, 20.0]),
        "grace_s": st.sampled_from([1.0, 30.0, 300.0]),
        "max_nodes": st.sampled_from([1, 3]),
        "suspend": st.sampled_from([SuspendMode.CHECKPOINT, SuspendMode.CHECKPOINT, SuspendMode.NONE]),
    }
)
STEPS = st.lists(st.one_of(SUBMITS, SUBMITS, SUBMITS, st.integers(0, 20)), min_size=8, max_size=25)
NODES = st.lists(st.sampled_from([4, 3, 2, 1]), min_size=1, max_size=3)


class Watch:
    """Looks on while drafts are made: how many jobs are preempted for another, and who of them need not be."""

    def __init__(self):
        self.useless = []
        self.sets = []
        self._evict, self._place = Draft.evict, Draft.place
        self._had = {}

    def evict(self, draft, job, reason, for_job):
        self._had.setdefault((draft, for_job), []).append((job, draft.allocation(job)))
        self._evict(draft, job, reason, for_job)

    def place(self, draft, job, allocation, reason, claim=False, *, sticky=False):
        victims = self._had.pop((draft, job.id), [])
        for victim, had in victims:
            draft.trial.take(had)
            if draft.trial.find(job, job.gpus_min) is not None:
                self.useless.append((job.id, victim.id, [other.id for other, _ in victims]))
            draft.trial.give(had)
        self.sets += [len(victims)] if victims else []
        self._place(draft, job, allocation, reason, claim, sticky=sticky)

    def __enter__(self):
        watch = self
        self._patches = [
            patch.object(Draft, "evict", lambda draft, *args: watch.evict(draft, *args)),
            patch.object(Draft, "place", lambda draft, *args, **kwargs: watch.place(draft, *args, **kwargs)),
        ]
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *exc):
        for one in self._patches:
            one.stop()


def run(lab, counts, steps):
    """Take the steps: jobs come, and end, or what was decided comes about."""
    for name, count in zip("abc", counts, strict=False):
        lab.tell(registration(name, count, checkpoint_root_id="shared"))
    for step in steps:
        jobs = [job for job in lab.cluster.state.jobs.values() if job.state is JobState.RUNNING]
        if isinstance(step, dict):
            low, high = step["gpus"]
            lab.submit(low, high, **{name: value for name, value in step.items() if name != "gpus"})
        elif step > 12 and jobs:
            lab.end(jobs[step % len(jobs)], DONE)
        if not isinstance(step, int) or step % 2:
            lab.settle()


policies = pytest.mark.parametrize("policy", ["fitgpp", "priority", "fair-share", "pri", "pri-limit"])


@pytest.mark.replaces
@policies
@settings(max_examples=share_of(60), deadline=None)
@given(counts=NODES, steps=STEPS)
def test_each_of_those_who_are_preempted_for_a_job_is_needed(policy, counts, steps) -> None:
    with Watch() as watch:
        run(Lab(policy, "", **NOW), counts, steps)
    assert watch.useless == []


@pytest.mark.replaces
@policies
def test_a_gang_takes_the_room_of_no_more_than_it_needs_on_all_nodes_together(policy) -> None:
    plain = {"priority": 4, "suspend": SuspendMode.CHECKPOINT}
    with Watch() as watch:
        lab = Lab(policy, "", **NOW)
        run(lab, [3, 3, 2], [{"gpus": (1, 1), "priority": 1}, {"gpus": (1, 1), **plain}, 1])
        run(lab, [], [{"gpus": (4, 4), "max_nodes": 3, **plain}, {"gpus": (6, 6), "max_nodes": 3, "priority": 1}, 1])
    assert watch.useless == []


SMALL = st.tuples(
    st.sampled_from(["1/4", "1/2", 1, 1, 2]),
    st.fixed_dictionaries({"priority": st.integers(2, 6), "grace_s": st.sampled_from([1.0, 30.0, 300.0])}),
)


@pytest.mark.replaces
@policies
@settings(max_examples=share_of(100), deadline=None)
@given(nodes=st.sampled_from(["a", "ab"]), small=st.lists(SMALL, min_size=8, max_size=24), gpus=st.integers(2, 4))
def test_each_of_many_small_jobs_that_make_room_for_a_large_one_is_needed(policy, nodes, small, gpus) -> None:
    lab = Lab(policy, nodes, gpus=4, **NOW)
    for size, spec in small:
        lab.submit(size, group="small", **spec)
    lab.settle()
    with Watch() as watch:
        lab.submit(gpus, te=True, priority=1, weight=9.0)
    assert watch.useless == []


@settings(max_examples=share_of(60), deadline=None)
@given(counts=NODES, steps=STEPS, p=st.integers(0, 2))
def test_fitgpp_preempts_nobody_more_often_than_p(counts, steps, p) -> None:
    lab = Lab("fitgpp", "", p=str(p), **NOW)
    run(lab, counts, steps)
    assert all(job.suspending.preemptions <= p for job in lab.cluster.state.jobs.values())


@pytest.mark.replaces
@settings(max_examples=share_of(60), deadline=None)
@given(counts=NODES, steps=STEPS)
def test_with_fallback_wait_fitgpp_preempts_one_job_for_another(counts, steps) -> None:
    with Watch() as watch:
        run(Lab("fitgpp", "", fallback="wait", **NOW), counts, steps)
    assert set(watch.sets) <= {1}
