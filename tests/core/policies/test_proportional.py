"""Moldable and Malleable Proportional (seed 001, §IV-B)."""

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from ebbtide_core.estimates.work import LINEAR, Speedup
from ebbtide_core.events import AttemptExited, AttemptPlaced, AttemptStarted, ProgressReported, StopRequested
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import (
    WHOLE,
    Allocation,
    JobState,
    NodeAllocation,
    ProgressFacts,
    StopCause,
    SuspendMode,
    gpus,
)
from ebbtide_core.planning.seats import sizes
from ebbtide_core.policies.proportional import closest, in_proportion
from ebbtide_core.policies.registry import PolicyError, create_policy
from ebbtide_core.snapshot import Snapshot
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.core.lab import DONE, GIB, Lab, gpus_of, registration, stepped_aside, stopped
from tests.core.policies.equipartition import PAPER, released, shares, together
from tests.drawing import share_of

HOUR = 3600.0
SUBLINEAR = Speedup(((WHOLE, 1.0), (2 * WHOLE, 1.5), (4 * WHOLE, 2.0)))


def moldable(gpus: int, nodes: str = "a") -> Lab:
    return Lab("moldable-proportional", nodes, gpus)


def malleable(gpus: int, nodes: str = "a", **options: str) -> Lab:
    return Lab("malleable-proportional", nodes, gpus, **(PAPER | options))


def with_work(lab: Lab, low: float | str, high: float | str, *works: float, **spec: Any) -> list[Job]:
    """Jobs of a range that have so many GPU hours to do, and are looked at in the same pass."""
    return released(lab, [lab.submit(low, high, hold=True, work_s=work * HOUR, **spec) for work in works])


# --- one size ---


@given(
    low=st.sampled_from([WHOLE // 4, WHOLE // 16, WHOLE, 3 * WHOLE]),
    more=st.integers(0, 9),
    work=st.floats(1, 1e6),
    target=st.floats(1, 1e6),
    speedup=st.sampled_from([LINEAR, SUBLINEAR]),
)
def test_the_size_is_the_one_whose_run_time_is_closest_to_the_target(
    low: int, more: int, work: float, target: float, speedup: Speedup
) -> None:
    choices = sizes(low, max(low, more * WHOLE))
    best = min(abs(work / speedup(size) - target) for size in choices)
    chosen = closest(choices, work, target, speedup)
    assert chosen in choices
    assert abs(work / speedup(chosen) - target) <= best + 1e-6 * target


def test_of_two_sizes_equally_close_the_smaller_is_taken() -> None:
    assert closest((WHOLE, 3 * WHOLE), 3.0, 2.0, LINEAR) == WHOLE  # 3 s or 1 s, for 2 s
    assert closest((WHOLE, 2 * WHOLE), 0.0, 1.0, LINEAR) == WHOLE


def test_more_gpus_that_gain_nothing_are_not_taken() -> None:
    assert closest((4 * WHOLE, 8 * WHOLE), 100.0, 1.0, SUBLINEAR) in (4 * WHOLE, 8 * WHOLE)
    assert closest((4 * WHOLE, 8 * WHOLE), 2.0, 1.0, SUBLINEAR) == 4 * WHOLE


# --- the three cases ---


CASES: dict[str, tuple[int, tuple[str, int], list[float], list[float | str]]] = {
    "1: smallest sizes as much as there is: these": (2, ("1", 4), [9, 1], [1, 1]),
    "1: more than there is: in order of arrival": (1, ("1/2", 4), [1, 9, 9], ["1/2", "1/2", 0]),
    "2: greatest sizes no more than the vacant GPUs: these": (4, ("1", 2), [9, 1], [2, 2]),
    "3: in proportion": (8, ("1", 8), [6, 2], [6, 2]),
    "3: all would end together": (8, ("1/4", 8), [1, 2, 4, 1], [1, 2, 4, 1]),
    "3: shares of a GPU": (1, ("1/4", 1), [2, 1, 1], ["1/2", "1/4", "1/4"]),
    "3: no less than they need": (4, ("1", 4), [97, 1, 2], [2, 1, 1]),
    "3: no more than they may": (6, ("1", 4), [97, 1], [4, 1]),
    "3: rounding leaves somebody less, never nothing": (2, ("1/4", 2), [5, 5, 1], [1, "1/2", "1/4"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_three_cases(case: str) -> None:
    count, (low, high), works, expected = CASES[case]
    wanted = [Fraction(each) for each in expected]
    assert shares(with_work(moldable(count), low, high, *works)) == wanted
    assert shares(with_work(malleable(count), low, high, *works)) == wanted


def test_of_equal_work_who_came_first_has_more() -> None:
    assert shares(with_work(moldable(3), "1", 3, 5, 5)) == [2, 1]


def test_the_speedup_counts() -> None:
    lab = moldable(6)
    lab.cluster.state.speedup = SUBLINEAR
    # The target is 6 h / 6 = 1 h: 4 h of work take 2 h on four GPUs or more, 2 h take 1 h on four.
    assert shares(with_work(lab, "1", 6, 4, 2)) == [4, 2]


def test_jobs_of_unknown_work_are_taken_for_the_mean_of_the_others_or_an_hour() -> None:
    lab = moldable(6)
    jobs = [lab.submit(1, 6, hold=True, work_s=work) for work in (1.0 * HOUR, None, 3.0 * HOUR)]
    assert shares(released(lab, jobs)) == [1, 2, 3]
    lab = moldable(4)
    assert shares(together(lab, (1, 4), (1, 4))) == [2, 2]


def test_memory_is_a_constraint() -> None:
    lab = moldable(1)
    big, small = with_work(lab, "1/4", "1/2", 2, 1, gpu_mem_bytes=25 * GIB)
    assert shares([big, small]) == [Fraction(1, 2), 0]
    assert small.reason == "waiting for 1/4 GPU with 25 GiB"


# --- moldable and malleable ---


def test_those_that_run_are_left_alone_by_the_moldable_policy() -> None:
    lab = moldable(4)
    first = lab.running(1, 4, work_s=HOUR)
    second = lab.submit(1, 4, work_s=3 * HOUR)
    assert shares([first, second]) == [4, 0]
    assert stopped(lab.last) == set()


def test_the_malleable_policy_counts_the_work_that_is_left() -> None:
    lab = malleable(8)
    first = lab.running(1, 8, work_s=16 * HOUR)
    lab.wait(1.5 * HOUR)  # on 8 GPUs: 4 hours are left
    second = lab.submit(1, 8, work_s=4 * HOUR)
    assert stopped(lab.last) == {first.id}
    lab.settle()
    assert shares([first, second]) == [4, 4]


def test_a_job_whose_size_stays_is_not_touched() -> None:
    lab = malleable(8)
    first, second = with_work(lab, "1", 8, 4, 4)
    attempts = [len(job.attempts) for job in (first, second)]
    lab.wait(600)
    assert [len(job.attempts) for job in (first, second)] == attempts
    assert shares([first, second]) == [4, 4]


def test_the_reason_says_what_is_known_of_the_work_and_from_where() -> None:
    lab = malleable(4)
    declared = lab.running(1, 4, work_s=2 * HOUR)
    unknown = lab.submit(1, 4)
    assert "in proportion to the 2 GPU hours that it has left, declared by its submitter: 4 GPUs to" in declared.reason
    assert unknown.reason == "in proportion to its work, which is unknown"
    lab = malleable(4)
    reporting = lab.running(1, 4)
    lab.wait(HOUR)
    lab.tell(ProgressReported(reporting.id, 1, ProgressFacts(50, 100)))
    reason = in_proportion(Snapshot(lab.cluster.state.pools["default"], lab.now), reporting)
    assert reason == "in proportion to the 4 GPU hours that it has left, from its progress"


def test_jobs_with_little_work_left_or_that_may_not_be_suspended_keep_what_they_have() -> None:
    lab = malleable(6, min_work_s="300")
    fixed = lab.running(2, suspend=SuspendMode.NONE, work_s=9 * HOUR)
    short = lab.running(1, 2, work_s=200.0)
    long = lab.running(1, 6, work_s=9 * HOUR)
    lab.settle()
    late = lab.submit(1, 6, work_s=9 * HOUR)
    lab.settle()
    assert shares([fixed, short, long, late]) == [2, 2, 1, 1]


def test_equal_jobs_do_not_take_turns() -> None:
    lab = malleable(8, gain_restarts="1")
    jobs = with_work(lab, "1", 8, 5, 5, 5)
    assert sorted(shares(jobs)) == [2, 3, 3]
    attempts = [len(job.attempts) for job in jobs]
    for _ in range(20):
        lab.wait(100)
        lab.settle()
    assert [len(job.attempts) for job in jobs] == attempts


@given(
    began=st.floats(8e7, 1e8), took=st.floats(1, 1000), work=st.floats(1, 10), sizes=st.permutations(list(range(1, 9)))
)
def test_restarts_that_take_no_time_change_nothing_of_what_is_left(
    began: float, took: float, work: float, sizes: list[int]
) -> None:
    """Else rounding errors would decide between equally good sizes, each time otherwise, and forever."""
    lab = malleable(8)
    lab.now = began
    [job] = with_work(lab, 1, 8, work)
    lab.now += took
    left = []
    for size in sizes:
        restart(lab, job, size)
        left.append(lab.cluster.state.pools["default"].ranking.left(job, lab.now))
    assert set(left[1:]) == {left[1]}


def restart(lab: Lab, job: Job, size: int) -> None:
    """End the attempt, and start the next with ``size`` GPUs, all at the same moment."""
    number, [piece] = len(job.attempts), job.attempts[-1].allocation.nodes
    gpus = lab.cluster.state.nodes[piece.node].entire.gpus[:size]
    allocation = Allocation((NodeAllocation(piece.node, gpus, piece.cpus, piece.mem_bytes),))
    for event in (
        StopRequested(job.id, number, StopCause.RESIZED, 0.0, "another size"),
        AttemptExited(job.id, number, stepped_aside(), freed=True),
        AttemptPlaced(job.id, number + 1, allocation, "another size"),
        AttemptStarted(job.id, number + 1, 1),
    ):
        lab.cluster.replay(event, lab.now)


def test_wrong_options_are_named() -> None:
    with pytest.raises(PolicyError, match="min_work_s is at least 0 and finite, not nan"):
        create_policy("malleable-proportional", {"min_work_s": "nan"})


# --- any history ---


def reference(count: int, jobs: list[tuple[int, int, float]]) -> list[int]:
    """Whole GPUs for each, step by step, as the paper says."""
    lows = [low for low, _, _ in jobs]
    if sum(lows) >= count:
        given, left = [], count
        for low in lows:
            given.append(low if low <= left else 0)
            left -= given[-1]
        return given
    if sum(high for _, high, _ in jobs) <= count:
        return [high for _, high, _ in jobs]
    target = sum(work for _, _, work in jobs) / count
    given, left = [0] * len(jobs), count
    order = sorted(range(len(jobs)), key=lambda k: -jobs[k][2])
    for place, k in enumerate(order):
        low, high, work = jobs[k]
        wanted = min(range(low, high + 1), key=lambda p: (round(abs(work / p - target), 6), p))
        given[k] = min(wanted, left - sum(lows[other] for other in order[place + 1 :]))
        left -= given[k]
    return given


STEPS = st.lists(
    st.tuples(st.sampled_from(["submit", "submit", "end"]), st.integers(1, 3), st.integers(0, 6), st.integers(1, 90)),
    max_size=12,
)


@settings(max_examples=share_of(60), deadline=None)
@given(count=st.integers(1, 8), steps=STEPS)
def test_after_any_history_everybody_has_what_the_paper_says(
    count: int, steps: list[tuple[str, int, int, int]]
) -> None:
    lab = malleable(count)
    here: list[Job] = []
    for what, low, more, work in steps:
        running = [job for job in here if job.state is JobState.RUNNING]
        if what == "submit":
            low = min(low, count)
            # So much, and so odd, that what is done meanwhile changes neither the order nor any size.
            here.append(
                lab.submit(low, min(low + more, count), work_s=work * 1e9 + len(lab.cluster.state.jobs) * 12_345_678)
            )
        elif running:
            ending = running[more % len(running)]
            here.remove(ending)
            lab.end(ending, DONE)
        lab.settle()
        left = [(job.gpus_min // WHOLE, job.gpus_max // WHOLE, float(job.spec.work_s or 0)) for job in here]
        assert shares(here) == reference(count, left)
        held = Counter(gpu for job in here for gpu in gpus_of(job))
        assert all(times == 1 for times in held.values())


KEEPING = {"min_work_s": "0", "resize_after_s": "0", "gain_restarts": "1"}
"""The malleable policy without delays; jobs keep sizes that are next to the ideal ones."""


@settings(max_examples=share_of(60), deadline=None)
@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    jobs=st.lists(
        st.tuples(
            st.sampled_from(["1/4", "1/2", "1", "2"]),
            st.integers(0, 4),
            st.sampled_from([0, 5, 15, 30]),
            st.one_of(st.none(), st.integers(1, 50)),
        ),
        max_size=10,
    ),
    policy=st.sampled_from(
        [("moldable-proportional", {}), ("malleable-proportional", PAPER), ("malleable-proportional", KEEPING)]
    ),
)
@example([4], [("1/4", 0, 0, None), *[("1/4", 1, 0, 1)] * 3], ("malleable-proportional", PAPER))
@example(
    [4],
    [("1/4", 0, 0, None), ("1/4", 1, 0, None), *[("1/4", 1, 0, 1)] * 2, ("1/4", 1, 0, None)],
    ("malleable-proportional", KEEPING),
)
def test_nobody_gets_too_much_or_too_little_and_no_gpu_gives_more_than_it_has(
    counts: list[int], jobs: list[tuple[str, int, int, int | None]], policy: tuple[str, dict[str, str]]
) -> None:
    name, options = policy
    lab = Lab(name, "", **options)
    for node, count in zip("abc", counts, strict=False):
        lab.tell(registration(node, count, checkpoint_root_id="shared"))

    def work_s(index: int, work: int | None) -> float | None:
        if work is None:
            return None
        # By the paper's rules, jobs with about as much left take turns: who has more GPUs soon has less left.
        # So no two are equal here, and none equals the mean that unknown work is taken for: no power of 3 is the mean
        # of different powers of 3.
        return work * 1e9 + 12_345 * 3**index if options is PAPER else work * 1e6

    here = [
        lab.submit(
            low,
            max(Fraction(low), Fraction(more)),
            gpu_mem_bytes=memory * GIB,
            work_s=work_s(index, work),
            max_nodes=1 + more % 2,
        )
        for index, (low, more, memory, work) in enumerate(jobs)
    ]
    lab.settle()
    for job in here:
        assert job.planned is None or job.planned.share in job.sizes()
    parts: Counter[str] = Counter()
    for job in here:
        for piece in job.planned or ():
            for gpu in piece.gpus:
                parts[gpu.gpu] += gpu.share
    assert all(used <= WHOLE for used in parts.values())
    assert sum(gpus(job.planned.share) for job in here if job.planned is not None) <= sum(counts)
