"""What Determined's schedulers did wrong, by source and by users, and ours does not.

The list is in docs/explanation/policies/determined.md.

The faults are those of the last release (0.38). Where it says "live", a test on real processes has the rest.
"""

from fractions import Fraction

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import RefusalKind
from ebbtide_core.events import GpuHealthChanged, JobChanged, JobSubmitted
from ebbtide_core.model.limits import RECOVERY_GRACE_S
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import (
    WHOLE,
    ForeignProcess,
    GpuId,
    HeldBy,
    JobId,
    JobState,
    NodeId,
    RefusalCause,
    SuspendMode,
)
from ebbtide_core.policies.registry import POLICIES, create_policy
from ebbtide_core.views.change_effect import in_short, missing_effect, missing_effects

from tests.core.job.test_gang import Gangs
from tests.core.lab import DONE, GIB, Lab, gpus_of, launched, registration, stopped
from tests.core.resources.test_topology import PAIRS, linked

BOUND = {"suspend": SuspendMode.NONE}
policies = pytest.mark.parametrize("policy", POLICIES)


def held(jobs):
    return sum(len(gpus_of(job)) for job in jobs)


def several(lab, count, gpus=1, **spec):
    """Submit so many at once."""
    jobs = [lab.submit(gpus, hold=True, **spec) for _ in range(count)]
    for job in jobs:
        lab.cluster.handle(e.ReleaseRequested(job.id), lab.now)
    lab.wait(0)
    lab.settle()
    return jobs


def submitted_by(lab, user, count=1, **spec):
    jobs = []
    for _ in range(count):
        id = JobId(str(len(lab.cluster.state.jobs) + 1))
        lab.tell(JobSubmitted(id, JobSpec(command=("x",), workdir="/", **spec), user))
        jobs.append(lab.cluster.state.jobs[id])
    lab.settle()
    return jobs


def set_priority(lab, job, priority):
    return lab.tell(JobChanged(job.id, priority, job.weight, job.priority, job.weight))


# --- fair shares: 1 to 3 of the source ---


def test_a_group_gets_its_share_with_what_cannot_be_preempted_and_not_on_top_of_it() -> None:
    """fair_share.go accountForPreoffers subtracted what it had just set to 0."""
    lab = Lab("fair-share", gpus=8)
    bound = several(lab, 3, group="notebooks", **BOUND)
    mine = several(lab, 10, group="notebooks")
    others = several(lab, 13, group="others")
    assert (held(bound) + held(mine), held(others)) == (4, 4)


def test_what_cannot_be_preempted_is_charged_to_its_owner() -> None:
    lab = Lab("fair-share", gpus=8, per="user")
    submitted_by(lab, "ann", 4, **BOUND)
    experiments = submitted_by(lab, "ann", 16)
    assert held(submitted_by(lab, "bob", 20)) == 4
    assert held(experiments) == 0


def test_the_youngest_groups_wait_where_no_share_is_as_large_as_a_job() -> None:
    """fair_share.go allocateSlotOffers sorted one list by the times of another, and set aside any group."""
    for order in ("abcdef", "fcabed"):
        lab = Lab("fair-share", gpus=8)
        jobs = [lab.submit(4, hold=True, group=name) for name in order for _ in range(2)]
        for job in reversed(jobs):
            lab.cluster.handle(e.ReleaseRequested(job.id), lab.now)
        lab.wait(0)
        lab.settle()
        assert [job.spec.group for job in jobs if job.state is JobState.RUNNING] == [*order[:2]]


def test_who_is_preempted_for_a_share_is_the_newest_and_not_the_first_of_a_list_and_not_again_at_once() -> None:
    """fair_share.go assignTasks released in the order of its list, at any cost, as often as it liked."""
    lab = Lab("fair-share", gpus=2, min_run_s="600")
    first = [lab.running(1, group="first") for _ in range(2)]
    newcomer = lab.submit(1, group="second")
    assert stopped(lab.last) == {first[1].id}
    lab.settle()
    lab.end(newcomer, DONE)
    lab.settle()
    lab.submit(1, group="third")
    assert stopped(lab.last) == set()


def test_a_user_with_ten_experiments_has_one_share() -> None:
    """Determined shares among experiments: who has ten of them has ten shares."""
    for options in ({}, {"half_life_s": "86400"}):
        lab = Lab("fair-share", gpus=8, per="user", **options)
        for user, count in (("ann", 10), ("bob", 10)):
            for number in range(count):
                spec = JobSpec(command=("x",), workdir="/", group=f"{user}{number}" if user == "ann" else "one")
                lab.cluster.handle(JobSubmitted(JobId(f"{user}{number}"), spec, user), lab.now)
        lab.wait(0)
        lab.settle()
        jobs = lab.cluster.state.jobs.values()
        assert [held(job for job in jobs if job.user == user) for user in ("ann", "bob")] == [4, 4]


# --- preemption: 4 and 5 ---


def test_nobody_is_preempted_whose_room_does_not_help() -> None:
    """priority.go trySchedulingTaskViaPreemption keeps all that it looked at before it found a fit."""
    lab = Lab("priority", "", gpus=4)
    for name, gpus in (("a", 1), ("b", 4)):
        lab.tell(registration(name, gpus))
    useless = lab.running(1, priority=99)
    assert gpus_of(useless) == {"a0"}
    others = [lab.running(1, priority=50) for _ in range(4)]
    lab.submit(3, priority=5)
    assert len(stopped(lab.last)) == 3
    assert stopped(lab.last) < {job.id for job in others}


@pytest.mark.parametrize("policy", ["priority", "pri", "hybrid", "fair-share", "fitgpp"])
def test_no_more_are_preempted_than_are_needed(policy: str) -> None:
    lab = Lab(policy, "abc", gpus=4, min_run_s="0", **({"sticky": "1"} if policy == "hybrid" else {}))
    jobs = [lab.running(1, priority=9, group="many") for _ in range(12)]
    big = lab.submit(3, priority=5, te=True, group="one")
    assert len(stopped(lab.last)) == 3
    lab.settle()
    assert (held([big]), sum(job.suspending.preemptions for job in jobs)) == (3, 3)


def test_others_start_while_somebody_is_on_the_way_out() -> None:
    """While a release is pending, Determined starts nothing less urgent."""
    lab = Lab("priority", "a", gpus=2)
    lab.tell(registration("b", 1))
    lab.running(2, priority=9)
    lab.submit(2, priority=5)
    assert len(stopped(lab.last)) == 1
    assert lab.submit(1, priority=50).state is JobState.STARTING


@pytest.mark.parametrize("spec", [{}, BOUND])
def test_without_preemption_idle_gpus_are_used_all_the_same(spec: dict) -> None:
    """Determined backfills with preemption only, and only with what can be preempted."""
    lab = Lab("priority", gpus=4, preemption="off")
    lab.running(1, priority=50, **BOUND)
    blocked = lab.submit(4, priority=5)
    assert lab.submit(1, priority=9, **spec).state is JobState.STARTING
    assert blocked.state is JobState.PENDING


def test_time_limits_let_short_jobs_pass_and_long_ones_not() -> None:
    """Determined knows no time limits, so that it can promise no start."""
    lab = Lab("priority", gpus=4, preemption="off", backfill="easy")
    lab.running(1, priority=5, time_limit_s=3600.0, grace_s=0.0, **BOUND)
    lab.submit(4, priority=5)
    short = lab.submit(1, priority=5, time_limit_s=1800.0, grace_s=0.0)
    long = lab.submit(1, priority=5, time_limit_s=7200.0, grace_s=0.0)
    assert (short.state, long.state) == (JobState.STARTING, JobState.PENDING)


# --- room: 6 and 7 ---


@policies
def test_twelve_gpus_of_nodes_with_eight_are_had_at_once_and_beside_others(policy: str) -> None:
    """Determined wants whole, idle nodes of one size, and 12 is no multiple of 8."""
    lab = Lab(policy, "")
    for name in "ab":
        lab.tell(registration(name, 8, checkpoint_root_id="shared"))
    beside = lab.running(1)
    large = lab.submit(12, max_nodes=2)
    assert (large.state, held([large])) == (JobState.STARTING, 12)
    assert not gpus_of(large) & gpus_of(beside)


@policies
@pytest.mark.parametrize(("nodes", "each"), [("ab", 8), ("abcd", 4)])
def test_two_gangs_of_sixteen_on_sixteen_gpus_run_one_after_the_other(policy: str, nodes: str, each: int) -> None:
    """On Kubernetes each may get a part, and then both wait for ever."""
    lab = Lab(policy, "", each)
    for name in nodes:
        lab.tell(registration(name, each, checkpoint_root_id="shared"))
    small = [lab.running(1) for _ in range(3)]
    gangs = [lab.submit(16, max_nodes=4, hold=True) for _ in range(2)]
    for gang in gangs:
        lab.cluster.handle(e.ReleaseRequested(gang.id), lab.now)
    lab.wait(0)
    assert [held([gang]) for gang in gangs] == [0, 0]
    for job in small:
        if not job.state.finished:
            lab.end(job, DONE)
            lab.settle()
    for _ in gangs:
        lab.wait(1000)
        lab.settle()
        [runs] = [gang for gang in gangs if gang.state is JobState.RUNNING]
        assert held(gangs) == held([runs]) == 16
        lab.end(runs, DONE)
        lab.settle()
    assert {gang.state for gang in gangs} == {JobState.COMPLETED}


@pytest.mark.parametrize("policy", ["priority", "fair-share", "fifo", "fitgpp"])
def test_gpus_left_over_in_pieces_are_put_together_by_a_move(policy: str) -> None:
    """Determined never moves anybody: what is in pieces stays so."""
    lab = Lab(policy, "")
    for name in "ab":
        lab.tell(registration(name, 2, checkpoint_root_id="shared"))
    jobs = [lab.running(1) for _ in range(4)]
    movable = [jobs[0], jobs[2]]
    for job in movable:
        lab.tell(e.SuspendRequested(job.id))
        lab.end(job)
        lab.tell(e.ResumeRequested(job.id))
        lab.start(job)
    for node in "ab":
        other = next(job for job in jobs if job not in movable and job.attempts[-1].allocation.node_ids == (node,))
        lab.end(other, DONE)
    lab.now += 5000
    assert {job.attempts[-1].allocation.node_ids for job in movable} == {("a",), ("b",)}
    pair = lab.submit(2)
    lab.settle()
    assert (pair.state, held(movable)) == (JobState.RUNNING, 2)


@pytest.mark.parametrize("policy", ["priority", "fair-share"])
def test_slots_that_are_left_over_are_filled_with_jobs_of_one(policy: str) -> None:
    lab = Lab(policy, "ab", gpus=4)
    lab.running(3, priority=5, group="first")
    lab.running(3, priority=5, group="first")
    blocked = lab.submit(2, priority=5, group="second")
    fillers = [lab.running(1, priority=50, group="third") for _ in range(2)]
    assert (blocked.state, held(fillers)) == (JobState.PENDING, 2)


def test_gpus_that_are_linked_go_together() -> None:
    """allocateFreeDevices took GPUs in the order of a map."""
    lab = Lab("priority", "")
    lab.tell(linked(8, nvlinks=PAIRS))
    lab.running(1)
    pairs = [{f"a{one}", f"a{other}"} for one, other in PAIRS]
    assert all(gpus_of(lab.running(2)) in pairs for _ in range(3))


def test_memory_counts_and_who_else_uses_a_gpu_is_seen() -> None:
    """Determined asked nvidia-smi for names: it never read the memory, nor which processes are there."""
    lab = Lab("priority", gpus=2)
    lab.tell(e.ForeignUseChanged(NodeId("a"), GpuId("a0"), (ForeignProcess(7, "somebody", "python", GIB),)))
    assert gpus_of(lab.running("1/4", gpu_mem_bytes=30 * GIB)) == {"a1"}
    assert gpus_of(lab.running("1/4", gpu_mem_bytes=4 * GIB)) == {"a1"}
    assert lab.submit("1/4", gpu_mem_bytes=20 * GIB).state is JobState.PENDING


def test_a_gpu_can_be_shared() -> None:
    """Open as an issue (#6204) since 2023."""
    lab = Lab("priority", gpus=1)
    assert {lab.running(Fraction(1, 4)).state for _ in range(4)} == {JobState.RUNNING}


# --- the loop: 8 ---


@policies
def test_nothing_is_done_while_nothing_happens_and_all_at_once_when_something_does(policy: str) -> None:
    """Determined looks at everything twice a second, whether or not anything changed, and copies all nodes."""
    lab = Lab(policy, gpus=1)
    job = lab.submit(1)
    assert launched(lab.last) == {job.id}
    lab.start(job)
    wakes = len(lab.wakes)
    assert lab.wait(1e6) == []
    assert len(lab.wakes) == wakes


# --- what users reported ---


def test_the_newer_of_two_is_preempted_and_the_older_is_resumed_first() -> None:
    """determined#3340: the older one was preempted, and the wrong one was resumed."""
    lab = Lab("priority", gpus=2)
    older, newer = lab.running(1, priority=9), lab.running(1, priority=9)
    urgent = lab.submit(1, priority=1)
    assert stopped(lab.last) == {newer.id}
    lab.settle()
    both = lab.submit(1, priority=1)
    assert stopped(lab.last) == {older.id}
    lab.settle()
    lab.end(urgent, DONE)
    assert launched(lab.last) == {older.id}
    lab.settle()
    lab.end(both, DONE)
    assert launched(lab.last) == {newer.id}


def test_a_job_whose_priority_is_raised_while_it_waits_preempts_at_once() -> None:
    """determined#3574: a job that was moved ahead in the queue did not preempt."""
    lab = Lab("priority", gpus=1)
    running, waiting = lab.running(1, priority=9), lab.submit(1, priority=9)
    assert stopped(set_priority(lab, waiting, 8)) == {running.id}


@policies
def test_changes_in_any_state_never_stop_the_queue(policy: str) -> None:
    """`det job update` could block scheduling and hang `det job ls` (until 0.31.0)."""
    lab = Lab(policy, gpus=2)
    jobs = [lab.submit(1, priority=9, weight=2.0) for _ in range(5)]
    for turn, priority in enumerate((1, 99, 42, 8, 9, 10)):
        for job in jobs[turn % 2 :: 2]:
            set_priority(lab, job, priority)
            lab.tell(JobChanged(job.id, priority, 1.0 + turn, job.priority, job.weight))
        lab.settle()
        done = [job for job in jobs if job.state is JobState.RUNNING][:1]
        for job in done:
            lab.end(job, DONE)
            lab.settle()
    for job in jobs:
        if job.held_by is HeldBy.SYSTEM:  # pri-limit
            lab.tell(e.ReleaseRequested(job.id))
    for _ in jobs:
        for job in [job for job in jobs if job.state is JobState.RUNNING]:
            lab.end(job, DONE)
            lab.settle()
    assert {job.state for job in jobs} == {JobState.COMPLETED}


def test_a_job_survives_that_its_agent_is_gone_and_comes_back() -> None:
    """determined#5704: agent failed while the container was running. Live: tests/e2e/test_surviving_crashes.py."""
    lab = Lab("priority", gpus=2)
    job = lab.running(1)
    lab.tell(e.NodeDisconnected(NodeId("a")))
    lab.tell(e.NodeLost(NodeId("a"), 60.0))
    assert (job.state, launched(lab.last)) == (JobState.UNREACHABLE, set())
    lab.tell(registration("a", 2, known=lab.known(job)))
    assert (job.state, len(job.attempts)) == (JobState.RUNNING, 1)


def test_a_gang_of_which_a_node_does_not_get_going_is_started_again() -> None:
    """determined#2275: a container was killed in rendezvous, and the trial failed."""
    lab = Gangs("priority")
    gang = lab.submit(2, nodes=2)
    lab.starts_on(gang, "a")
    lab.refuses(gang, "b", RefusalCause.NODE)
    lab.ends_on(gang, "a")
    lab.wait(10)
    assert (gang.state, len(gang.attempts), gang.retries.failures) == (JobState.STARTING, 2, 0)


def test_after_a_restart_of_the_master_a_node_that_stays_away_holds_up_nobody() -> None:
    """Until 0.19.5, the agents of a restarted master could keep other tasks from running."""
    lab = Lab("priority", "ab", gpus=1)
    running = lab.running(1)
    lab.tell(e.MasterStarted(2))
    away = running.attempts[-1].allocation.node_ids[0]
    lab.tell(registration("b" if away == "a" else "a", 1))
    waiting = lab.submit(1)
    lab.wait(RECOVERY_GRACE_S)
    assert waiting.state is JobState.STARTING


def test_a_job_that_ignores_its_grace_period_can_be_killed_at_any_time() -> None:
    """Until 0.19.10 a cancelled trial that did not answer lived on for the hour that it had to be preempted."""
    lab = Lab("priority", gpus=1)
    deaf = lab.running(1, priority=9, grace_s=3600.0)
    lab.submit(1, priority=1)
    assert deaf.state is JobState.SUSPENDING
    lab.tell(e.CancelRequested(deaf.id, now=True))
    assert stopped(lab.last) == {deaf.id}
    assert [command.grace_s for command in lab.last if getattr(command, "grace_s", None) is not None] == [0.0]


def test_a_job_that_can_never_run_is_refused() -> None:
    """Asked for in determined#4524, never merged: it waits for ever."""
    lab = Lab("priority", "ab", gpus=4)
    for spec in ({"gpus_min": 9 * WHOLE, "gpus_max": 9 * WHOLE, "max_nodes": 2}, {"gpu_mem_bytes": 100 * GIB}):
        refusal = lab.cluster.refusal(JobSubmitted(JobId("x"), JobSpec(command=("x",), workdir="/", **spec), "ann"))
        assert refusal is not None
        assert refusal.kind is RefusalKind.INVALID


def test_a_gpu_that_fails_is_given_to_nobody() -> None:
    lab = Lab("priority", gpus=2)
    lab.tell(GpuHealthChanged(NodeId("a"), GpuId("a0"), healthy=False, reason="Xid 79"))
    assert gpus_of(lab.submit(1)) == {"a1"}
    assert lab.submit(1).state is JobState.PENDING


# --- the seed's further rules ---


@pytest.mark.parametrize(
    ("policy", "options", "spec", "change", "effect"),
    [
        ("priority", {}, BOUND, {"priority": 5}, "its priority has no effect while it runs: it is not preemptible"),
        ("priority", {}, {}, {"priority": 5}, ""),
        ("priority", {}, BOUND, {"priority": 42}, ""),
        ("priority", {"preemption": "off"}, {}, {"priority": 5},
         "its priority has no effect while it runs: policy priority runs without preemption"),
        ("hybrid", {}, {}, {"priority": 5},
         "its priority has no effect while it runs: it has a sticky slot, so that it is not preempted"),
        ("fair-share", {}, BOUND, {"weight": 2.0}, ""),
        ("priority", {}, {}, {"weight": 2.0}, "its weight will have no effect: policy priority does not go by weight"),
        ("fifo", {}, {}, {"priority": 5, "weight": 2.0},
         "its priority and weight will have no effect: policy fifo does not go by priority and weight"),
        ("fitgpp", {}, {}, {"priority": 5},
         "its priority will have no effect: policy fitgpp does not go by priority"),
    ],
)  # fmt: skip
def test_a_change_that_does_nothing_says_so(policy, options, spec, change, effect) -> None:
    lab = Lab(policy, gpus=1, **options)
    for job in (lab.running(1, **spec), lab.submit(1, **spec)):
        event = JobChanged(job.id, change.get("priority", 42), change.get("weight", 1.0), 42, 1.0)
        said = missing_effect(lab.cluster.policy, job, event)
        if "while it runs" in effect and not job.running:
            assert said == ""
        else:
            assert said == (effect and f"job {job.id}: {effect}")


def test_jobs_of_one_priority_start_in_the_order_in_which_they_were_created() -> None:
    lab = Lab("priority", gpus=1)
    jobs = [lab.submit(1) for _ in range(5)]
    order = []
    while live := [job for job in jobs if job.live is not None]:
        order += live
        lab.end(live[0], DONE)
    assert order == jobs


def test_zero_slot_jobs_are_first_in_first_out_under_fair_share_and_by_priority_under_priority() -> None:
    for policy, expected in (("fair-share", [0, 1, 2]), ("priority", [1, 2, 0])):
        lab = Lab(policy, gpus=1)
        runs = lab.running(0, cpus=32.0, priority=1)
        jobs = [lab.submit(0, cpus=32.0, priority=priority) for priority in (9, 3, 5)]
        order = []
        for _ in jobs:
            lab.end(runs, DONE)
            [runs] = [job for job in jobs if job.live is not None]
            lab.start(runs)
            order.append(jobs.index(runs))
        assert order == expected, policy


def test_whether_a_change_does_something_is_up_to_the_policy_of_the_pool() -> None:
    lab = Lab("fifo", gpus=1)
    jobs = [lab.submit(1), lab.submit(1)]
    changes = [JobChanged(job.id, 5, 1.0, 42, 1.0) for job in jobs]
    said = in_short(missing_effects({"default": create_policy("fifo", {})}, lab.cluster.state.jobs, changes))
    assert said == "job 1: its priority will have no effect: policy fifo does not go by priority; so for 1 more"
    assert missing_effects({"default": create_policy("priority", {})}, lab.cluster.state.jobs, changes) == []


def test_a_weight_that_is_changed_moves_the_shares_of_those_who_run() -> None:
    lab = Lab("fair-share", gpus=8, min_run_s="0")
    first, second = several(lab, 10, group="first"), several(lab, 30, group="second")
    assert (held(first), held(second)) == (2, 6)
    for job in first:
        lab.cluster.handle(JobChanged(job.id, job.priority, 3.0, job.priority, job.weight), lab.now)
    lab.wait(0)
    lab.settle()
    assert (held(first), held(second)) == (4, 4)
