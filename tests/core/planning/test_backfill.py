"""EASY backfill: later jobs start if the first that has to wait does not start later for it."""

import pytest
from ebbtide_core.estimates.work import LINEAR
from ebbtide_core.events import JobSubmitted, ReleaseRequested, ResumeRequested, SuspendRequested
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, JobId, JobState, SuspendMode
from ebbtide_core.planning.backfill import Backfill, demand_in_time
from ebbtide_core.policies.registry import PolicyError, create_policy
from ebbtide_core.reserving.live import FIRST_S
from ebbtide_core.resources.expected_releases import ExpectedReleases, held_s

from tests.core.lab import DONE, GIB, Lab, gpus_of, launched, registration, stepped_aside, stopped

HOUR = 3600.0
STARTED, WAITS = JobState.STARTING, JobState.PENDING
policies = pytest.mark.parametrize("policy", ["fifo", "reservation"])


def lab_of(policy="fifo", nodes="a", gpus=4, **options):
    easy = {"backfill": "easy"} if policy != "reservation" else {}
    return Lab(policy, nodes, gpus, **easy, **options)


def asks(seconds, grace_s=0.0):
    """A job that asks for so much time, and has nothing to save when it is up."""
    return {"time_limit_s": seconds, "grace_s": grace_s}


def blocked_head(policy="fifo", gpus=4, **options):
    """Three GPUs for another hour, one idle, and a job that needs all four."""
    lab = lab_of(policy, gpus=gpus, **options)
    running = lab.running(gpus - 1, **asks(HOUR))
    head = lab.submit(gpus, **asks(HOUR))
    assert head.state is WAITS
    return lab, running, head


# --- one node ---


@policies
@pytest.mark.parametrize(("limit", "state"), [(3000.0, STARTED), (HOUR, WAITS), (2 * HOUR, WAITS)])
def test_who_leaves_before_the_head_can_start_may_pass_it(policy: str, limit: float, state: JobState) -> None:
    lab, _, _ = blocked_head(policy)
    assert lab.submit(1, **asks(limit)).state is state


def test_who_ends_in_the_very_moment_in_which_the_head_starts_does_not_delay_it() -> None:
    for later, state in ((1.0, WAITS), (0.0, STARTED)):
        lab, running, _ = blocked_head()
        left = running.attempts[0].started + HOUR - (lab.now + 1)  # the next job comes in a second
        assert lab.submit(1, **asks(left + later)).state is state


def test_a_grace_period_counts_as_time_that_is_asked_for() -> None:
    lab, _, _ = blocked_head()
    assert lab.submit(1, **asks(3000.0, grace_s=900.0)).state is WAITS
    assert lab.submit(1, **asks(3000.0, grace_s=300.0)).state is STARTED


@policies
def test_without_a_limit_nobody_passes_who_could_delay_the_head(policy: str) -> None:
    lab, _, _ = blocked_head(policy)
    assert lab.submit(1).state is WAITS


def test_nobody_passes_a_head_of_which_nothing_tells_when_it_starts() -> None:
    lab = lab_of()
    lab.running(3)
    head = lab.submit(4)
    assert lab.submit(1, **asks(10.0)).state is WAITS
    assert head.reason == "waiting for 4 GPUs"


def test_by_default_nobody_passes() -> None:
    lab = Lab("fifo")
    lab.running(3, **asks(HOUR))
    lab.submit(4)
    assert lab.submit(1, **asks(10.0)).state is WAITS


@policies
def test_the_head_is_told_for_whom_it_waits(policy: str) -> None:
    lab, running, head = blocked_head(policy)
    lab.submit(1, **asks(10.0))
    assert head.reason == f"waiting for 4 GPUs; starts at the latest when the time of job {running.id} is up"


def test_what_the_head_was_told_holds_until_who_was_named_has_left() -> None:
    lab, running, head = blocked_head()
    told = f"waiting for 4 GPUs; starts at the latest when the time of job {running.id} is up"
    assert head.reason == told  # though nobody wants to pass
    filler = lab.running(1, **asks(3000.0))
    later = lab.submit(1, **asks(10.0))
    assert (head.reason, later.state) == (told, WAITS)
    lab.end(running, DONE)
    assert head.reason == f"waiting for 4 GPUs; starts at the latest when the time of job {filler.id} is up"


def test_where_only_earlier_runs_tell_the_head_is_told_so() -> None:
    lab = lab_of()
    first = lab.running(3, name="train")
    lab.wait(1000.0)
    lab.end(first, DONE)
    again = lab.running(3, name="train")
    head = lab.submit(4)
    assert lab.submit(1, **asks(900.0)).state is STARTED
    assert head.reason == f"waiting for 4 GPUs; starts about when the time of job {again.id} is up"
    lab.settle()
    lab.end(next(job for job in lab.cluster.state.jobs.values() if job.spec.time_limit_s == 900.0), DONE)
    assert lab.submit(1, **asks(1100.0)).state is WAITS


@policies
def test_only_the_head_is_protected(policy: str) -> None:
    lab, _, _ = blocked_head(policy)
    second = lab.submit(2, **asks(HOUR))
    assert lab.submit(1, **asks(3000.0)).state is STARTED
    assert second.state is WAITS


def test_whoever_backfills_counts_for_those_after_it() -> None:
    """Six GPUs: two run for an hour; the head needs five. One may stay for long, the second could not."""
    lab = lab_of(gpus=6)
    lab.running(2, **asks(HOUR))
    lab.submit(5, **asks(HOUR))
    assert lab.submit(1).state is STARTED
    assert lab.submit(1).state is WAITS
    assert lab.submit(3, **asks(3000.0)).state is STARTED
    assert lab.submit(1, **asks(10.0)).state is WAITS  # nothing is free


@policies
def test_the_head_starts_when_it_was_promised_and_nobody_is_preempted(policy: str) -> None:
    lab, running, head = blocked_head(policy)
    filler = lab.running(1, **asks(3000.0))
    lab.wait(3000.0)
    assert stopped(lab.last) == {filler.id}
    lab.end(filler)
    assert (filler.state, head.state) == (JobState.FAILED, WAITS)
    lab.wait(600.0)
    lab.end(running)
    assert launched(lab.last) == {head.id}
    assert all(job.suspending.preemptions == 0 for job in lab.cluster.state.jobs.values())


def test_the_head_starts_sooner_if_those_before_it_end_sooner() -> None:
    lab, running, head = blocked_head()
    lab.end(running, DONE)
    assert head.state is STARTED


def test_who_has_outrun_what_it_declared_may_leave_at_any_moment() -> None:
    lab = lab_of()
    lab.running(3, work_s=30.0)
    lab.submit(4)
    lab.wait(60.0)
    assert lab.submit(1, **asks(1.0)).state is WAITS


def test_of_those_that_pass_in_one_go_each_counts_for_the_next() -> None:
    """Twenty of 32 CPUs are in use for an hour, and the head needs 24: so 8 are left to others, of the 12 idle ones."""
    lab = lab_of(gpus=8)
    lab.running(1, cpus=20.0, **asks(HOUR))
    lab.submit(1, cpus=24.0)
    jobs = [lab.submit(1, cpus=4.0, hold=True) for _ in range(3)]
    for job in jobs:
        lab.cluster.handle(ReleaseRequested(job.id), lab.now)
    lab.wait(0)
    assert [job.state for job in jobs] == [STARTED, STARTED, WAITS]


# --- where, not how many ---


def test_who_does_not_touch_the_nodes_of_the_head_may_stay_as_long_as_it_likes() -> None:
    lab = lab_of(nodes="ab")
    lab.running(3, **asks(HOUR))  # on a
    lab.running(3, **asks(2 * HOUR))  # on b
    head = lab.submit(4, **asks(HOUR))
    long = lab.submit(1)
    assert (head.state, long.state) == (WAITS, STARTED)
    assert long.attempts[-1].allocation.node_ids == ("b",)
    assert lab.submit(1).state is WAITS  # what is left is on a


def test_sums_over_nodes_promise_nothing() -> None:
    """After an hour six GPUs are free, but in two pieces; four of one node are only after two."""
    lab = lab_of(nodes="ab", gpus=5)
    jobs = [lab.running(2, **asks(limit * HOUR)) for limit in (1, 2, 1, 3)]
    assert [job.attempts[0].allocation.node_ids for job in jobs] == [("a",), ("a",), ("b",), ("b",)]
    head = lab.submit(4, **asks(HOUR))
    assert lab.submit(1, **asks(1.9 * HOUR)).state is STARTED
    assert head.reason.endswith(f"when the time of job {jobs[1].id} is up")


def test_a_share_of_a_gpu_that_the_head_needs_whole_is_not_given_away_for_long() -> None:
    lab = lab_of(gpus=1)
    lab.running("1/2", **asks(HOUR))
    lab.submit(1)
    assert lab.submit("1/4").state is WAITS
    assert lab.submit("1/4", **asks(3000.0)).state is STARTED


def test_a_share_beside_what_the_head_needs_is() -> None:
    """Half of the GPU is free after an hour, a quarter is now: the head needs half, so a quarter stays over."""
    lab = lab_of(gpus=1)
    lab.running("1/2", **asks(2 * HOUR))
    lab.running("1/4", **asks(HOUR))
    head = lab.submit("1/2", **asks(HOUR))
    assert lab.submit("1/4").state is WAITS
    lab = lab_of(gpus=1)
    lab.running("1/2", **asks(HOUR))
    lab.running("1/4", **asks(2 * HOUR))
    head = lab.submit("1/2", **asks(HOUR))
    assert lab.submit("1/4").state is STARTED
    assert head.state is WAITS


def test_gpu_memory_is_set_aside_too() -> None:
    lab = lab_of(gpus=1)
    lab.running("1/4", gpu_mem_bytes=30 * GIB, **asks(HOUR))
    lab.submit("1/4", gpu_mem_bytes=32 * GIB)
    assert lab.submit("1/4", gpu_mem_bytes=8 * GIB).state is WAITS
    assert lab.submit("1/4", gpu_mem_bytes=6 * GIB).state is STARTED


def test_cpus_and_memory_are_set_aside_too() -> None:
    lab = lab_of(gpus=4)
    lab.running(1, cpus=30.0, mem_bytes=16 * GIB, **asks(HOUR))
    lab.submit(1, cpus=31.0, mem_bytes=200 * GIB)
    assert lab.submit(1, cpus=2.0).state is WAITS
    assert lab.submit(1, cpus=1.0, mem_bytes=100 * GIB).state is WAITS
    assert lab.submit(1, cpus=1.0, mem_bytes=56 * GIB).state is STARTED


def test_a_head_without_gpus_waits_for_cpus() -> None:
    lab = lab_of()
    lab.running(1, cpus=30.0, **asks(HOUR))
    lab.submit(0, cpus=32.0)
    assert lab.submit(1, cpus=2.0).state is WAITS
    assert lab.submit(1, cpus=2.0, **asks(3000.0)).state is STARTED
    assert lab.submit(1).state is STARTED


def test_a_gang_gets_its_room_on_several_nodes() -> None:
    """A gang of five waits for node a; of node b it needs a single GPU, and there three are idle."""
    lab = lab_of(nodes="ab")
    lab.running(4, **asks(HOUR))
    lab.running(1, **asks(2 * HOUR))
    head = lab.submit(5, max_nodes=2)
    assert head.state is WAITS
    assert [lab.submit(1).state for _ in range(3)] == [STARTED, STARTED, WAITS]


def test_a_node_that_comes_lets_the_head_start() -> None:
    lab, _, head = blocked_head()
    lab.submit(1, **asks(10.0))
    lab.tell(registration("b", 4))
    assert launched(lab.last) >= {head.id}


# --- elastic jobs ---


def test_an_elastic_job_does_not_grow_into_what_is_set_aside() -> None:
    lab = lab_of(gpus=8, resize_after_s="0")
    lab.running(4, **asks(HOUR))
    head = lab.submit(6)
    elastic = lab.submit(1, 4)
    lab.settle()
    assert (head.state, len(gpus_of(elastic))) == (WAITS, 2)


def test_who_makes_room_for_the_head_keeps_its_size() -> None:
    """There is a GPU to grow into that the head will not need; but after a resize it would leave later."""
    sizes = {}
    for backfill in ("off", "easy"):
        lab = Lab("fifo", gpus=5, backfill=backfill, resize_after_s="0")
        lab.running(2, **asks(4 * HOUR))
        filler = lab.running(1)
        elastic = lab.running(2, 3, **asks(HOUR))
        assert lab.submit(2, **asks(HOUR)).state is WAITS
        lab.end(filler, DONE)
        lab.settle()
        sizes[backfill] = len(gpus_of(elastic))
    assert sizes == {"off": 3, "easy": 2}


# --- reservations ---


def test_under_fifo_a_reservation_that_ends_makes_no_room_for_those_that_came_later() -> None:
    lab = lab_of()
    lab.running(3, name="train", time_auto=True, grace_s=0.0)
    lab.submit(4)
    assert lab.submit(1, **asks(10.0)).state is WAITS


def test_under_fifo_a_reservation_bounds_who_came_later_than_the_head() -> None:
    lab = lab_of()
    lab.running(3, **asks(3 * HOUR))
    head = lab.submit(4)
    filler = lab.running(1, name="train", time_auto=True, grace_s=0.0)
    assert filler.attempts[0].reserved_s == FIRST_S
    lab.submit(1, **asks(10.0))
    lab.wait(FIRST_S)
    lab.end(filler, stepped_aside())
    assert filler.state is JobState.STARTING  # for two hours, which is still in time
    lab.start(filler)
    lab.wait(FIRST_S)
    lab.end(filler, stepped_aside())
    assert (filler.state, head.state) == (JobState.SUSPENDED, WAITS)


def test_under_reservation_one_that_is_over_makes_room() -> None:
    lab = lab_of("reservation")
    auto = lab.running(3, name="train", time_auto=True, grace_s=0.0)
    head = lab.submit(4, **asks(HOUR))
    filler = lab.submit(1, **asks(3000.0))
    assert filler.state is STARTED
    assert head.reason == f"waiting for 4 GPUs; starts at the latest when the time of job {auto.id} is up"
    lab.settle()
    lab.end(filler, DONE)
    lab.wait(FIRST_S)
    lab.end(auto, stepped_aside())
    assert (head.state, auto.state) == (STARTED, JobState.SUSPENDED)


def test_under_reservation_the_next_request_goes_to_the_end_of_the_queue() -> None:
    lab = lab_of("reservation", gpus=1)
    auto = lab.running(1, name="train", time_auto=True)
    others = [lab.submit(1, **asks(HOUR)) for _ in range(2)]
    lab.wait(FIRST_S)
    lab.end(auto, stepped_aside())
    assert others[0].state is STARTED
    assert [job.id for job in lab.cluster.state.pools["default"].queue] == [others[1].id, auto.id]


def test_under_reservation_whoever_stops_for_another_reason_keeps_its_place() -> None:
    lab = lab_of("reservation", gpus=1)
    first = lab.running(1, name="train", time_auto=True)
    second = lab.submit(1)
    lab.tell(SuspendRequested(first.id))
    lab.end(first, stepped_aside())
    assert second.state is STARTED
    third = lab.submit(1)
    lab.tell(ResumeRequested(first.id))
    assert [job.id for job in lab.cluster.state.pools["default"].queue] == [first.id, third.id]


def test_under_reservation_alone_a_job_goes_on_with_its_next_one() -> None:
    lab = lab_of("reservation", gpus=1)
    auto = lab.running(1, name="train", time_auto=True)
    lab.wait(FIRST_S)
    lab.end(auto, stepped_aside())
    assert (auto.state, auto.attempts[1].reserved_s) == (STARTED, 2 * FIRST_S)


# --- priority ---


def test_under_priority_equals_and_jobs_that_cannot_be_preempted_pass_if_they_do_not_delay() -> None:
    lab = lab_of("priority")
    lab.running(2, priority=50, suspend=SuspendMode.NONE, **asks(HOUR))
    lab.submit(4, priority=5)
    assert lab.submit(1, priority=5, **asks(2 * HOUR)).state is WAITS
    assert lab.submit(1, priority=5, **asks(3000.0)).state is STARTED
    assert lab.submit(1, priority=9, suspend=SuspendMode.NONE).state is WAITS
    assert lab.submit(1, priority=9, suspend=SuspendMode.NONE, **asks(3000.0)).state is STARTED


def test_under_priority_those_that_will_be_preempted_are_not_in_the_way_of_the_head() -> None:
    lab = lab_of("priority")
    notebook = lab.running(1, priority=50, suspend=SuspendMode.NONE, **asks(HOUR))
    head = lab.submit(4, priority=5)
    filler = lab.running(2, priority=9)
    assert filler.state is JobState.RUNNING
    assert lab.submit(1, priority=5, **asks(2 * HOUR)).state is WAITS
    assert lab.submit(1, priority=5, **asks(3000.0)).state is STARTED
    assert head.reason == f"waiting for 4 GPUs; starts about when the time of job {notebook.id} is up"


def test_under_priority_without_preemption_only_those_pass_that_do_not_delay() -> None:
    lab = lab_of("priority", preemption="off")
    lab.running(3, priority=50, **asks(HOUR))
    lab.submit(4, priority=5)
    assert lab.submit(1, priority=9).state is WAITS
    assert lab.submit(1, priority=9, **asks(3000.0)).state is STARTED


# --- the pieces ---


def test_times_that_are_nearly_alike_are_one_demand_and_round_ones_stay() -> None:
    lab = lab_of()
    lab.running(4)
    jobs = [lab.submit(1, **asks(limit)) for limit in (3600.0, 3599.0, 3541.0, 3540.0, 7200.0, 7201.0, 7800.0)]
    demands = [demand_in_time(job) for job in jobs]
    assert [demands.index(demand) for demand in demands] == [0, 0, 0, 3, 4, 5, 5]


def test_what_bounds_an_attempt() -> None:
    lab = lab_of()
    limit = lab.submit(1, **asks(100.0, grace_s=30.0))
    declared = lab.submit(2, work_s=100.0)
    neither = lab.submit(1)
    bounds = [held_s(job, lab.now, job.gpus_min, LINEAR) for job in (limit, declared, neither)]
    assert bounds == [130.0, 50.0, None]
    assert held_s(limit, lab.now, WHOLE, LINEAR, reserved_s=40.0) == 70.0
    assert held_s(neither, lab.now, WHOLE, LINEAR, reserved_s=40.0) == 40.0 + neither.spec.grace_s


def test_the_shadow_is_not_worked_out_while_nothing_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    cast = []
    monkeypatch.setattr(Backfill, "_cast", lambda self: cast.append(self.head.id))
    lab = lab_of()
    lab.running(4, **asks(HOUR))
    for _ in range(3):
        lab.submit(1, **asks(10.0))
    assert cast == []


def test_the_order_of_leaving_follows_what_happens() -> None:
    lab = lab_of(gpus=4)
    leaving: ExpectedReleases = lab.cluster.state.pools["default"].ranking
    jobs = [lab.submit(1, **asks(limit)) for limit in (300.0, 100.0, 200.0)]
    assert (leaving.order, list(leaving.starting)) == ([], [job.id for job in jobs])
    for job in jobs:
        lab.start(job)
    assert [leave.job for leave in leaving.order] == [jobs[1], jobs[2], jobs[0]]
    lab.end(jobs[2], DONE)
    lab.tell(SuspendRequested(jobs[1].id))
    assert [leave.job for leave in leaving.order] == [jobs[0]]
    lab.end(jobs[0], DONE)
    assert (leaving.order, leaving.starting) == ([], {})


def test_the_options_say_what_they_take() -> None:
    with pytest.raises(PolicyError, match="backfill is one of off, easy, not 'on'"):
        create_policy("fifo", {"backfill": "on"})
    with pytest.raises(PolicyError, match="backfill is one of off, on, easy, not 'none'"):
        create_policy("priority", {"backfill": "none"})


def test_a_crowd_that_waits_does_not_hide_who_fits() -> None:
    """Of many kinds of jobs that wait, the one that fits is found, wherever it stands."""
    lab, _, _ = blocked_head()
    for limit in range(1, 40):
        lab.cluster.handle(JobSubmitted(JobId(f"x{limit}"), spec(limit * 2 * HOUR), "ann"), lab.now)
    assert lab.submit(1, **asks(3000.0)).state is STARTED


def spec(limit):
    return JobSpec(command=("x",), workdir="/", **asks(limit))
