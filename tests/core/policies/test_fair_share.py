"""Fair shares by demand and weight (seed 003)."""

from collections import Counter

import pytest
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import (
    AttemptSwapped,
    HoldRequested,
    JobSubmitted,
    NodeDisconnected,
    NodeDrained,
    NodeLost,
    RateMeasured,
    ReleaseRequested,
    ResumeRequested,
    SuspendRequested,
)
from ebbtide_core.model.constraints import Needs
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, JobId, JobState, NodeId, SuspendMode
from ebbtide_core.planning.fair_share.claims import ShareClaim, divide
from ebbtide_core.planning.fair_share.groups import ShareGroup
from ebbtide_core.policies.registry import PolicyError, create_policy

from tests.core.lab import DONE, GIB, Lab, gpus_of, registration, stopped

BOUND = {"suspend": SuspendMode.NONE}


def lab_of(nodes="a", gpus=8, **options):
    return Lab("fair-share", nodes, gpus, **options)


def submit_together(lab, *bags, settle=True):
    """Submit jobs in one pass: (group, count, gpus, changes) each; returns the jobs of each."""
    held = [
        [lab.submit(gpus, hold=True, group=group, **changes) for _ in range(count)]
        for group, count, gpus, changes in bags
    ]
    for jobs in held:
        for job in jobs:
            lab.cluster.handle(ReleaseRequested(job.id), lab.now)
    lab.wait(0)
    if settle:
        lab.settle()
    return held


def held_by(*groups):
    return [sum(len(gpus_of(job)) for job in jobs) for jobs in groups]


# --- the seed's examples, on 8 GPUs ---


@pytest.mark.parametrize(
    ("demands", "weights", "shares"),
    [
        ((10, 30), (1, 1), (2, 6)),
        ((10, 30), (3, 1), (4, 4)),
        ((30, 10), (1, 3), (4, 4)),
        ((10,), (1,), (8,)),
        ((2, 30), (5, 1), (2, 6)),  # capped at the demand, the rest goes to the other
        ((3, 3), (1, 1), (3, 3)),
        ((8, 8, 8), (1, 1, 1), (3, 3, 2)),  # largest remainder, the oldest first
        ((10, 11), (1, 1), (4, 4)),
        ((1, 100), (1, 1), (1, 7)),  # a small demand is not drowned
        ((1, 100), (0.01, 1), (0, 8)),  # unless its weight says so
    ],
)
def test_gpus_are_divided_in_proportion_to_demand_and_weight(demands, weights, shares) -> None:
    lab = lab_of()
    bags = [
        (f"g{n}", demand, 1, {"weight": weight})
        for n, (demand, weight) in enumerate(zip(demands, weights, strict=True))
    ]
    assert held_by(*submit_together(lab, *bags)) == list(shares)


def test_shares_are_adjusted_when_another_group_comes_and_when_it_is_done() -> None:
    lab = lab_of()
    [first] = submit_together(lab, ("first", 10, 1, {}))
    assert held_by(first) == [8]
    [second] = submit_together(lab, ("second", 30, 1, {}))
    assert held_by(first, second) == [2, 6]
    assert sum(job.suspending.preemptions for job in first) == 6
    for job in second:
        while not job.state.finished:
            lab.end(next(other for other in second if other.state is JobState.RUNNING), DONE)
            lab.settle()
    assert held_by(first) == [8]


def test_jobs_without_a_group_share_as_groups_of_their_own() -> None:
    lab = lab_of()
    big = lab.running(8)
    small = [lab.submit(1) for _ in range(4)]
    lab.settle()
    assert big.state is JobState.RUNNING  # to preempt it would leave it without anything
    assert held_by(small) == [0]


def test_a_share_is_capped_at_the_demand_and_what_is_over_is_divided_again() -> None:
    claims = [
        ShareClaim(ShareGroup(n, ""), weight, demand * WHOLE, bound * WHOLE, bound * WHOLE, iter(()))
        for n, (demand, weight, bound) in enumerate([(1, 40.0, 0), (10, 1.0, 0), (10, 1.0, 7), (2, 0.1, 2)])
    ]
    divide(12 * WHOLE, claims)
    assert [claim.left / WHOLE for claim in claims] == pytest.approx([1, 2, 7, 2])


@pytest.mark.parametrize("capacity", [0, 1, 5, 8, 100])
def test_shares_add_up_to_all_gpus_or_to_the_demand(capacity) -> None:
    shapes = [(1, 2.0, 0), (7, 0.3, 1), (3, 1.0, 3), (12, 5.0, 0), (2, 99.0, 1)]
    claims = [
        ShareClaim(ShareGroup(n, ""), weight, demand * WHOLE, bound * WHOLE, bound * WHOLE, iter(()))
        for n, (demand, weight, bound) in enumerate(shapes)
    ]
    divide(capacity * WHOLE, claims)
    assert all(claim.bound <= claim.left <= claim.demand for claim in claims)
    expected = min(sum(demand for demand, _, _ in shapes), max(capacity, 5)) * WHOLE
    assert sum(claim.left for claim in claims) == pytest.approx(expected, abs=len(shapes))


# --- who is preempted ---


def test_the_newest_jobs_of_a_group_over_its_share_are_preempted() -> None:
    lab = lab_of(gpus=4)
    old = [lab.running(1, group="old") for _ in range(4)]
    lab.submit(1, group="new")
    assert stopped(lab.last) == {old[3].id}
    lab.settle()
    lab.submit(1, group="new")
    assert old[2].state is JobState.RUNNING  # demands of 4 and 2: shares of 2.67 and 1.33


def test_no_more_are_preempted_than_are_needed_and_on_one_node_only() -> None:
    lab = lab_of("ab", gpus=4)
    old = [lab.running(1, group="old") for _ in range(8)]
    big = lab.submit(3, group="new")
    victims = [job for job in old if job.id in stopped(lab.last)]
    assert len(victims) == 3
    assert len({job.attempts[-1].allocation.node_ids for job in victims}) == 1
    lab.settle()
    assert len(gpus_of(big)) == 3


def test_the_oldest_groups_run_when_no_group_has_a_share_as_large_as_its_jobs() -> None:
    """Determined meant to set the youngest aside, and set aside any."""
    lab = lab_of()
    groups = submit_together(lab, *[(name, 2, 4, {}) for name in "wxyz"])
    assert held_by(*groups) == [4, 4, 0, 0]
    assert {job.suspending.preemptions for jobs in groups for job in jobs} == {0}


def test_nobody_is_preempted_for_a_gain_of_less_than_a_whole_job() -> None:
    lab = lab_of()
    first = lab.running(8, group="first")
    submit_together(lab, ("second", 2, 8, {}))  # shares of 2.67 and 5.33
    assert first.suspending.preemptions == 0
    lab.end(first, DONE)
    lab.settle()
    assert first.state is JobState.COMPLETED


def test_shares_come_to_rest_whatever_the_sizes_of_jobs_and_groups() -> None:
    lab = lab_of("ab", gpus=4, min_run_s="0")
    for count, gpus, weight in [(3, 2, 1.0), (5, 1, 2.0), (1, 4, 0.5), (2, 3, 1.0), (4, "1/2", 3.0)]:
        group = f"{count} of {gpus}"
        submit_together(lab, (group, count, gpus, {"weight": weight}))
        before = [len(job.attempts) for job in lab.cluster.state.jobs.values()]
        for _ in range(5):
            lab.wait(1000)
            lab.settle()
        assert [len(job.attempts) for job in lab.cluster.state.jobs.values()] == before


def test_a_resumed_job_is_spared_for_a_while() -> None:
    lab = lab_of(gpus=2, min_run_s="600")
    first = [lab.running(1, group="first") for _ in range(2)]
    second = lab.submit(1, group="second")
    lab.settle()
    lab.end(second, DONE)
    lab.settle()
    assert [job.state for job in first] == [JobState.RUNNING] * 2
    assert first[1].suspending.preemptions == 1
    third = lab.submit(1, group="third")
    assert stopped(lab.last) == set()
    assert lab.wakes[-1][1] == pytest.approx(first[1].attempts[-1].started + 600)
    lab.wait(600)
    lab.settle()
    assert third.state is JobState.RUNNING


def test_what_cannot_be_preempted_is_charged_to_its_group_first() -> None:
    """Determined gave such a group its whole share in addition."""
    lab = lab_of()
    bound = [lab.running(1, group="first", **BOUND) for _ in range(3)]
    first, second = submit_together(lab, ("first", 10, 1, {}), ("second", 13, 1, {}))
    assert held_by(bound + first, second) == [4, 4]


def test_others_divide_what_is_left_by_a_group_that_has_too_much_and_cannot_be_preempted() -> None:
    lab = lab_of()
    bound = [lab.running(1, group="first", **BOUND) for _ in range(6)]
    second, third = submit_together(lab, ("second", 6, 1, {}), ("third", 6, 1, {}))
    assert held_by(bound, second, third) == [6, 1, 1]


def test_what_cannot_be_preempted_starts_only_within_its_share() -> None:
    lab = lab_of()
    first, second = submit_together(lab, ("first", 8, 1, BOUND), ("second", 1, 8, {}))
    assert held_by(first, second) == [4, 0]
    lab = lab_of()
    first, second = submit_together(lab, ("first", 8, 1, {}), ("second", 1, 8, {}))
    assert held_by(first, second) == [8, 0]


def test_a_preempted_job_that_has_not_stepped_aside_yet_still_counts_as_demand() -> None:
    lab = lab_of(gpus=2)
    first = [lab.running(1, group="first") for _ in range(2)]
    second = lab.submit(1, group="second")
    assert first[1].state is JobState.SUSPENDING
    lab.wait(0)
    assert (first[0].state, second.state) == (JobState.RUNNING, JobState.PENDING)
    assert second.reason == f"waiting for 1 GPU that job {first[1].id} is asked to free"


def test_a_held_job_is_no_demand() -> None:
    lab = lab_of()
    first, second = submit_together(lab, ("first", 10, 1, {}), ("second", 30, 1, {}))
    for job in second:
        if job.state is JobState.PENDING:
            lab.tell(HoldRequested(job.id))
    assert held_by(first, second) == [2, 6]
    for job in [job for job in second if job.state is JobState.RUNNING][:3]:
        lab.end(job, DONE)
        lab.settle()
    assert held_by(first, second) == [6, 2]  # demands of 10 and 3


def test_a_job_that_may_not_start_yet_is_no_demand() -> None:
    lab = lab_of()
    later = {"begin_at": 1e9}
    submit_together(lab, ("later", 40, 1, later))
    first, second = submit_together(lab, ("first", 8, 1, BOUND), ("second", 8, 1, BOUND))
    assert held_by(first, second) == [4, 4]


def test_what_a_silent_node_holds_is_neither_share_nor_demand() -> None:
    lab = lab_of("ab", gpus=4)
    first = submit_together(lab, ("first", 8, 1, {}))[0]
    lab.tell(NodeDisconnected(NodeId("b")))
    lab.tell(NodeLost(NodeId("b"), 20.0))
    [second] = submit_together(lab, ("second", 4, 1, {}))
    assert held_by(second) == [2]
    assert sum(job.state is JobState.RUNNING for job in first) == 2


def test_who_waits_for_a_drained_node_has_no_share_of_the_others_and_is_told_so() -> None:
    lab = lab_of("ab", gpus=4)
    lab.tell(NodeDrained(node=NodeId("b")))
    there = {"needs": Needs(on=("b",))}
    away, mixed, here = submit_together(
        lab, ("away", 3, 1, there), ("mixed", 3, 1, there), ("here", 3, 1, BOUND), settle=False
    )
    mixed += submit_together(lab, ("mixed", 1, 1, BOUND))[0]
    assert held_by(away, mixed, here) == [0, 1, 3]
    assert "none of the connected nodes will do (a: not among --on b)" in away[0].reason


def test_a_job_in_the_memory_of_a_lost_node_has_no_share_of_the_others_though_they_read_its_checkpoints() -> None:
    lab = lab_of("", gpus=4)
    for name in "ab":
        lab.tell(registration(name, 4, checkpoint_root_id="one"))
    jobs = [lab.running(1, group="swapped", suspend=SuspendMode.SWAP) for _ in range(8)]
    there = [job for job in jobs if job.attempts[-1].allocation.node_ids == ("b",)]
    for job in there:
        lab.tell(SuspendRequested(job.id))
        lab.tell(AttemptSwapped(job.id, 1, 1, GIB, 1.0))
    for job in jobs:
        if job not in there:
            lab.end(job, DONE)
    lab.tell(NodeDisconnected(NodeId("b")))
    lab.tell(NodeLost(NodeId("b"), 20.0))
    for job in there:
        lab.tell(ResumeRequested(job.id))
    here = [lab.submit(1, group="here", suspend=SuspendMode.NONE) for _ in range(4)]
    assert {job.state for job in here} == {JobState.STARTING}
    assert "waiting for GPU b0 of node b" in there[0].reason


# --- filling, elastic jobs, jobs without GPUs ---


def test_gpus_in_pieces_go_to_those_who_fit_until_they_are_needed() -> None:
    lab = lab_of("ab", gpus=2)
    bound = [lab.running(1, **BOUND) for _ in range(3)]
    pieces = [job for job in bound if job.attempts[-1].allocation.node_ids == ("a",)]
    lab.end(pieces[0], DONE)  # one idle GPU on each node
    pair = lab.submit(2, group="first")
    assert pair.reason == "waiting for 2 GPUs"
    filler = lab.running(1, group="first")
    assert filler.state is JobState.RUNNING
    assert lab.submit(1, group="first", **BOUND).state is JobState.PENDING
    node = filler.attempts[-1].allocation.node_ids
    lab.end(next(j for j in bound if j.running and j.attempts[-1].allocation.node_ids == node), DONE)
    lab.settle()
    assert pair.state is JobState.RUNNING


def test_an_elastic_job_demands_its_greatest_size_and_shrinks_to_its_share() -> None:
    lab = lab_of(resize_after_s="0")
    elastic = lab.running(1, 8)
    lab.settle()
    assert len(gpus_of(elastic)) == 8
    [others] = submit_together(lab, ("others", 8, 1, {}))
    assert held_by([elastic], others) == [4, 4]
    assert {job.suspending.preemptions for job in [elastic, *others]} == {0}


def test_room_is_kept_for_an_elastic_job_only_where_it_can_grow() -> None:
    lab = lab_of("ab", gpus=2)
    on_a, on_b, last = [lab.running(1, group="rigid", needs=Needs(on=(node,))) for node in "abb"]
    elastic = lab.running(1, 2, weight=5.0)
    waiting = [lab.submit(1, group="rigid") for _ in range(4)]
    lab.end(last, DONE)
    assert [job.state for job in waiting] == [JobState.STARTING] + [JobState.PENDING] * 3
    lab.end(on_a, DONE)
    lab.settle()
    assert held_by([on_b], waiting, [elastic]) == [1, 1, 1]
    lab.wait(100)
    lab.settle()
    assert held_by([on_b], waiting, [elastic]) == [1, 1, 2]


@pytest.mark.parametrize("suspend", [SuspendMode.CHECKPOINT, SuspendMode.NONE])
def test_others_have_what_an_elastic_job_was_measured_to_have_no_use_for(suspend) -> None:
    lab = lab_of()
    earlier = lab.running(1, name="slow")
    lab.end(earlier, DONE)
    for gpus, per_s in ((1, 10.0), (2, 19.0), (4, 20.0)):
        lab.tell(RateMeasured(earlier.id, 1, gpus * WHOLE, 1, True, per_s, 9, "A100"))
    elastic = lab.running(1, 8, name="slow")
    [others] = submit_together(lab, ("others", 8, 1, {"suspend": suspend}))
    assert held_by([elastic], others) == [2, 6]


def test_surplus_is_taken_from_those_who_have_more_than_their_share() -> None:
    lab = lab_of(resize_after_s="0")
    elastic = lab.running(1, 4, group="elastic")
    rigid = [lab.running(1, group="rigid") for _ in range(4)]
    lab.settle()
    assert held_by([elastic], rigid) == [4, 4]
    [third] = submit_together(lab, ("third", 4, 1, {}))
    assert sorted(held_by([elastic], rigid, third)) == [2, 3, 3]


def test_jobs_without_gpus_are_first_in_first_out_and_apart() -> None:
    lab = lab_of(gpus=1)
    lab.running(1)
    waiting = lab.submit(1)
    assert lab.submit(0, cpus=20.0).state is JobState.STARTING
    large = lab.submit(0, cpus=20.0)
    small = lab.submit(0, cpus=1.0)
    assert [job.state for job in (waiting, large, small)] == [JobState.PENDING] * 3
    assert large.reason == "waiting for CPUs only"


def test_a_job_without_gpus_that_waits_for_a_drained_node_does_not_block_those_behind_it() -> None:
    lab = lab_of("ab")
    lab.tell(NodeDrained(node=NodeId("b")))
    away = [lab.submit(0, needs=Needs(on=("b",))) for _ in range(2)]
    large = [lab.submit(0, cpus=20.0) for _ in range(2)]
    assert lab.submit(0, cpus=1.0).state is JobState.PENDING
    assert [job.state for job in (*away, *large)] == [JobState.PENDING] * 2 + [JobState.STARTING, JobState.PENDING]


def test_who_waits_because_of_its_share_is_told_so() -> None:
    lab = lab_of()
    first, _ = submit_together(lab, ("first", 10, 1, {}), ("second", 30, 1, {}))
    waiting = next(job for job in first if job.state is JobState.PENDING)
    assert waiting.reason == "waiting: the jobs of its group have their share of 2 GPUs"


def test_a_gang_takes_its_share_of_several_nodes_or_nothing() -> None:
    lab = lab_of("", gpus=4)
    for node in "ab":
        lab.tell(registration(node, 4, checkpoint_root_id="shared"))
    [first] = submit_together(lab, ("first", 8, 1, {}))
    gang = lab.submit(6, group="gang", max_nodes=2)
    assert stopped(lab.last) == set()  # its share of 3.43 is too far from 6
    for job in first[:5]:
        lab.end(job, DONE)
        lab.settle()
    assert held_by(first, [gang]) == [3, 0]
    lab.end(first[5], DONE)
    lab.settle()
    assert held_by(first, [gang]) == [2, 6]


# --- users, and what they had ---


def test_shares_per_user_do_not_grow_with_the_number_of_experiments() -> None:
    """In Determined, whoever has ten experiments has ten shares."""

    def submit(lab, user, group):
        id = JobId(str(len(lab.cluster.state.jobs) + 1))
        lab.tell(JobSubmitted(id, JobSpec(command=("x",), workdir="/", group=group), user))
        return lab.cluster.state.jobs[id]

    lab = lab_of(per="user")
    many = [submit(lab, "ann", f"g{n}") for n in range(10)]
    lab.settle()
    few = [submit(lab, "bob", "one") for _ in range(10)]
    lab.settle()
    assert held_by(many, few) == [4, 4]


class Users:
    """Users whose jobs run for hours."""

    def __init__(self, **options):
        self.lab = lab_of(per="user", **options)
        self.jobs = {}

    def submits(self, user, count):
        for _ in range(count):
            id = JobId(str(len(self.lab.cluster.state.jobs) + 1))
            self.lab.tell(JobSubmitted(id, JobSpec(command=("x",), workdir="/"), user))
            self.jobs.setdefault(user, []).append(self.lab.cluster.state.jobs[id])
        self.lab.settle()

    def passes(self, seconds):
        self.lab.wait(seconds)
        self.lab.settle()

    @property
    def held(self):
        counted = Counter({user: sum(len(gpus_of(job)) for job in jobs) for user, jobs in self.jobs.items()})
        return dict(counted)


def test_who_had_much_lately_gets_less_now() -> None:
    users = Users(half_life_s="3600")
    users.submits("ann", 20)
    users.passes(10_000)
    users.submits("bob", 20)
    assert users.held["bob"] > users.held["ann"] > 0
    without = Users()
    without.submits("ann", 20)
    without.passes(10_000)
    without.submits("bob", 20)
    assert without.held == {"ann": 4, "bob": 4}


def test_the_past_fades() -> None:
    users = Users(half_life_s="3600", min_run_s="0")
    users.submits("ann", 20)
    users.passes(10_000)
    for job in users.jobs["ann"]:
        users.lab.tell(HoldRequested(job.id))
    for job in users.jobs["ann"]:
        if job.state is JobState.RUNNING:
            users.lab.end(job)
    users.passes(200_000)
    for job in users.jobs["ann"]:
        users.lab.tell(ReleaseRequested(job.id))
    users.submits("bob", 20)
    assert users.held == {"ann": 4, "bob": 4}


def test_what_users_had_is_the_same_after_the_journal_is_folded_again() -> None:
    users = Users(half_life_s="3600")
    users.submits("ann", 20)
    users.passes(5_000)
    users.submits("bob", 3)
    users.passes(5_000)
    lab = users.lab
    again = Cluster(create_policy("fair-share", {"per": "user", "half_life_s": "3600"}))
    for now, event in lab.journal:
        again.replay(event, now)
    assert again.state.pools["default"].ranking.past == lab.cluster.state.pools["default"].ranking.past
    assert again.state.pools["default"].ranking.past["ann"].average > 0


def test_options_that_make_no_sense_are_refused() -> None:
    for options in ({"half_life_s": "60"}, {"per": "user", "half_life_s": "0"}, {"per": "team"}):
        with pytest.raises(PolicyError, match="--policy-option"):
            create_policy("fair-share", options)


def test_a_group_is_forgotten_with_its_last_job() -> None:
    lab = lab_of()
    job = lab.running(1, group="x")
    assert list(lab.cluster.state.pools["default"].ranking.groups) == ["group x"]
    lab.end(job, DONE)
    assert lab.cluster.state.pools["default"].ranking.groups == {}


def test_a_group_of_jobs_is_never_a_job_alone() -> None:
    lab = lab_of(gpus=4)
    alone = lab.running(1)
    lab.running(1, group=alone.id)
    assert len(lab.cluster.state.pools["default"].ranking.groups) == 2


def test_a_node_that_comes_gives_everyone_more() -> None:
    lab = lab_of(gpus=4)
    first, second = submit_together(lab, ("first", 10, 1, {}), ("second", 10, 1, {}))
    assert held_by(first, second) == [2, 2]
    lab.tell(registration("b", 4))
    lab.settle()
    assert held_by(first, second) == [4, 4]
