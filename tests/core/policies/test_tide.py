"""Tide: who is expected to be done soonest, and who steps aside for whom."""

import math
import string
from collections import deque
from fractions import Fraction
from typing import Any

import pytest
from ebbtide_core.estimates.outlook import OutlookSource
from ebbtide_core.estimates.work import Assumptions, Speedup
from ebbtide_core.events import (
    CancelRequested,
    CheckpointPublished,
    GpuHealthChanged,
    JobChanged,
    NodeDisconnected,
    NodeDrained,
    NodeLost,
    ReleaseRequested,
    SchedulingDue,
)
from ebbtide_core.job.job import Job
from ebbtide_core.model.constraints import Needs
from ebbtide_core.model.types import WHOLE, CheckpointFacts, JobState, Loan, NodeId, SuspendMode
from ebbtide_core.planning.preemption import could_make_room, may_be_preempted
from ebbtide_core.planning.tide import kept_room, victims
from ebbtide_core.planning.tide.index import TideIndex
from ebbtide_core.planning.tide.kept_room import MOST_COMPARED
from ebbtide_core.planning.tide.turns import MOST_LOOKED_AT
from ebbtide_core.planning.tide.victims import MOST_TRIED
from ebbtide_core.policies.registry import PolicyError, create_policy
from ebbtide_core.resources.placing import Trial
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.lab import DONE, Lab, gpus_of, registration, stepped_aside, stopped, wake_times


def lab_of(gpus: int = 1, nodes: str = "a", **options: str) -> Lab:
    return Lab("tide", nodes, gpus, **options)


def index_of(lab: Lab) -> TideIndex:
    ranking = lab.cluster.state.pools["default"].ranking
    assert isinstance(ranking, TideIndex)
    return ranking


def ended(lab: Lab, seconds: float, count: int = 5, **spec: Any) -> None:
    """So many jobs ran for ``seconds``, one after the other."""
    for _ in range(count):
        job = lab.running(1, **spec)
        lab.wait(seconds - 2)
        lab.end(job, DONE)


def starts(lab: Lab, running: Job, jobs: list[Job]) -> list[int]:
    """In which order the jobs start that wait for ``running``, which has the only GPU."""
    order = []
    for _ in jobs:
        lab.end(running, DONE)
        [running] = [job for job in jobs if job.state is JobState.STARTING]
        lab.start(running)
        order.append(jobs.index(running))
    return order


# --- whose turn it is ---


def test_the_script_whose_runs_were_shorter_goes_first() -> None:
    lab = lab_of()
    ended(lab, 500, name="long")
    ended(lab, 50, name="short")
    running = lab.running(1, name="other")
    jobs = [lab.submit(1, name=name) for name in ("long", "short", "long", "short")]
    assert starts(lab, running, jobs) == [1, 3, 0, 2]


def test_where_nothing_is_known_trial_and_error_jobs_go_first_then_those_that_came_first() -> None:
    lab = lab_of()
    running = lab.running(1, te=True)
    jobs = [lab.submit(1), lab.submit(1, te=True), lab.submit(1), lab.submit(1, te=True)]
    assert starts(lab, running, jobs) == [1, 3, 0, 2]


def test_a_time_limit_bounds_how_long_a_job_is_expected_to_take() -> None:
    lab = lab_of()
    running = lab.running(1, suspend=SuspendMode.NONE)
    jobs = [lab.submit(1), lab.submit(1, time_limit_s=600.0), lab.submit(1, time_limit_s=60.0)]
    assert starts(lab, running, jobs) == [2, 1, 0]


def test_a_weight_divides_the_time_that_a_job_is_expected_to_take() -> None:
    lab = lab_of()
    running = lab.running(1)
    jobs = [lab.submit(1), lab.submit(1, weight=3.0), lab.submit(1, weight=2.0)]
    assert starts(lab, running, jobs) == [1, 2, 0]


def test_jobs_that_wait_are_sorted_anew_once_other_runs_tell_something_else() -> None:
    lab = lab_of(gpus=2, bound="1000")
    keep = lab.running(1, name="keep", suspend=SuspendMode.NONE)
    ended(lab, 20, name="a")
    ended(lab, 200, name="b")
    first = lab.running(1, name="b", suspend=SuspendMode.NONE)
    waiting_a, waiting_b = lab.submit(2, name="a"), lab.submit(2, name="b")
    queue = lab.cluster.state.pools["default"].queue
    assert list(queue) == [waiting_a, waiting_b]
    lab.wait(3)
    lab.end(first, DONE)  # a run of b that took only some seconds
    ended(lab, 3, count=10, name="b")
    assert list(queue) == [waiting_b, waiting_a]
    assert keep.running


def test_whoever_fits_may_pass() -> None:
    lab = lab_of(gpus=4)
    lab.running(3, suspend=SuspendMode.NONE)
    large = lab.submit(2)
    small = lab.submit(1)
    assert (large.state, small.state) == (JobState.PENDING, JobState.STARTING)


def test_a_more_urgent_priority_goes_first_however_long_it_takes() -> None:
    lab = lab_of()
    running = lab.running(1, priority=1)
    jobs = [lab.submit(1, te=True, priority=9), lab.submit(1, priority=5)]
    assert starts(lab, running, jobs) == [1, 0]


# --- what is known ---


def outlook_of(lab: Lab, job: Job) -> tuple[OutlookSource, float]:
    outlook = index_of(lab).outlooks.of(job, lab.now)
    return outlook.source, round(outlook.left_s)


def test_progress_tells_more_than_earlier_runs_and_these_more_than_the_class() -> None:
    lab = lab_of()
    ended(lab, 400, name="others")
    ended(lab, 100, name="x")
    job = lab.running(1, name="x")
    assert outlook_of(lab, job) == (OutlookSource.SCRIPT, 100)
    lab.wait(49)
    lab.progress(job, 10)
    assert outlook_of(lab, job) == (OutlookSource.PROGRESS, 459)
    assert outlook_of(lab, lab.submit(1, name="new"))[0] is OutlookSource.USER


def test_a_trial_that_has_run_longer_than_trials_do_is_judged_by_all_jobs() -> None:
    lab = lab_of(gpus=2)
    ended(lab, 4000)
    ended(lab, 100, te=True, name="trial")
    job = lab.running(1, te=True, name="long")
    assert outlook_of(lab, job) == (OutlookSource.USER, 100)
    lab.wait(200)
    source, left_s = outlook_of(lab, job)
    assert source is OutlookSource.ALL
    assert left_s > 3000


def test_a_job_that_outlived_all_others_is_expected_to_run_as_long_again() -> None:
    lab = lab_of()
    ended(lab, 100)
    job = lab.running(1)
    lab.wait(10_000)
    assert outlook_of(lab, job) == (OutlookSource.AGE, 10_001)


# --- who steps aside ---


def test_a_long_job_steps_aside_for_a_trial_and_the_story_says_what_decided() -> None:
    lab = lab_of()
    long = lab.running(1)
    trial = lab.submit(1, te=True)
    assert stopped(lab.last) == {long.id}
    stop = long.attempts[-1].stop
    assert stop is not None
    assert stop.reason == (
        f"preempted by job {trial.id}: job {trial.id} (done in about 5 min, assumed by its class and how long it has "
        "run) would have room in about 60 min, this one is done in about 60 min, assumed by its class and how long it "
        "has run"
    )


def test_no_job_steps_aside_for_one_that_takes_as_long() -> None:
    lab = lab_of()
    lab.running(1)
    waiting = lab.submit(1)
    lab.wait(1000)
    assert stopped(lab.last) == set()
    assert waiting.reason.startswith("waiting for 1 GPU; done in about 60 min, assumed by its class")
    assert waiting.reason.endswith("and would have room in about 77 min")


def test_best_effort_jobs_step_aside_for_one_known_to_be_short_but_for_a_guess_only_once_it_is_due() -> None:
    lab = lab_of()
    ended(lab, 60, name="short")
    running = lab.running(1, name="long")
    guessed = lab.submit(1, name="short")
    assert outlook_of(lab, guessed) == (OutlookSource.SCRIPT, 60)
    lab.wait(300)
    assert stopped(lab.last) == set()
    lab.submit(1, name="short", work_s=60.0)
    assert stopped(lab.last) == {running.id}


def test_a_job_that_is_due_preempts_one_that_takes_bound_times_as_long_but_no_other() -> None:
    lab = lab_of(bound="8")
    ended(lab, 60, name="short")
    ended(lab, 400, name="longer")
    running = lab.running(1, name="longer")
    waiting = lab.submit(1, name="short")
    lab.wait(300)
    assert stopped(lab.last) == set()
    lab.wait(1200)
    assert lab.now > waiting.submitted + 8 * 60
    assert stopped(lab.last) == {running.id}


def test_jobs_of_its_size_that_preempt_nobody_do_not_keep_a_trial_from_its_turn() -> None:
    lab = lab_of()
    running = lab.running(1)
    first = lab.submit(1, weight=200.0)
    assert stopped(lab.last) == set()
    lab.submit(1, te=True)
    assert stopped(lab.last) == {running.id}
    assert next(iter(lab.cluster.state.pools["default"].queue)) is first


def test_the_wait_for_room_counts_cpus_and_memory_too() -> None:
    lab = lab_of(gpus=4)
    [facts] = [node.facts for node in lab.cluster.state.pools["default"].books.usable.values()]
    lab.running(1, te=True, cpus=1.0, mem_bytes=1)
    lab.running(1, cpus=facts.cpus - 1, mem_bytes=facts.mem_bytes - 1)
    jobs = [lab.submit(3, hold=True, **needs) for needs in ({}, {"cpus": 4.0}, {"mem_bytes": 2**20})]
    index_of(lab).rates.renew(lab.now)
    assert [round(index_of(lab).rates.wait_s(job, True)) for job in jobs] == [277, 3600, 3600]


def soonest(lab: Lab, job: Job, gpus: int, *, gang: bool = False) -> list[tuple[str, float]]:
    """The nodes in the order in which they are expected to have room for the job, and in how many seconds."""
    index_of(lab).rates.renew(lab.now)
    return [(first.node, round(first.in_s, -2)) for first in index_of(lab).rates.soonest_first(job, gpus, gang=gang)]


def test_nodes_are_in_the_order_in_which_all_jobs_that_have_to_end_for_room_are_expected_to_have_ended() -> None:
    lab = lab_of(gpus=2, nodes="abc")
    on_a, on_b = [lab.running(2, suspend=SuspendMode.NONE) for _ in range(2)]
    lab.running(1, te=True, suspend=SuspendMode.NONE)
    assert [job.attempts[0].allocation.node_ids[0] for job in (on_a, on_b)] == ["a", "b"]
    job = lab.submit(2, hold=True)
    assert soonest(lab, job, 1) == [("c", 0), ("a", 3600), ("b", 3600)]
    assert soonest(lab, job, 2) == [("c", 300), ("a", 3600), ("b", 3600)]
    lab.end(on_b, DONE)
    assert soonest(lab, job, 2) == [("b", 0), ("c", 300), ("a", 3600)]
    lab.tell(NodeDisconnected(NodeId("c")))
    lab.tell(NodeLost(NodeId("c"), lab.now))
    assert soonest(lab, job, 2) == [("b", 0), ("a", 3600)]
    lab.tell(registration("d", 1))
    assert soonest(lab, job, 2) == [("b", 0), ("a", 3600), ("d", math.inf)]
    assert soonest(lab, job, 2, gang=True) == [("b", 0), ("d", 0), ("a", 3600)]


def test_a_job_that_needs_all_cpus_of_a_node_is_expected_to_have_them_though_a_rounded_need_is_more() -> None:
    lab = Lab("tide", "")
    lab.tell(registration("a", 2, cpus=17.0))
    lab.running(1, cpus=1.0, te=True, suspend=SuspendMode.NONE)
    assert soonest(lab, lab.submit(1, hold=True, cpus=17.0), 1) == [("a", 300)]


def test_a_shared_gpu_has_room_for_a_share_once_one_job_ends_and_for_a_whole_one_once_all_ended() -> None:
    lab = lab_of(gpus=1, bound="1")
    for limit_s in (2400.0, 1200.0):
        lab.running(0.5, time_limit_s=limit_s, suspend=SuspendMode.NONE)
    whole, half = lab.submit(1, time_limit_s=600.0), lab.submit(0.5, time_limit_s=600.0)
    assert soonest(lab, whole, 1) == [("a", 2400)]
    assert soonest(lab, half, 1) == [("a", 1200)]
    rates = index_of(lab).rates
    assert rates.wait_s(whole, passed=False) == pytest.approx(2400, abs=5)
    assert rates.wait_s(whole, passed=True) == math.inf
    assert rates.wait_s(half, passed=True) == pytest.approx(800, abs=5)
    lab.wait(700)
    assert "it is due, and gets room in about 28 min" in whole.reason
    lab.tell(CancelRequested(whole.id))
    lab.wait(60)
    assert "it is due, and gets room in about 7 min" in half.reason


def test_a_node_that_is_lost_in_the_moment_of_a_pass_is_asked_for_no_victims_afterwards() -> None:
    lab = lab_of(nodes="ab")
    lab.running(1, priority=50, grace_s=3500.0)
    lab.running(1, priority=50, grace_s=3500.0)
    lab.submit(1, te=True)
    for event in (NodeDisconnected(NodeId("b")), NodeLost(NodeId("b"), lab.now)):
        lab.cluster.handle(event, lab.now)
    lab.now -= 1.0  # the next step comes in the same moment
    lab.submit(1, te=True)
    index_of(lab).rates.renew(lab.now)
    there = index_of(lab).rates.candidates.cheapest_first(42, equals=True, less_urgent=True)
    assert [candidate.node for candidate in there] == ["a"]


def test_no_job_steps_aside_if_room_appears_soon() -> None:
    lab = lab_of()
    nearly_done = lab.running(1)
    lab.wait(3000)
    lab.progress(nearly_done, 99)
    lab.submit(1, te=True)
    assert stopped(lab.last) == set()
    lab = lab_of()
    half_done = lab.running(1)
    lab.wait(3000)
    lab.progress(half_done, 50)
    lab.submit(1, te=True)
    assert stopped(lab.last) == {half_done.id}


def test_no_job_steps_aside_if_its_save_takes_longer_than_the_wait() -> None:
    lab = lab_of()
    lab.running(1, grace_s=3500.0)
    lab.submit(1, te=True)
    assert stopped(lab.last) == set()


def test_of_equal_jobs_the_one_that_saves_sooner_steps_aside() -> None:
    lab = lab_of(gpus=2)
    lab.running(1, grace_s=60.0)
    quick = lab.running(1, grace_s=5.0)
    lab.submit(1, te=True)
    assert stopped(lab.last) == {quick.id}


def test_one_job_steps_aside_rather_than_two() -> None:
    lab = lab_of(gpus=4)
    lab.running(1)
    lab.running(1)
    pair = lab.running(2)
    lab.submit(2, te=True)
    assert stopped(lab.last) == {pair.id}


def test_a_trial_that_ran_too_long_steps_aside_for_another() -> None:
    lab = lab_of()
    liar = lab.running(1, te=True)
    lab.wait(2000)
    lab.submit(1, te=True)
    assert stopped(lab.last) == {liar.id}


def test_a_job_with_room_to_spare_shrinks_before_any_other_steps_aside() -> None:
    lab = lab_of(gpus=4)
    elastic = lab.running(1, 4)
    lab.wait(100)
    trial = lab.submit(2, te=True)
    lab.settle()
    assert (len(gpus_of(elastic)), len(gpus_of(trial))) == (2, 2)
    assert elastic.suspending.preemptions == 0


@pytest.mark.parametrize(
    ("speeds", "share"),
    [
        ({}, Fraction(1, 4)),  # nothing is known of how jobs share a GPU
        ({Fraction(1, 2): 0.75, 1: 1.0}, Fraction(1, 2)),  # two do more than one, and four no more than two
        ({Fraction(1, 4): 0.4, 1: 1.0}, Fraction(1, 4)),  # four do the most
        ({Fraction(1, 2): 0.4, 1: 1.0}, 1),  # they only disturb each other
    ],
)
def test_a_gpu_is_shared_as_far_as_it_does_more_work_for_it(speeds: dict[Any, float], share: Any) -> None:
    curve = Speedup(tuple((int(size * WHOLE), speed) for size, speed in speeds.items()))
    lab = Lab("tide", gpus=2, assumed=Assumptions(curve))
    before = lab.running(2)
    jobs = [lab.submit("1/4", 2) for _ in range(8)]
    lab.end(before, DONE)
    has = [job.planned.share for job in jobs if job.planned is not None]
    assert len(has) == 2 / share
    assert set(has) == {share * WHOLE}
    assert all("waiting" in job.reason for job in jobs if job.planned is None)


def test_a_job_shrinks_no_further_than_a_gpu_does_more_work_for_it() -> None:
    lab = Lab("tide", gpus=1, assumed=Assumptions(Speedup(((WHOLE // 2, 0.75), (WHOLE, 1.0)))))
    first = lab.running("1/4", 1)
    lab.wait(100)
    second, third = lab.submit("1/4", 1), lab.submit("1/4", 1)
    lab.settle()
    assert [job.planned and job.planned.share for job in (first, second, third)] == [WHOLE // 2, WHOLE // 2, None]


def test_a_more_urgent_job_preempts_a_less_urgent_one_though_it_takes_longer() -> None:
    lab = lab_of()
    less = lab.running(1, te=True, priority=50)
    lab.submit(1, priority=40)
    assert stopped(lab.last) == {less.id}


@pytest.mark.parametrize(
    ("ran_s", "can", "priority", "steps_aside"),
    [
        (100_000.0, "nothing", 40, False),
        (10.0, "nothing", 40, True),
        (100_000.0, "suspend", 40, True),
        (100_000.0, "save", 40, True),
        (100_000.0, "nothing", 3, True),
    ],
)
def test_who_may_lose_all_steps_aside_for_production_or_for_one_that_would_wait_for_longer_than_it_ran(
    ran_s: float, can: str, priority: int, steps_aside: bool
) -> None:
    lab = lab_of()
    less = lab.running(1, priority=50)
    lab.wait(ran_s)
    if can == "save":
        lab.tell(CheckpointPublished(less.id, 1, CheckpointFacts(5, 1, "/c/5", True)))
    less.suspending.proved = can == "suspend"
    lab.submit(1, priority=priority)
    assert (less.state is JobState.SUSPENDING) == steps_aside


def test_of_less_urgent_jobs_the_least_urgent_steps_aside_though_that_costs_it_more() -> None:
    lab = lab_of(gpus=2)
    cheap, dear = lab.running(1, priority=50), lab.running(1, te=True, priority=90)
    lab.submit(1, priority=10)
    assert (cheap.state, dear.state) == (JobState.RUNNING, JobState.SUSPENDING)


# --- who gives GPUs to whom ---


def test_a_job_that_comes_gets_gpus_of_one_that_has_more_until_both_have_as_many() -> None:
    lab = lab_of(gpus=8)
    first = lab.running(1, 7, work_s=10_000.0)
    lab.wait(100)
    second = lab.submit(1, 8, work_s=3000.0)
    assert stopped(lab.last) == {first.id}
    assert second.reason == "waiting for GPUs that job 1 gives back"
    lab.settle()
    assert (len(gpus_of(first)), len(gpus_of(second))) == (4, 4)
    why = first.attempts[0].stop
    assert why is not None
    assert why.reason == "giving GPUs to job 2, which has fewer: 7 GPUs to 4 GPUs"


@pytest.mark.parametrize(
    ("giver", "taker", "sizes"),
    [
        ({}, {}, (4, 3)),
        ({"gpus": 4}, {}, (4, 3)),
        ({"gpus": 5}, {}, (6, 1)),  # it would have fewer GPUs than its smallest size
        ({"priority": 43}, {}, (4, 3)),
        ({"priority": 41}, {}, (6, 1)),  # it is more urgent
        ({"suspend": SuspendMode.NONE}, {}, (6, 1)),  # it cannot step aside
        ({}, {"to": 2}, (5, 2)),  # the other cannot use more
    ],
)
def test_who_gives_how_many_gpus(giver: dict[str, Any], taker: dict[str, Any], sizes: tuple[int, int]) -> None:
    lab = lab_of(gpus=8)
    first = lab.running(**{"gpus": 1, "to": 6, "work_s": 10_000.0} | giver)
    lab.running(1, suspend=SuspendMode.NONE)
    lab.wait(100)
    second = lab.submit(**{"gpus": 1, "to": 8, "work_s": 3000.0} | taker)
    lab.settle()
    assert (len(gpus_of(first)), len(gpus_of(second))) == sizes
    assert first.suspending.preemptions == 0


def test_jobs_that_can_use_no_whole_gpu_get_none_of_another() -> None:
    lab = lab_of(gpus=8, resize_after_s="1000")
    first = lab.running(1, 7, work_s=100_000.0)
    keep = lab.running(1, suspend=SuspendMode.NONE)
    others = [lab.submit("1/4", "1/2", work_s=5000.0) for _ in range(4)]
    lab.end(keep, DONE)
    lab.settle()
    lab.wait(1000)
    lab.settle()
    assert len(gpus_of(first)) == 7
    assert [job.planned and job.planned.share for job in others] == [WHOLE // 4] * 4


def test_a_job_gives_gpus_once_it_has_run_for_long_enough_to_be_resized() -> None:
    lab = lab_of(gpus=8, resize_after_s="1000")
    first = lab.running(1, 7, work_s=100_000.0)
    second = lab.running(1, 8, work_s=30_000.0)
    lab.wait(900)
    assert not stopped(lab.last)
    while not stopped(lab.last):
        lab.wait(min(time for _, time in lab.wakes if time > lab.now) - lab.now - 1)
    assert lab.now == max(job.attempts[0].started or 0.0 for job in (first, second)) + 1000
    lab.settle()
    assert (len(gpus_of(first)), len(gpus_of(second))) == (4, 4)


@pytest.mark.parametrize("works", [(100_000.0, 900_000.0), (900_000.0, 100_000.0)])
def test_of_those_that_have_more_gpus_the_one_gives_some_that_is_delayed_least_for_its_length(
    works: tuple[float, float],
) -> None:
    lab = lab_of(gpus=10)
    jobs = [lab.running(1, 4, work_s=work_s) for work_s in works]
    keep = lab.running(1, suspend=SuspendMode.NONE)
    lab.wait(100)
    lab.submit(1, 2, work_s=30_000.0)
    assert stopped(lab.last) == {jobs[works.index(900_000.0)].id}
    assert keep.running


def test_of_many_that_could_use_more_gpus_those_that_are_done_soonest_get_them() -> None:
    lab = lab_of(gpus=16, resize_after_s="1000")
    first = lab.running(1, 12, work_s=900_000.0)
    keep = lab.running(4, suspend=SuspendMode.NONE)
    others = [lab.submit(1, 16, work_s=work_s) for work_s in (23_000.0, 20_000.0, 22_000.0, 21_000.0)]
    lab.end(keep, DONE)
    lab.settle()
    assert [len(gpus_of(job)) for job in (first, *others)] == [12, 1, 1, 1, 1]
    lab.wait(1000)
    lab.settle()
    assert [len(gpus_of(job)) for job in (first, *others)] == [3, 1, 6, 2, 4]


@given(
    works=st.tuples(st.integers(100, 20_000), st.integers(100, 20_000)),
    has=st.tuples(st.integers(2, 7), st.integers(1, 6)),
    cost_s=st.sampled_from([0.0, 10.0, 100.0]),
    save_s=st.sampled_from([0.0, 20.0, 200.0]),
    most=st.sampled_from([0.05, 0.2, 1.0]),
    more=st.lists(st.integers(1, 100), min_size=12, max_size=12),
)
@settings(max_examples=300, deadline=None)
def test_gpus_are_given_where_the_giver_loses_less_than_half_of_what_the_other_gains(
    works: tuple[int, int], has: tuple[int, int], cost_s: float, save_s: float, most: float, more: list[int]
) -> None:
    """By an independent computation; ``more`` is what each further GPU adds to the speed, in percent of ``most``."""
    speed = [0.0, 1.0]
    for percent in sorted(more, reverse=True):
        speed.append(speed[-1] + most * percent / 100)
    curve = Speedup(tuple((size * WHOLE, speed[size]) for size in range(1, len(speed))))
    (big, small), total = has, sum(has)
    half = total // 2
    lab = Lab("tide", gpus=total, assumed=Assumptions(curve))
    first = lab.running(1, big, work_s=works[0] + 1200 * speed[big])
    first.suspending.proved, first.suspending.restart_cost_s, first.suspending.save_s = True, cost_s, save_s
    assert first.attempts[0].started is not None
    lab.now = first.attempts[0].started + 1199
    second = lab.submit(1, total, work_s=float(works[1]))
    assert second.planned is not None
    if small >= half:
        assert second.planned.share == small * WHOLE
        return
    soon_s, rest = works[1] / speed[half], total - half
    slower_s = min(works[0] / speed[rest], soon_s) * (1 - speed[rest] / speed[big])
    loss = 2 * (slower_s + cost_s) / (works[0] + 1200 * speed[big])
    gain = (works[1] / speed[small] - soon_s - save_s) / works[1]
    if abs(gain - loss) > 1e-6:
        assert second.planned.share == (half if loss < gain else small) * WHOLE


# --- where ---


def lab_of_unequal_nodes() -> Lab:
    lab = Lab("tide", nodes="")
    for name, cpus in (("a", 16.0), ("b", 64.0), ("c", 16.0)):
        lab.tell(registration(name, 2, cpus=cpus))
    return lab


def test_a_production_job_goes_to_the_node_with_most_cpus_for_each_gpu() -> None:
    lab = lab_of_unequal_nodes()
    assert [gpus_of(lab.running(1, priority=3)) for _ in range(2)] == [{"b0"}, {"b1"}]
    assert gpus_of(lab.running(1, priority=3)) < {"a0", "a1", "c0", "c1"}


def test_a_production_job_preempts_on_the_most_powerful_node_at_once_but_no_other_production_job() -> None:
    lab = lab_of_unequal_nodes()
    others = [lab.running(1, priority=90) for _ in range(6)]
    on_b = [job for job in others if gpus_of(job) < {"b0", "b1"}]
    first, second = lab.submit(1, priority=3), lab.submit(1, priority=3)
    assert [job for job in others if job.state is JobState.SUSPENDING] == on_b
    for victim in on_b:
        lab.end(victim, stepped_aside())
    assert gpus_of(first) | gpus_of(second) == {"b0", "b1"}
    lab.start(first)
    lab.start(second)
    third = lab.submit(1, priority=1)
    assert (first.state, second.state) == (JobState.RUNNING, JobState.RUNNING)
    assert [job.state for job in others].count(JobState.SUSPENDING) == 1
    assert third.state is JobState.PENDING


def test_jobs_are_spread_until_one_comes_that_can_use_several_gpus() -> None:
    lab = lab_of(gpus=4, nodes="ab")
    assert [next(iter(gpus_of(lab.running(1))))[0] for _ in range(4)] == ["a", "b", "a", "b"]
    lab = lab_of(gpus=4, nodes="ab")
    lab.end(lab.running(2), DONE)
    assert len({next(iter(gpus_of(lab.running(1))))[0] for _ in range(4)}) == 1


def test_jobs_are_packed_on_borrowed_nodes_so_that_some_can_be_given_back() -> None:
    lab = Lab("tide", nodes="")
    for name in "ab":
        lab.tell(registration(name, 4, loan=Loan(lab.now + 10**6)))
    assert len({next(iter(gpus_of(lab.running(1, time_limit_s=600.0))))[0] for _ in range(4)}) == 1


def test_a_less_urgent_job_preempts_nobody() -> None:
    lab = lab_of()
    lab.running(1, priority=40)
    lab.submit(1, te=True, priority=50)
    lab.wait(100_000)
    assert stopped(lab.last) == set()


def test_a_change_of_priority_counts_from_the_next_decision_on() -> None:
    lab = lab_of()
    running, waiting = lab.running(1), lab.submit(1)
    assert stopped(lab.last) == set()
    lab.tell(JobChanged(waiting.id, 1, waiting.weight, waiting.priority, waiting.weight))
    assert stopped(lab.last) == {running.id}


def test_others_step_aside_for_one_job_in_a_pass_and_for_the_next_one_in_the_pass_that_follows_at_once() -> None:
    lab = lab_of(gpus=2)
    long = {lab.running(1).id for _ in range(2)}
    for trial in [lab.submit(1, te=True, hold=True) for _ in range(2)]:
        lab.cluster.handle(ReleaseRequested(trial.id), lab.now)
    first, second = (lab.cluster.handle(SchedulingDue(), lab.now) for _ in range(2))
    assert len(stopped(first)) == len(stopped(second)) == 1
    assert stopped(first) | stopped(second) == long
    assert wake_times(first) == [lab.now]


def test_nodes_where_less_urgent_jobs_share_gpus_with_more_urgent_ones_hide_no_node_where_they_do_not() -> None:
    names = string.ascii_letters[: MOST_TRIED + 2]
    lab = lab_of(nodes=names)
    for node in names[1:]:
        for priority in (40, 60):
            lab.running("1/2", needs=Needs(on=(node,)), priority=priority)
    alone = lab.running(1, priority=60, weight=2.0, grace_s=0.0)
    lab.submit(1, priority=50)
    assert stopped(lab.last) == {alone.id}


def test_a_job_that_cannot_be_preempted_stays() -> None:
    lab = lab_of()
    lab.running(1, suspend=SuspendMode.NONE)
    lab.submit(1, te=True)
    assert stopped(lab.last) == set()


# --- who waited long ---


def test_room_is_kept_for_a_job_that_is_due_and_it_is_not_preempted_afterwards() -> None:
    lab = lab_of(gpus=4, bound="2")
    small = [lab.running(1, te=True, name="small") for _ in range(4)]
    large = lab.submit(4, name="large")
    for _ in range(400):
        lab.wait(60)
        if large.running:
            break
        if (done := next((job for job in small if job.running), None)) is not None:
            lab.end(done, DONE)
            small.append(lab.submit(1, te=True, name="small"))
        for job in small:
            if job.state is JobState.STARTING:
                lab.start(job)
    assert large.running
    assert 2 * 3600 < large.attempts[0].placed - large.submitted < 3 * 3600 + 1200
    lab.start(large)
    lab.submit(1, te=True)
    assert stopped(lab.last) == set()


@pytest.mark.parametrize("less_urgent", [{}, {"priority": 60, "suspend": SuspendMode.NONE}])
def test_a_due_job_has_its_turn_though_all_that_runs_was_due_later_or_is_less_urgent(less_urgent: Any) -> None:
    lab = lab_of(gpus=4, bound="8")
    small = [lab.submit(1, work_s=60.0, **less_urgent) for _ in range(60)]
    large: Job | None = None
    ends = deque[tuple[float, Job]]()
    while large is None or (not large.attempts and lab.now < large.submitted + 3000):
        for job in small:
            if job.state is JobState.STARTING:
                lab.start(job)
                ends.append((lab.now + 60, job))
        at, done = ends.popleft()
        lab.wait(max(0.0, at - lab.now))
        small.append(lab.submit(1, work_s=60.0, **less_urgent))
        lab.end(done, DONE)
        if large is None and done.attempts[0].placed > done.submitted + 8 * 60:
            large = lab.submit(2, work_s=60.0)
    assert large.attempts
    assert not any(job.attempts for job in small if job.submitted > large.submitted + 8 * 60)


def test_due_jobs_that_no_node_in_service_could_run_do_not_hide_others() -> None:
    lab = lab_of(nodes="ab", gpus=1, bound="1")
    lab.running(1, needs=Needs(on=("a",)), suspend=SuspendMode.NONE)
    lab.tell(NodeDrained(node=NodeId("b")))
    for _ in range(MOST_LOOKED_AT + 1):
        lab.submit(1, needs=Needs(on=("b",)), te=True)
    other = lab.submit(1, te=True)
    lab.wait(400)
    assert "it is due" in other.reason


@pytest.mark.parametrize(("waited_s", "state"), [(1900, JobState.STARTING), (2100, JobState.PENDING)])
def test_room_is_kept_for_a_job_that_has_been_due_for_as_long_as_it_takes(waited_s: float, state: JobState) -> None:
    lab = lab_of(gpus=4, bound="1")
    jobs = [lab.running(1, time_limit_s=4000.0, suspend=SuspendMode.NONE) for _ in range(4)]
    large = lab.submit(2, time_limit_s=1000.0)
    lab.wait(waited_s)
    small = lab.submit(1, work_s=36_000.0)
    lab.end(jobs[0], DONE)
    assert "it is due, and gets room in about" in large.reason
    assert small.state is state


def test_no_job_that_was_due_later_takes_room_that_is_kept_for_one_that_was_due_before() -> None:
    lab = lab_of(nodes="abcd", gpus=4, bound="1")
    ends_s = {"a": 40_000.0, "b": 80_000.0, "c": 80_000.0, "d": 80_000.0}
    jobs = [
        lab.running(1, needs=Needs(on=(node,)), time_limit_s=ends_s[node], suspend=SuspendMode.NONE)
        for node in ends_s
        for _ in range(4)
    ]
    large = lab.submit(3, time_limit_s=600.0)
    lab.wait(100)
    small = lab.submit(1, time_limit_s=600.0)
    lab.wait(1300)
    for job in jobs[:3]:
        assert (large.state, small.state) == (JobState.PENDING, JobState.PENDING)
        lab.end(job, DONE)
    assert (large.state, small.state) == (JobState.STARTING, JobState.PENDING)


@pytest.mark.parametrize("surplus", ["more than its smallest size", "a drained node", "an unhealthy GPU"])
def test_what_due_jobs_have_beyond_their_smallest_size_or_out_of_service_keeps_no_other_from_its_turn(
    surplus: str,
) -> None:
    elastic = surplus == "more than its smallest size"
    lab = lab_of(nodes="ab", gpus=4, bound="1")
    full = [lab.running(1, needs=Needs(on=(node,)), suspend=SuspendMode.NONE) for node in "aaaabbbb"]
    first = lab.submit(1, 4 if elastic else 1, needs=Needs(on=("b",)), work_s=1000.0)
    lab.wait(1100)
    for job in full[4 : 8 if elastic else 5]:
        lab.end(job, DONE)
    lab.start(first)
    lab.wait(100)
    lab.settle()
    assert len(gpus_of(first)) == (4 if elastic else 1)
    match surplus:
        case "a drained node":
            lab.tell(NodeDrained(node=NodeId("b")))
        case "an unhealthy GPU":
            lab.tell(GpuHealthChanged(NodeId("b"), first.attempts[-1].allocation.gpu_ids[0], healthy=False))
    second = lab.submit(1, needs=Needs(on=("a",)), work_s=600.0)
    lab.wait(700)
    assert "it is due" in second.reason


def test_the_bound_is_at_least_1() -> None:
    with pytest.raises(PolicyError, match=r"bound is at least 1, not 0\.5"):
        create_policy("tide", {"bound": "0.5"})


# --- all together ---


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_it_comes_to_rest_and_its_queue_is_in_order(data: st.DataObject) -> None:
    lab = lab_of(gpus=4, nodes="ab", bound="2")
    jobs: list[Job] = []
    for _ in range(data.draw(st.integers(1, 25))):
        live = [job for job in jobs if job.state is JobState.RUNNING]
        one_ends = data.draw(st.booleans())
        if live and one_ends:
            lab.end(data.draw(st.sampled_from(live)), DONE)
        else:
            low = data.draw(st.sampled_from(["0", "1/2", "1", "2", "4"]))
            jobs.append(
                lab.submit(
                    low,
                    "4" if low != "0" and data.draw(st.booleans()) else None,
                    te=data.draw(st.booleans()),
                    name=data.draw(st.sampled_from("ab")),
                    priority=data.draw(st.sampled_from([40, 50])),
                    grace_s=data.draw(st.sampled_from([1.0, 600.0])),
                )
            )
        lab.wait(data.draw(st.sampled_from([0.0, 30.0, 700.0, 9000.0])))
        lab.settle()
        pool = lab.cluster.state.pools["default"]
        waiting = {job.id for job in jobs if job.queued is not None}
        order = list(pool.queue)
        assert {job.id for job in order} == waiting
        assert [job.priority for job in order] == sorted(job.priority for job in order)


@pytest.mark.replaces
def test_a_pass_looks_at_a_bounded_number_of_the_jobs_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]
    find = Trial.find

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return find(*args, **kwargs)

    monkeypatch.setattr(Trial, "find", counted)
    lab = lab_of(gpus=4)
    lab.running(3, suspend=SuspendMode.NONE)
    lab.running(1, cpus=32.0, suspend=SuspendMode.NONE)
    asked = []
    for number in range(4 * MOST_LOOKED_AT):
        calls[0] = 0
        lab.submit(1, cpus=1.0 + number / 1000, name=f"{number}")
        asked.append(calls[0])
    assert max(asked[2 * MOST_LOOKED_AT :]) <= max(asked[:MOST_LOOKED_AT])


@pytest.mark.replaces
def test_a_due_job_is_told_when_it_gets_room_after_a_look_at_a_bounded_number_of_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = set[str]()

    def noted(draft: Any, job: Job, given: Any, id: NodeId) -> bool:
        looked_at.add(id)
        return could_make_room(draft, job, given, id)

    names = string.ascii_letters
    lab = lab_of(nodes=names, bound="1")
    jobs = [lab.running(1, suspend=SuspendMode.NONE, time_limit_s=40_000.0) for _ in names[1:]]
    lab.running(1, suspend=SuspendMode.NONE, time_limit_s=1500.0)
    waiting = lab.submit(1, time_limit_s=600.0)
    monkeypatch.setattr(kept_room, "could_make_room", noted)
    lab.wait(700)
    assert "it is due, and gets room in about 13 min" in waiting.reason
    assert len(looked_at) <= MOST_COMPARED < len(jobs)


@pytest.mark.replaces
def test_a_job_that_nobody_was_to_step_aside_for_is_weighed_again_where_figures_were_renewed_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = set[str]()

    def noted(draft: Any, other: Job, min_run_s: float) -> bool:
        asked.add(other.id)
        return may_be_preempted(draft, other, min_run_s)

    monkeypatch.setattr(victims, "may_be_preempted", noted)
    names = string.ascii_lowercase[:16]
    lab = lab_of(nodes=names)
    jobs = {lab.running(1).id for _ in names}
    lab.wait(1800)
    asked.clear()
    lab.submit(1, time_limit_s=300.0)
    assert asked == jobs
    asked.clear()
    lab.submit(1)
    assert asked == set()
    lab.wait(61)
    lab.submit(1)
    assert asked == jobs


def test_a_job_that_nobody_was_to_step_aside_for_gets_room_once_it_has_waited_for_long_enough() -> None:
    lab = lab_of(nodes="abcdefgh")
    jobs = [lab.running(1) for _ in range(8)]
    lab.submit(1, time_limit_s=1000.0)
    waited_s = 0
    while not any(job.state is JobState.SUSPENDING for job in jobs):
        lab.wait(20)
        lab.submit(1)
        waited_s += 20
    assert 200 < waited_s < 400


class Adversary:
    """Keeps every GPU busy with so many small jobs of its choice: whenever one is done, it submits the next."""

    def __init__(self, lab: Lab, data: st.DataObject, count: int) -> None:
        self.lab = lab
        self.data = data
        self.left: dict[str, float] = {}
        self.jobs: list[Job] = []
        for _ in range(count):
            self.submit()

    def submit(self) -> None:
        spec: dict[str, Any] = {"te": self.data.draw(st.booleans()), "name": self.data.draw(st.sampled_from("ab"))}
        job = self.lab.submit(1, grace_s=1.0, **spec)
        self.left[job.id] = self.data.draw(st.sampled_from([60.0, 300.0, 1200.0]))
        self.jobs.append(job)

    def go_on(self) -> None:
        """Let time go by until the next small job is done."""
        self.lab.settle()
        running = [job for job in self.jobs if job.state is JobState.RUNNING]
        step = min((self.left[job.id] for job in running), default=60.0)
        self.lab.wait(step)
        for job in running:
            self.left[job.id] -= step
            if self.left[job.id] <= 0 and job.state is JobState.RUNNING:
                self.lab.end(job, DONE)
                self.jobs.remove(job)
                self.submit()


@given(st.data(), st.integers(2, 4))
@settings(max_examples=10, deadline=None)
def test_no_stream_of_small_jobs_starves_a_large_one(data: st.DataObject, gpus: int) -> None:
    lab = lab_of(gpus=4, bound="2")
    small = 4 + data.draw(st.sampled_from([0, 24]))
    adversary = Adversary(lab, data, small)
    large = lab.submit(gpus, name="large")
    while not large.attempts and lab.now < 60_000:
        adversary.go_on()
    # Of its class and script nothing is known but what the adversary's jobs tell: an hour at most. Then the small ones
    # that were due before it may have a quarter of the GPUs, one.
    assert large.attempts, "it starved"
    assert large.attempts[0].placed - large.submitted < 3 * 3600 + small * 1200 + 600


@pytest.mark.parametrize(("small", "large"), [("1/4", 1), ("1/4", "1/2"), ("1/2", 1)])
def test_no_stream_of_shares_of_a_gpu_starves_a_larger_job(small: str, large: int | str) -> None:
    lab = lab_of(gpus=1, bound="2")
    ended(lab, 100.0)
    fitting = round(1 / Fraction(small))
    ends = deque((lab.running(small), lab.now + 100.0 * (number + 1) / fitting) for number in range(fitting))
    larger = lab.submit(large)
    while not larger.attempts and lab.now < larger.submitted + 3600:
        job, at = ends.popleft()
        lab.wait(max(0.0, at - lab.now))
        waits = lab.submit(small)
        lab.end(job, DONE)
        if waits.state is JobState.STARTING:
            lab.start(waits)
            ends.append((waits, lab.now + 100.0))
        elif not ends:
            break
    assert larger.attempts


def test_jobs_that_wait_for_a_node_are_passed_by_those_that_another_would_take() -> None:
    for away in (True, False):
        lab = lab_of(nodes="ab", gpus=2)
        if away:
            lab.tell(NodeDrained(node=NodeId("b")))
        else:
            for _ in range(2):
                lab.running(1, needs=Needs(on=("b",)), suspend=SuspendMode.NONE)
        waiting = [lab.submit(1, needs=Needs(on=("b",))) for _ in range(MOST_LOOKED_AT + 1)]
        assert [gpus_of(lab.submit(1)) for _ in range(2)] == [{"a0"}, {"a1"}]
        assert {job.state for job in waiting} == {JobState.PENDING}


def test_jobs_whose_checkpoints_are_on_a_node_that_is_drained_are_passed_by_new_ones() -> None:
    lab = lab_of(nodes="b", gpus=8)
    saved = [lab.running(1) for _ in range(8)]
    lab.tell(registration("a", 8))
    lab.tell(NodeDrained(node=NodeId("b"), deadline=lab.now))
    lab.settle()
    assert {job.state for job in saved} == {JobState.SUSPENDED}
    assert lab.submit(1).state is JobState.STARTING
