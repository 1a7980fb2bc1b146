"""HYBRID: sticky slots over preemptive priority, and its baselines (seed 004)."""

import pytest
from ebbtide_core.events import NodeDrained
from ebbtide_core.model.constraints import Needs
from ebbtide_core.model.types import WHOLE, HeldBy, JobState, NodeId, SuspendMode
from ebbtide_core.planning.slots import Slots
from ebbtide_core.policies.registry import PolicyError, create_policy

from tests.core.lab import DONE, Lab, gpus_of, launched, registration, stopped

PROMPT = {"min_run_s": "0"}
"""Nobody is spared, as in the paper."""


def sticky(job):
    """Whether the job's newest attempt has a sticky slot."""
    return job.attempts[-1].sticky


def lab_of(policy="pri", nodes="a", gpus=2, **options):
    return Lab(policy, nodes, gpus, **(PROMPT | options))


# --- PRI: preemptive priority ---


def test_a_more_urgent_job_takes_the_place_of_a_less_urgent_one() -> None:
    lab = lab_of(gpus=1)
    low = lab.running(1, priority=12)
    high = lab.submit(1, priority=8)
    assert stopped(lab.last) == {low.id}
    assert high.reason == f"waiting for 1 GPU that job {low.id} is asked to free"
    lab.settle()
    assert (low.state, high.state) == (JobState.SUSPENDED, JobState.RUNNING)
    assert low.suspending.preemptions == 1


def test_equally_urgent_jobs_wait_in_order_of_arrival() -> None:
    lab = lab_of(gpus=1)
    first = lab.running(1, priority=8)
    second, third = lab.submit(1, priority=8), lab.submit(1, priority=8)
    assert stopped(lab.last) == set()
    lab.end(first, DONE)
    assert launched(lab.last) == {second.id}
    assert third.state is JobState.PENDING


def test_the_most_urgent_job_starts_first_however_late_it_came() -> None:
    lab = lab_of(gpus=1)
    first = lab.running(1, priority=1)
    lab.submit(1, priority=9)
    urgent = lab.submit(1, priority=4)
    lab.end(first, DONE)
    assert launched(lab.last) == {urgent.id}


def test_the_newest_job_of_the_least_urgent_class_is_preempted() -> None:
    lab = lab_of(gpus=4)
    lab.running(1, priority=12)
    newest_of_the_lowest = lab.running(1, priority=12)
    lab.running(1, priority=8)
    lab.running(1, priority=8)
    lab.submit(1, priority=6)
    assert stopped(lab.last) == {newest_of_the_lowest.id}


def test_the_newest_is_the_one_that_started_last_not_the_one_that_came_last() -> None:
    lab = lab_of(gpus=2)
    early = lab.running(1, priority=12)
    late = lab.running(1, priority=12)
    urgent = lab.submit(1, priority=8)
    lab.settle()  # the late one stepped aside
    lab.submit(1, priority=7)
    lab.settle()
    assert (early.suspending.preemptions, late.suspending.preemptions) == (1, 1)
    lab.end(urgent, DONE)
    lab.settle()
    assert (early.state, late.state) == (JobState.RUNNING, JobState.SUSPENDED)  # the first to come is the first back


def test_what_a_victim_frees_is_not_freed_twice() -> None:
    lab = lab_of(gpus=4)
    low = lab.running(1, priority=12)
    big = lab.running(3, priority=12)
    first = lab.submit(1, priority=8)
    assert stopped(lab.last) == {big.id}
    second = lab.submit(1, priority=8)
    assert stopped(lab.last) == set()  # the big one's other GPUs are enough
    lab.settle()
    assert {low.state, first.state, second.state} == {JobState.RUNNING}


def test_a_job_with_several_gpus_preempts_on_one_node_and_only_what_it_needs() -> None:
    lab = lab_of(nodes="ab", gpus=4)
    jobs = [lab.running(1, priority=12) for _ in range(8)]
    big = lab.submit(3, priority=8)
    victims = stopped(lab.last)
    nodes = {job.attempts[-1].allocation.node_ids for job in jobs if job.id in victims}
    assert (len(victims), len(nodes)) == (3, 1)
    lab.settle()
    assert len(gpus_of(big)) == 3


def test_of_several_that_could_be_left_out_the_more_urgent_one_is() -> None:
    lab = lab_of(gpus=4)
    large, urgent, least_urgent = (lab.running(gpus, priority=level) for gpus, level in [(2, 9), (1, 10), (1, 12)])
    lab.submit(3, priority=5)
    assert stopped(lab.last) == {large.id, least_urgent.id}
    assert urgent.state is JobState.RUNNING


def test_nobody_is_preempted_for_a_job_that_would_not_fit_anyway() -> None:
    lab = lab_of(gpus=2)
    lab.running(1, priority=12)
    lab.running(1, priority=12, suspend=SuspendMode.NONE)
    big = lab.submit(2, priority=8)
    assert stopped(lab.last) == set()
    assert big.state is JobState.PENDING


def test_a_job_whose_node_is_drained_keeps_no_sticky_slot_from_others() -> None:
    lab = lab_of("hybrid", nodes="ab", gpus=4, sticky="2")
    lab.tell(NodeDrained(node=NodeId("b")))
    away = [lab.submit(size, needs=Needs(on=("b",))) for size in (1, 4)]
    others = [lab.submit(1) for _ in range(5)]
    lab.settle()
    assert [job.state for job in others] == [JobState.RUNNING] * 4 + [JobState.PENDING]
    assert {job.state for job in away} == {JobState.PENDING}


def test_what_jobs_hold_on_a_node_that_is_drained_takes_no_slots_of_the_others() -> None:
    lab = lab_of("hybrid", nodes="ab", gpus=4, sticky="1")
    jobs = [lab.running(1) for _ in range(8)]
    lab.tell(NodeDrained(node=NodeId("b")))
    for job in jobs:
        if job.attempts[-1].allocation.node_ids == ("a",):
            lab.end(job, DONE)
    others = [lab.running(1) for _ in range(4)]
    assert [job.attempts[-1].allocation.node_ids for job in others] == [("a",)] * 4


def test_a_gang_over_several_nodes_starts_where_there_is_room() -> None:
    lab = lab_of("hybrid", nodes="ab", gpus=2, sticky="1")
    assert len(gpus_of(lab.submit(3, max_nodes=2))) == 3


def test_a_resumed_job_is_spared_for_a_while() -> None:
    lab = Lab("pri", gpus=1, min_run_s="600")
    low = lab.running(1, priority=12)
    urgent = lab.submit(1, priority=8)
    lab.settle()
    lab.end(urgent, DONE)
    lab.settle()
    assert low.state is JobState.RUNNING
    second = lab.submit(1, priority=8)
    assert stopped(lab.last) == set()
    assert lab.wakes[-1][1] == pytest.approx(low.attempts[-1].started + 600)
    lab.wait(600)
    assert stopped(lab.last) == {low.id}
    lab.settle()
    assert second.state is JobState.RUNNING


def test_surplus_is_taken_back_before_anybody_is_preempted() -> None:
    lab = lab_of(gpus=4, resize_after_s="0")
    elastic = lab.running(1, 4, priority=12)
    lab.settle()
    assert len(gpus_of(elastic)) == 4
    lab.submit(2, priority=8)
    lab.settle()
    assert len(gpus_of(elastic)) == 2
    assert elastic.suspending.preemptions == 0


def test_a_job_without_gpus_starts_although_all_slots_are_taken() -> None:
    lab = lab_of("hybrid", gpus=1, sticky="1")
    lab.running(1)
    assert lab.submit(0).state is JobState.STARTING


# --- powerful slots ---


def uneven(policy="pri", **options):
    """Nodes ``a`` and ``c`` with 2 CPUs per GPU and ``b`` with 16."""
    lab = Lab(policy, nodes="", **(PROMPT | options))
    for name, cpus in (("a", 4.0), ("b", 32.0), ("c", 4.0)):
        lab.tell(registration(name, 2, cpus=cpus))
    return lab


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_production_gets_the_most_powerful_slot_that_is_free(seed) -> None:
    lab = uneven(seed=seed)
    production = [lab.running(1, priority=3) for _ in range(3)]
    nodes = [job.attempts[-1].allocation.node_ids for job in production]
    assert nodes[:2] == [("b",), ("b",)]
    assert nodes[2] != ("b",)


def test_all_others_get_a_slot_drawn_at_random() -> None:
    def nodes(seed):
        lab = uneven(seed=str(seed))
        return [lab.running(1, priority=4).attempts[-1].allocation.node_ids[0] for _ in range(3)]

    assert nodes(1) == nodes(1)
    assert len({tuple(nodes(seed)) for seed in range(8)}) > 1
    first = [nodes(seed)[0] for seed in range(60)]
    assert all(10 < first.count(name) < 30 for name in "abc")


def test_slots_are_drawn_at_random_although_jobs_may_be_spread_over_nodes() -> None:
    seeds = range(30)
    labs = [uneven(seed=str(seed)) for seed in seeds]
    assert {lab.running(1, max_nodes=4).attempts[-1].allocation.node_ids[0] for lab in labs} == {"a", "b", "c"}


def test_production_preempts_on_the_most_powerful_slot_others_the_newest() -> None:
    for priority, newest in ((4, True), (3, False)):
        lab = uneven()
        jobs = [lab.running(1, priority=12) for _ in range(6)]
        powerful = [job for job in jobs if job.attempts[-1].allocation.node_ids == ("b",)]
        if jobs[-1] in powerful:
            lab.end(jobs[-1], DONE)
            jobs[-1] = lab.running(1, priority=12)
        lab.submit(1, priority=priority)
        assert stopped(lab.last) == {jobs[-1].id if newest else powerful[-1].id}


# --- PRI with a limit ---


def test_a_job_that_was_preempted_too_often_is_held_not_lost() -> None:
    lab = lab_of("pri-limit", gpus=1, limit="2")
    low = lab.running(1, priority=12)
    for _ in range(2):
        urgent = lab.submit(1, priority=8)
        lab.settle()
        lab.end(urgent, DONE)
        lab.settle()
    assert low.suspending.preemptions == 2
    assert (low.state, low.held_by) == (JobState.SUSPENDED, HeldBy.SYSTEM)
    assert low.reason == "held: preempted 2 times, the limit"


def test_the_limit_is_at_least_one() -> None:
    with pytest.raises(PolicyError, match="limit is at least 1, not 0"):
        create_policy("pri-limit", {"limit": "0"})


# --- HYBRID ---


def test_the_first_to_come_get_sticky_slots_whatever_their_priority() -> None:
    lab = lab_of("hybrid", gpus=3, sticky="2")
    low, middle, high = (lab.running(1, priority=priority) for priority in (12, 8, 2))
    assert [sticky(job) for job in (low, middle, high)] == [True, True, False]


def test_a_job_on_a_sticky_slot_is_never_preempted() -> None:
    lab = lab_of("hybrid", gpus=2, sticky="1")
    kept = lab.running(1, priority=12)
    newest = lab.running(1, priority=12)
    for _ in range(2):
        lab.submit(1, priority=1)
        lab.settle()
    assert (kept.suspending.preemptions, newest.suspending.preemptions) == (0, 1)
    assert kept.state is JobState.RUNNING


def test_a_free_sticky_slot_goes_to_the_job_that_first_came_not_to_the_most_urgent() -> None:
    lab = lab_of("hybrid", gpus=2, sticky="1")
    holder = lab.running(1, priority=4)
    evicted = lab.running(1, priority=12)
    urgent = lab.submit(1, priority=1)
    lab.settle()
    assert evicted.state is JobState.SUSPENDED
    waiting = lab.submit(1, priority=1)
    lab.end(holder, DONE)
    assert launched(lab.last) == {evicted.id}  # it keeps its first arrival
    assert sticky(evicted)
    assert waiting.state is JobState.PENDING
    lab.start(evicted)
    lab.end(urgent, DONE)
    assert launched(lab.last) == {waiting.id}
    assert not sticky(waiting)


def test_regular_slots_are_what_sticky_ones_leave() -> None:
    lab = lab_of("hybrid", gpus=5, sticky="2")
    kept = lab.running(1, priority=12)
    lab.running(1, suspend=SuspendMode.NONE, priority=2)  # on the other sticky slot
    lab.running(1, suspend=SuspendMode.NONE, priority=2)
    triple = lab.submit(3, priority=1)  # it would fit on the regular slots, were they all free
    assert triple.state is JobState.PENDING
    assert stopped(lab.last) == set()
    assert sticky(kept)


def test_a_job_larger_than_all_regular_slots_gets_sticky_ones_too_and_they_are_kept_for_it() -> None:
    lab = lab_of("hybrid", gpus=4, sticky="2")
    kept = lab.running(1, priority=12)
    triple = lab.submit(3, priority=1)
    assert triple.state is JobState.STARTING
    lab.start(triple)
    whole = lab.submit(4, priority=1)
    later = lab.submit(1, priority=12)
    lab.end(triple, DONE)
    assert later.state is JobState.PENDING  # a sticky slot is free, but it is the turn of the one that needs all
    lab.end(kept, DONE)
    assert whole.state is JobState.STARTING


def test_a_job_with_several_gpus_needs_as_many_sticky_slots_and_they_are_kept_for_it() -> None:
    lab = lab_of("hybrid", gpus=4, sticky="2")
    lab.running(1, priority=12)
    pair = lab.running(2, priority=12)
    small = lab.running(1, priority=12)
    assert [sticky(pair), sticky(small)] == [False, True]


def test_sticky_is_a_share_of_all_gpus_below_one() -> None:
    lab = lab_of("hybrid", nodes="ab", gpus=4, sticky="0.25")
    assert [sticky(lab.running(1)) for _ in range(4)] == [True, True, False, False]


def test_more_sticky_slots_than_gpus_make_first_come_first_served() -> None:
    lab = lab_of("hybrid", gpus=1, sticky="5")
    first = lab.running(1, priority=12)
    second, third = lab.submit(1, priority=9), lab.submit(1, priority=1)
    assert stopped(lab.last) == set()
    lab.end(first, DONE)
    assert launched(lab.last) == {second.id}
    assert third.state is JobState.PENDING


def test_without_sticky_slots_the_policy_is_another() -> None:
    with pytest.raises(PolicyError, match="without sticky slots the policy is pri"):
        create_policy("hybrid", {"sticky": "0"})


def test_an_elastic_job_takes_as_many_slots_as_it_needs_at_least_and_stays_sticky_when_it_starts_larger() -> None:
    lab = lab_of("hybrid", gpus=4, sticky="2")
    elastic = lab.running(1, 4)
    assert sticky(elastic)
    assert len(gpus_of(elastic)) == 4
    slots = lab.cluster.state.pools["default"].ranking
    assert isinstance(slots, Slots)
    assert (slots.sticky_share, slots.regular_share) == (WHOLE, 0)


def test_what_an_elastic_job_has_grown_on_is_not_in_the_way_of_others() -> None:
    lab = lab_of("hybrid", gpus=4, sticky="1", resize_after_s="0")
    first = lab.running(1)
    elastic = lab.running(1, 4)
    lab.settle()
    assert len(gpus_of(elastic)) == 3
    other = lab.submit(1)
    lab.settle()
    assert other.state is JobState.RUNNING
    assert (first.suspending.preemptions, elastic.suspending.preemptions, len(gpus_of(elastic))) == (0, 0, 2)


def test_the_books_of_slots_follow_every_change() -> None:
    lab = lab_of("hybrid", gpus=4, sticky="1")
    slots = lab.cluster.state.pools["default"].ranking
    jobs = [lab.running(1, priority=12 - index) for index in range(4)]
    assert (slots.sticky_share, slots.regular_share) == (WHOLE, 3 * WHOLE)
    waiting = lab.submit(1, priority=12)
    assert [job for _, job in slots.waiting] == [waiting]
    for job in jobs:
        lab.end(job, DONE)
        lab.settle()
    lab.end(waiting, DONE)
    assert (slots.sticky_share, slots.regular_share, slots.waiting, slots.regular) == (0, 0, [], {})


def test_the_share_of_sticky_slots_follows_the_nodes_that_come() -> None:
    lab = lab_of("hybrid", gpus=4, sticky="0.25")
    assert [sticky(lab.running(1)) for _ in range(2)] == [True, False]
    lab.tell(registration("b", 4))
    assert [sticky(lab.running(1)) for _ in range(2)] == [True, False]
