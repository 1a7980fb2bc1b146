"""When a policy is asked, and that it is right not to ask it at any other time."""

from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import DUE_AT_ONCE, Cluster
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import JobId, StopCause, parts
from ebbtide_core.planning.policy import Policy
from ebbtide_core.policies.registry import POLICIES, create_policy
from ebbtide_core.reconcile import PLACED_AT_ONCE, reconcile
from ebbtide_core.snapshot import Plan, Snapshot

from tests.core.lab import Lab, registration, wake_times


@dataclass
class Counting(Policy):
    asked: list[float] = field(default_factory=list)

    def plan(self, snapshot: Snapshot) -> Plan:
        self.asked.append(snapshot.now)
        return Plan()


def test_a_policy_is_asked_only_while_somebody_waits() -> None:
    policy = Counting()
    cluster = Cluster(policy)
    job = JobId("1")
    for event in (registration("a"), e.JobSubmitted(job, JobSpec(command=("x",), workdir="/"), "ann")):
        cluster.handle(e.SchedulingDue(), 1.0)
        assert policy.asked == []
        cluster.handle(event, 1.0)
    cluster.handle(e.SchedulingDue(), 2.0)
    cluster.handle(e.HoldRequested(job), 3.0)
    cluster.handle(e.SchedulingDue(), 3.0)
    assert policy.asked == [2.0]


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_wants_anything_while_nobody_waits_and_no_size_may_change(name: str) -> None:
    lab = Lab(name, nodes="ab")
    jobs = [lab.running(gpus, te=te) for gpus in ("1/4", 1, 2) for te in (False, True)]
    lab.tell(e.HoldRequested(jobs[0].id))
    lab.end(jobs[1])
    state = lab.cluster.state.pools["default"]
    assert len(state.queue) + len(state.elastic) + len(state.claims) == 0
    for later in (0.0, 1e3, 1e6):
        plan = create_policy(name, {}).plan(Snapshot(state, lab.now + later))
        assert list(reconcile(state, plan, deque())) == []


def many_jobs_when_a_node_comes(count: int) -> Cluster:
    """A cluster in which so many jobs without GPUs wait until its node registers, and one pass after that."""
    cluster = Cluster(create_policy("fitgpp", {}))
    spec = JobSpec(command=("x",), workdir="/", gpus_min=0, gpus_max=0)
    for number in range(count):
        cluster.handle(e.JobSubmitted(JobId(str(number)), spec, "ann"), 1.0)
    cluster.handle(registration("a"), 2.0)
    cluster.handle(e.SchedulingDue(), 2.0)
    return cluster


def started(cluster: Cluster) -> list[str]:
    return [job.id for job in cluster.state.jobs.values() if job.live is not None]


def test_of_very_many_jobs_that_can_start_some_start_in_each_pass_and_the_next_pass_is_due_at_once() -> None:
    count = 2 * PLACED_AT_ONCE + 1
    cluster = many_jobs_when_a_node_comes(count)
    assert started(cluster) == [str(number) for number in range(PLACED_AT_ONCE)]
    passes = 1
    commands = cluster.handle(e.SchedulingDue(), 2.0)
    while 2.0 in wake_times(commands):
        passes += 1
        assert len(started(cluster)) == min(count, passes * PLACED_AT_ONCE)
        commands = cluster.handle(e.SchedulingDue(), 2.0)
    assert passes == 2
    assert started(cluster) == [str(number) for number in range(count)]


def test_of_very_many_jobs_whose_time_is_over_some_are_stopped_in_each_pass_and_nothing_starts_before_all_are() -> None:
    cluster = Cluster(create_policy("fitgpp", {}))
    spec = JobSpec(command=("x",), workdir="/", gpus_min=0, gpus_max=0, time_limit_s=60.0)
    count = 2 * DUE_AT_ONCE + 1
    ids = [JobId(str(number)) for number in range(count)]
    cluster.handle(registration("a"), 1.0)
    for id in ids:
        cluster.handle(e.JobSubmitted(id, spec, "ann"), 1.0)
    while len(started(cluster)) < count:
        cluster.handle(e.SchedulingDue(), 1.0)
    for id in ids:
        cluster.handle(e.AttemptStarted(id, 1, 100), 1.0)
    late = JobId("late")
    cluster.handle(e.JobSubmitted(late, spec, "ann"), 62.0)

    def stopped() -> int:
        orders = [attempt.stop for job in cluster.state.jobs.values() for attempt in job.attempts]
        return sum(order is not None and order.cause is StopCause.TIME_LIMIT for order in orders)

    for passes in (1, 2):
        assert set(wake_times(cluster.handle(e.SchedulingDue(), 62.0))) == {62.0}
        assert (stopped(), late in started(cluster)) == (passes * DUE_AT_ONCE, False)
    cluster.handle(e.SchedulingDue(), 62.0)
    assert (stopped(), late in started(cluster)) == (count, True)


def test_a_job_that_is_held_resized_or_cancelled_between_two_passes_of_one_plan_does_not_start_by_it() -> None:
    count = 2 * PLACED_AT_ONCE
    cluster = many_jobs_when_a_node_comes(count)
    held, resized, cancelled = (JobId(str(count - number)) for number in (1, 2, 3))
    cluster.handle(e.HoldRequested(held), 3.0)
    cluster.handle(e.ResizeRequested(resized, parts(8), parts(8)), 3.0)
    cluster.handle(e.CancelRequested(cancelled), 3.0)
    for _ in range(3):
        cluster.handle(e.SchedulingDue(), 3.0)
    assert set(map(str, range(count))) - set(started(cluster)) == {held, resized, cancelled}


def test_what_a_plan_has_left_on_a_node_that_is_removed_in_between_is_left_to_the_next_plan() -> None:
    """Kept apart from another job, each of them is looked for on its node."""
    cluster = Cluster(create_policy("fitgpp", {}))
    spec = JobSpec(command=("x",), workdir="/", gpus_min=parts(Fraction(1, 20)), gpus_max=parts(Fraction(1, 20)))
    for number in range(2 * PLACED_AT_ONCE):
        cluster.handle(e.JobSubmitted(JobId(str(number)), spec, "ann"), 1.0)
    state = cluster.state
    state.add_anti_affinity(state.jobs[JobId("0")], state.jobs[JobId("1")], 1e6)
    for name in "ab":
        cluster.handle(registration(name, -(-PLACED_AT_ONCE // 20)), 2.0)
    cluster.handle(e.SchedulingDue(), 2.0)
    used = {job.attempts[-1].allocation.node_ids[0] for job in state.jobs.values() if job.live is not None}
    [unused] = state.nodes.keys() - used
    for event in (e.NodeDisconnected(unused), e.NodeLost(unused, 40.0), e.NodeRemoved(unused, "ann")):
        cluster.handle(event, 3.0)
    before = started(cluster)
    cluster.handle(e.SchedulingDue(), 3.0)
    assert started(cluster) == before
