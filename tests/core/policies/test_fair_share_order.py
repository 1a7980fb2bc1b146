"""Fair shares: whose turn it is among equals, who gives way, and that it comes to rest."""

from collections import Counter
from fractions import Fraction

import pytest
from ebbtide_core.events import HoldRequested, ReleaseRequested, ResizeRequested, ResumeRequested, SuspendRequested
from ebbtide_core.model.types import WHOLE, JobState, SuspendMode
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.fair_share.granting import Granting
from ebbtide_core.planning.fair_share.groups import WAITS
from ebbtide_core.snapshot import Snapshot
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core.lab import DONE, registration, stopped
from tests.core.policies.test_fair_share import BOUND, held_by, lab_of
from tests.drawing import share_of


def test_jobs_alone_start_in_order_of_submission_whatever_their_size() -> None:
    lab = lab_of(gpus=4)
    running = lab.running(4)
    jobs = [lab.submit(gpus) for gpus in (1, 4, 2, 4)]
    lab.end(running, DONE)
    lab.settle()
    assert held_by(*[[job] for job in jobs]) == [1, 0, 2, 0]


def test_a_large_job_is_passed_by_smaller_ones_which_give_way_once_it_would_fit_without_them() -> None:
    lab = lab_of(gpus=4)
    early = [lab.running(1), lab.running(1)]
    large = lab.submit(4)
    late = [lab.running(1), lab.running(1)]
    assert stopped(lab.last) == set()
    lab.end(early[0], DONE)
    lab.settle()
    assert large.state is JobState.PENDING
    lab.end(early[1], DONE)
    lab.settle()
    assert [job.state for job in (large, *late)] == [JobState.RUNNING, JobState.SUSPENDED, JobState.SUSPENDED]
    heavy = lab.submit(1, weight=3.0)
    lab.settle()
    assert (large.state, heavy.state) == (JobState.RUNNING, JobState.PENDING)


def test_small_jobs_do_not_start_just_to_give_way() -> None:
    lab = lab_of(gpus=4)
    running = lab.running(4)
    large, small = lab.submit(4), lab.submit(1)
    lab.end(running, DONE)
    lab.settle()
    assert (large.state, small.state) == (JobState.RUNNING, JobState.PENDING)
    assert len(small.attempts) == 0


def test_who_lacks_more_jobs_of_its_share_or_is_heavier_does_not_give_way() -> None:
    for others in ({"group": "small"}, {"weight": 2.0}):
        lab = lab_of(gpus=4)
        early = [lab.running(1, **BOUND) for _ in range(2)]
        large = lab.submit(4)
        late = [lab.running(1, **others) for _ in range(2)]
        waiting = [lab.submit(1, **others) for _ in range(8)]
        for job in early:
            lab.end(job, DONE)
            lab.settle()
        assert large.state is JobState.PENDING
        assert held_by(late, waiting) == [2, 2]


def test_a_job_alone_is_as_old_as_its_submission_however_often_it_runs() -> None:
    lab = lab_of(gpus=2)
    jobs = [lab.running(1), lab.running(1), lab.submit(1)]
    lab.tell(SuspendRequested(jobs[0].id))
    lab.end(jobs[0])
    lab.start(jobs[2])
    lab.tell(ResumeRequested(jobs[0].id))
    assert [group.number for group in lab.cluster.state.pools["default"].ranking.groups.values()] == [
        jobs[1].sequence, jobs[2].sequence, jobs[0].sequence
    ]  # fmt: skip


JOBS = st.tuples(
    st.sampled_from([("1/4", "1/4"), (1, 1), (2, 2), (3, 3), (6, 6), (1, 4), ("1/2", 2), (2, 8)]),
    st.sampled_from(["", "", "x", "y", "z"]),
    st.sampled_from([0.3, 1.0, 1.0, 3.0]),
    st.sampled_from([SuspendMode.CHECKPOINT, SuspendMode.CHECKPOINT, SuspendMode.NONE]),
)


@settings(max_examples=share_of(100), deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    steps=st.lists(st.one_of(JOBS, JOBS, st.integers(0, 20)), min_size=6, max_size=25),
    per=st.sampled_from(["group", "user"]),
)
def test_shares_come_to_rest_after_any_history_and_no_gpu_gives_more_than_it_has(counts, steps, per) -> None:
    lab = lab_of("", per=per, min_run_s="0", resize_after_s="0")
    for name, count in zip("abc", counts, strict=False):
        lab.tell(registration(name, count, checkpoint_root_id="shared"))
    here = []
    for step in steps:
        running = [job for job in here if job.state is JobState.RUNNING]
        if isinstance(step, tuple):
            (low, high), group, weight, suspend = step
            here.append(lab.submit(low, high, group=group, weight=weight, suspend=suspend, max_nodes=3))
        elif running:
            lab.end(running[step % len(running)], DONE)
        lab.settle()
        parts = Counter()
        for job in here:
            for piece in job.planned or ():
                parts.update({gpu.gpu: gpu.share for gpu in piece.gpus})
        assert all(used <= WHOLE for used in parts.values())
    for _ in range(5):  # growing may have to wait until a restart is worth it
        lab.wait(1000)
        lab.settle()
    attempts = [len(job.attempts) for job in here]
    lab.wait(100_000)
    assert [len(job.attempts) for job in here] == attempts


@settings(max_examples=share_of(60), deadline=None)
@given(jobs=st.lists(JOBS, min_size=1, max_size=12), gpus=st.integers(2, 6))
def test_everybody_gets_a_turn_once_others_are_done(jobs, gpus) -> None:
    lab = lab_of(gpus=gpus, min_run_s="0", resize_after_s="0")
    here = [lab.submit(min(Fraction(low), gpus), min(Fraction(high), gpus), group=group, weight=weight, suspend=suspend)
            for (low, high), group, weight, suspend in jobs]  # fmt: skip
    for _ in jobs:
        lab.settle()
        lab.end(next(job for job in here if job.state is JobState.RUNNING), DONE)
    assert {job.state for job in here} == {JobState.COMPLETED}


def test_a_large_job_alone_is_not_passed_for_ever() -> None:
    lab = lab_of(gpus=4, min_run_s="0")
    small = [lab.running(1) for _ in range(4)]
    large = lab.submit(4)
    for _ in range(6):
        small.append(lab.submit(1))
        lab.settle()
        if large.state is JobState.RUNNING:
            return
        lab.end(next(job for job in small if job.state is JobState.RUNNING), DONE)
    pytest.fail("small jobs that came later have passed it again and again")


def test_waiting_jobs_of_a_kind_are_told_apart_once_one_is_resized_or_held() -> None:
    lab = lab_of(gpus=4)
    running = lab.running(4, **BOUND)
    jobs = [lab.submit(1, 2) for _ in range(3)]
    kinds = lab.cluster.state.pools["default"].ranking.kinds

    def waiting() -> list[int]:
        return sorted(len(line) for kind, line in kinds.items() if kind[0] == WAITS)

    assert waiting() == [3]
    lab.tell(ResizeRequested(jobs[0].id, 2 * WHOLE, 2 * WHOLE))
    assert waiting() == [1, 2]
    lab.tell(HoldRequested(jobs[0].id))
    assert waiting() == [2]
    lab.end(running, DONE)
    lab.settle()
    assert held_by(*[[job] for job in jobs]) == [0, 2, 2]


@settings(max_examples=share_of(60), deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["", "", "x", "y"]), st.sampled_from([1.0, 3.0]))),
    gpus=st.integers(3, 8),
)
@example(jobs=[(2, "x", 3.0), (3, "", 3.0), (1, "x", 1.0), (3, "", 3.0)], gpus=6)
def test_groups_of_one_kind_share_as_if_each_were_looked_at_alone(jobs, gpus) -> None:
    lab = lab_of(gpus=gpus)
    for job in [lab.submit(size, group=group, weight=weight, hold=True) for size, group, weight in jobs]:
        lab.cluster.handle(ReleaseRequested(job.id), lab.now)
    pool = lab.cluster.state.pools["default"]
    groups, snapshot = pool.ranking, Snapshot(pool, lab.now)
    together = Granting(Draft(snapshot), "group", None).grants
    groups.kinds = {(n, *kind): [entry] for kind, line in groups.kinds.items() for n, entry in enumerate(line)}
    assert together == Granting(Draft(snapshot), "group", None).grants


def test_a_job_that_is_too_large_for_what_its_group_lacks_does_not_keep_the_group_from_its_share() -> None:
    lab = lab_of(gpus=6, min_run_s="0")
    others = [lab.running(1, group="a") for _ in range(5)]
    lab.running(1, group="c")
    mine = [lab.submit(1, group="b")]
    lab.settle()
    large = lab.submit(3, group="b")
    mine += [lab.submit(1, group="b") for _ in range(8)]
    lab.settle()
    assert held_by(mine, others, [large]) == [3, 2, 0]


def test_a_group_whose_first_job_is_larger_than_its_share_has_that_by_smaller_ones() -> None:
    lab = lab_of(gpus=4, min_run_s="0")
    others = [lab.submit(1, group="a") for _ in range(8)]
    lab.settle()
    large = lab.submit(3, group="b")
    small = [lab.submit(1, group="b") for _ in range(2)]
    lab.settle()
    assert held_by(others, [large], small) == [3, 0, 1]


def test_others_give_way_to_a_large_job_of_a_group_that_has_something_but_lacks_that_job_too() -> None:
    lab = lab_of(gpus=6, min_run_s="0")
    pairs = [lab.running(2, group=group) for group in "ac"]
    mine = [lab.running(1, group="b")]
    pairs.append(lab.submit(2, group="d"))
    mine.append(lab.submit(3, group="b", hold=True))
    waiting = [lab.submit(1, group="b", hold=True) for _ in range(16)]
    for job in (mine[-1], *waiting):
        lab.cluster.handle(ReleaseRequested(job.id), lab.now)
    lab.wait(0)
    lab.settle()
    assert held_by(pairs, mine, waiting) == [2, 4, 0]
