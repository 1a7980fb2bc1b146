"""Borrowed nodes in a simulation: when they come and go, what they cost, and what becomes of the jobs on them."""

import io
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event
from ebbtide_core.model.types import WHOLE, JobClass, Loan, NodeId
from ebbtide_core.policies.registry import PolicyError, create_policy
from ebbtide_core.supply.supply import SupplySettings
from ebbtide_sim.borrowing import SETTINGS, Borrower, LenderAssumptions, SimulatedSupply
from ebbtide_sim.engine import RunObserver, SimulatedWorld, Simulation, registration
from ebbtide_sim.eventlog import EventLog
from ebbtide_sim.metrics import Metrics, Report
from ebbtide_sim.setup import Setup
from ebbtide_sim.simulate import Scenario, simulate, unmeasured
from ebbtide_sim.sources import Recorded
from ebbtide_sim.sweep import combine
from ebbtide_sim.workload import SimJob, Workload, WorkloadError
from ebbtide_sim.workloads.nodes import SimNode
from hypothesis import given
from hypothesis import strategies as st

HOUR_S = 3600.0


def job(id: str, submit_s: float, runtime_s: float, gpus: int = 1, **more: Any) -> SimJob:
    return SimJob(id=id, submit_s=submit_s, runtime_s=runtime_s, gpus_min=gpus * WHOLE, gpus_max=gpus * WHOLE, **more)


def supply(
    max_nodes: int = 4,
    min_nodes: int = 0,
    backlog: int = 4,
    *,
    time_s=HOUR_S,
    after_s=30.0,
    idle_s=300.0,
    gpus=4,
    **lender,
) -> SimulatedSupply:
    return SimulatedSupply(
        name="hpc",
        settings=SupplySettings(max_nodes, min_nodes, backlog),
        node=SimNode(name="hpc", gpus=gpus, cpus=32.0, mem_bytes=2**38),
        time_s=time_s,
        after_s=after_s,
        idle_s=idle_s,
        lender=LenderAssumptions(**lender),
    )


def run(jobs: list[SimJob], borrowed: SimulatedSupply, own: int = 0, world: SimulatedWorld | None = None) -> Report:
    nodes = tuple(SimNode(name=f"n{i}", gpus=4, cpus=32.0, mem_bytes=2**38) for i in range(own))
    return simulate(
        Scenario(
            workload=Workload("test", jobs),
            nodes=nodes,
            policy="fifo",
            supply=borrowed,
            world=world or SimulatedWorld(),
        )
    )


def facts(report: Report) -> dict[str, Any]:
    assert report.supply is not None
    return report.supply


# --- when loans come and go ---


def test_a_job_waits_for_a_loan_and_the_node_is_given_back_when_it_was_idle():
    report = run([job("1", 0, 600)], supply(queue_s=(60.0,), price=3.0))
    waited_s = report.waiting_s["max"]
    assert 30 + 60 <= waited_s <= 30 + 60 + 5  # it is looked every 5 seconds
    borrowed = facts(report)
    assert (report.finished, borrowed["loans"], borrowed["moves"]) == (1, 1, 0)
    assert borrowed["gpu_hours"] == pytest.approx(4 * (600 + 300) / HOUR_S)
    assert borrowed["idle_gpu_hours"] == pytest.approx((3 * 600 + 4 * 300) / HOUR_S)
    assert borrowed["cost"] == pytest.approx(3 * borrowed["gpu_hours"])


def test_nothing_is_borrowed_for_jobs_that_have_room_or_wait_for_less_than_that():
    short = [job("1", 0, 100, 4), job("2", 10, 100, 4)]  # the second one waits for 90 s
    assert facts(run(short, supply(after_s=95.0), own=1))["loans"] == 0
    assert facts(run(short, supply(after_s=80.0), own=1))["loans"] == 1


def test_a_loan_that_nobody_needs_any_more_is_called_off_and_costs_nothing():
    report = run([job("1", 0, 100, 4), job("2", 10, 50, 4)], supply(queue_s=(10_000.0,)), own=1)
    assert (report.finished, facts(report)["loans"], facts(report)["cost"]) == (2, 0, 0)
    assert report.makespan_s == 150


def test_no_more_loans_wait_than_the_backlog_and_no_more_nodes_are_borrowed_than_may_be():
    jobs = [job(str(number), 0, 600, 4) for number in range(6)]
    waits = [facts(run(jobs, supply(6, backlog=backlog, queue_s=(600.0,))))["queue_s"]["max"] for backlog in (1, 6)]
    assert waits == [600, 600]
    ends = {most: run(jobs, supply(most, queue_s=(10.0,))).makespan_s for most in (1, 3, 6)}
    assert 6 * 600 < ends[1] < 6 * 600 + 100
    assert 2 * 600 < ends[3] < 2 * 600 + 100
    assert 1 * 600 < ends[6] < 1 * 600 + 100


def test_kept_nodes_stay_though_they_are_idle_and_do_not_keep_the_simulation_going():
    jobs = [job("1", 0, 100), job("2", 5 * HOUR_S, 100)]
    report = run(jobs, supply(min_nodes=1))
    assert report.makespan_s == pytest.approx(5 * HOUR_S + 100, abs=10)
    assert facts(report)["gpu_hours"] == pytest.approx(4 * report.makespan_s / HOUR_S, rel=0.01)
    assert facts(report)["loans"] == 6  # of an hour each


@pytest.mark.parametrize("more", [{}, {"min_nodes": 1}])
def test_a_job_that_no_borrowed_node_can_take_does_not_keep_the_simulation_going(more):
    report = run([job("1", 0, 100), job("2", 0, 100, gpu_mem_bytes=100 * 2**30)], supply(**more))
    assert (report.finished, report.dropped) == (1, 0)


def test_a_gang_has_all_its_nodes_borrowed():
    report = run([job("1", 0, 600, 12, nodes=3)], supply())
    assert (report.finished, facts(report)["loans"]) == (1, 3)


# --- what becomes of jobs ---


def test_a_job_that_is_longer_than_a_loan_goes_on_on_the_next_one_and_loses_nothing():
    report = run([job("1", 0, 3 * HOUR_S, grace_s=60.0, save_s=20.0)], supply(queue_s=(600.0,)))
    borrowed = facts(report)
    assert (report.finished, borrowed["loans"], borrowed["moves"], borrowed["preempted"]) == (1, 4, 3, 0)
    assert report.wasted_gpu_s == pytest.approx(3 * 20)  # it holds its GPU while it saves


@pytest.mark.parametrize(("save_s", "lost"), [(10.0, False), (40.0, True)])
def test_what_is_saved_within_the_notice_of_a_preemption_is_not_lost(save_s, lost):
    jobs = [job("1", 0, 2 * HOUR_S, grace_s=60.0, save_s=save_s)]
    report = run(jobs, supply(time_s=8 * HOUR_S, preempted_after_s=HOUR_S, notice_s=30.0))
    borrowed = facts(report)
    assert (report.finished, borrowed["preempted"] > 0) == (1, True)
    assert borrowed["moves"] == borrowed["preempted"]
    assert (report.wasted_gpu_s > 100 * borrowed["moves"]) is lost


def test_a_loan_that_the_lender_preempts_counts_so_though_it_is_idle_before_the_notice_is_over():
    lender = {"preempted_after_s": HOUR_S, "notice_s": 600.0}
    borrowed = facts(run([job("1", 0, 2 * HOUR_S)], supply(time_s=8 * HOUR_S, idle_s=5.0, **lender)))
    assert borrowed["preempted"] == borrowed["moves"] > 0


def test_a_job_that_saves_nothing_in_time_again_and_again_is_dropped_as_it_would_be_held():
    jobs = [job("long", 0, 200 * HOUR_S, grace_s=600.0)]  # it takes ten minutes to save
    report = run(jobs, supply(time_s=10 * HOUR_S, preempted_after_s=60.0, notice_s=1.0))
    assert (report.finished, report.dropped, facts(report)["moves"]) == (0, 1, 3)


def test_a_job_that_never_gets_to_work_between_two_ends_of_nodes_is_named():
    borrowed = supply(time_s=10 * HOUR_S, preempted_after_s=60.0, notice_s=1.0)
    with pytest.raises(WorkloadError, match="job long was moved 100 times in a row"):
        run([job("long", 0, 200 * HOUR_S)], borrowed, world=SimulatedWorld(restart_cost_s=6000.0))


def test_policies_go_on_in_borrowed_nodes():
    jobs = [job("1", 0, HOUR_S, 4, grace_s=5.0), job("2", 1000, 100, 4, priority=10)]
    scenario = Scenario(workload=Workload("test", jobs), nodes=(), policy="priority", supply=supply(1))
    report = simulate(scenario)
    assert (report.finished, report.preemptions) == (2, 1)


def test_a_node_that_is_never_kept_idle_still_gets_the_job_that_it_was_borrowed_for():
    report = run([job("1", 0, 200.0, 3)], supply(1, time_s=HOUR_S, idle_s=0.0))
    assert (report.finished, report.supply["loans"]) == (1, 1)


# --- a grace period that is cut short ---


class Announced:
    """What becomes of nodes, as it is given: events with their times."""

    def __init__(self, *events: tuple[float, Event]) -> None:
        self.events = list(events)

    def next_time(self, more_come: bool, unfinished: bool) -> float | None:
        return self.events[0][0] if self.events else None

    def take(self, cluster: Cluster, now: float) -> Iterator[Event]:
        while self.events and self.events[0][0] <= now:
            yield self.events.pop(0)[1]

    def finish(self) -> None:
        pass


LENT = NodeId("lent")


def lent(until: float) -> Event:
    node = SimNode(name=LENT, gpus=2, cpus=32.0, mem_bytes=2**38)
    return replace(registration(node), loan=Loan(until, "hpc"))


def over(at: float) -> tuple[tuple[float, Event], ...]:
    return (at, e.NodeDisconnected(LENT)), (at, e.NodeConfirmedDead(node=LENT, user="hpc"))


def hurried() -> tuple[Metrics, list[dict[str, Any]]]:
    """A job is preempted at 50 s with ten minutes to leave, and at 60 s its node ends in half a minute."""
    jobs = [
        job("first", 0, 120, 2, preemptible=False),
        job("long", 1, 60, 2, grace_s=600.0),
        job("urgent", 50, 10, 2, job_class=JobClass.TRIAL_AND_ERROR),
    ]
    nodes = Announced((10, lent(10_000)), (60, e.LoanChanged(LENT, 30.0)), *over(95))
    metrics, log = Metrics(), io.StringIO()
    own = [SimNode(name="own", gpus=2, cpus=32.0, mem_bytes=2**38)]
    policy = create_policy("fitgpp", {"min_run_s": "0"})
    Simulation(own, Recorded(jobs), policy, [metrics, EventLog(log)], borrowed=nodes).run()
    return metrics, [json.loads(line) for line in log.getvalue().splitlines()]


def test_a_job_that_had_to_leave_sooner_may_be_done_before_it_was_to_have_left():
    metrics, log = hurried()
    assert all(tally.ended is not None for tally in metrics.tallies.values())
    assert {line["t"] for line in log if (line["job"], line["event"]) == ("long", "suspend")} == {80}
    assert 80 < metrics.tallies["long"].ended < 650


def test_a_job_that_is_to_leave_sooner_than_it_was_asked_to_counts_as_preempted_once_and_from_the_first_time():
    metrics, log = hurried()
    of_long = [(line["t"], line["event"]) for line in log if line["job"] == "long"]
    assert [what for what in of_long if what[1] == "preempt"] == [(50, "preempt")]
    assert {id: tally.preemptions for id, tally in metrics.tallies.items()} == {"first": 0, "long": 1, "urgent": 0}
    (back,) = [at for at, event in of_long if event == "resume"]
    assert metrics.intervals == [back - 50]


def test_a_job_that_leaves_a_node_which_ends_and_then_ends_even_sooner_moves_once():
    nodes = Announced((0, lent(2000)), (1400, e.LoanChanged(LENT, 30.0)), *over(1430), (1500, lent(10_000)))
    borrower, metrics = Borrower(supply()), Metrics()
    jobs, policy = [job("long", 0, 3000, grace_s=600.0)], create_policy("fifo", {})
    Simulation([], Recorded(jobs), policy, [metrics, borrower], borrowed=nodes).run()
    assert (metrics.tallies["long"].ended, borrower.totals.moves) == (1500 + 3000, 1)


# --- always ---


class Books(RunObserver):
    """Keeps for each borrowed node when it was there, and for how long each GPU of it was used."""

    def __init__(self) -> None:
        self.came: dict[str, float] = {}
        self.lent_s = self.used_s = 0.0
        self.most = 0
        self.busy: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self.until: dict[str, float] = {}
        self.placed: dict[tuple[str, int], tuple[float, Any]] = {}
        self.end = 0.0

    def submitted(self, now, job, work):
        self.end = now

    def dropped(self, now, job, reason):
        self.end = now

    def computed(self, job, attempt, seconds, work, kept): ...

    def recorded(self, now: float, event: Event) -> None:
        match event:
            case e.NodeRegistered(node=node, loan=loan) if loan is not None:
                self.came[node], self.until[node] = now, loan.until
                self.most = max(self.most, len(self.came))
            case e.LoanChanged(node=node, ends_in_s=left_s):
                self.until[node] = now + left_s
            case e.NodeConfirmedDead(node=node):
                assert not self.busy[node], f"{node} went with {self.busy[node]} at {now}"
                assert now <= self.until[node] + 1e-6
                self.lent_s += now - self.came.pop(node)
            case e.AttemptPlaced():
                self.end = now
                self.placed[event.job, event.attempt] = now, event.allocation
                for node in event.allocation.node_ids:
                    self.busy[node].add((event.job, event.attempt))
            case e.AttemptExited():
                self.end = now
                since, allocation = self.placed[event.job, event.attempt]
                for piece in allocation.nodes:
                    self.busy[piece.node].remove((event.job, event.attempt))
                    if piece.node in self.came:
                        self.used_s += (now - since) * sum(gpu.share for gpu in piece.gpus) / WHOLE


some_jobs = st.lists(
    st.builds(
        job,
        st.uuids().map(str),
        st.floats(0, 4 * HOUR_S),
        st.floats(1, 2 * HOUR_S),
        st.integers(1, 4),
        grace_s=st.floats(0, 120),
        preemptible=st.booleans(),
        time_limit_s=st.one_of(st.none(), st.floats(60, HOUR_S)),
    ),
    max_size=6,
).map(lambda jobs: sorted(jobs, key=lambda job: job.submit_s))
some_supplies = st.builds(
    supply,
    st.integers(1, 4),
    st.integers(0, 1),
    st.integers(1, 3),
    time_s=st.floats(1800, 8 * HOUR_S),
    after_s=st.floats(0, 600),
    idle_s=st.floats(0, 1800),
    queue_s=st.lists(st.floats(0, HOUR_S), min_size=1, max_size=3).map(tuple),
    preempted_after_s=st.one_of(st.none(), st.floats(1800, 8 * HOUR_S)),
    notice_s=st.floats(120, 300),
)


@pytest.mark.slow
@pytest.mark.timeout(600)
@given(some_jobs, some_supplies, st.sampled_from(["fifo", "fitgpp", "fair-share", "priority"]), st.integers(0, 3))
def test_no_attempt_outlives_its_node_and_what_was_borrowed_is_counted_to_the_second(jobs, borrowed, policy, seed):
    borrower, books, metrics = Borrower(borrowed, seed), Books(), Metrics()
    own = [SimNode(name="own", gpus=1, cpus=32.0, mem_bytes=2**38)] if seed % 2 else []
    observers = [metrics, borrower, books]
    Simulation(own, Recorded(jobs), create_policy(policy, {}), observers, borrowed=borrower).run()
    lent_s = books.lent_s + sum(max(0.0, books.end - came) for came in books.came.values())
    assert borrower.totals.lent_gpu_s == pytest.approx(4 * lent_s, abs=1e-3)
    assert borrower.totals.used_gpu_s == pytest.approx(books.used_s, abs=1e-3)
    assert books.most <= borrowed.settings.max_nodes
    for tally in metrics.tallies.values():
        if tally.ended is not None and tally.job.time_limit_s is None:
            assert tally.computed_s == pytest.approx(tally.job.runtime_s)


def test_the_same_seed_gives_the_same_report():
    jobs = [job(str(number), 60.0 * number, 900, 2) for number in range(30)]
    borrowed = supply(3, queue_s=(10.0, 600.0), preempted_after_s=1800.0)
    one, other = (run(jobs, borrowed) for _ in range(2))
    assert one.supply == other.supply
    assert one.flow_time_s == other.flow_time_s


# --- sweeps and settings ---


def test_a_report_has_the_same_figures_before_anything_is_measured():
    jobs = [job("1", 0, 60, priority=1), job("2", 0, 60, priority=2, bag="b")]
    workload = Workload("test", jobs, {"odd": 3})
    scenario = Scenario(workload=workload, nodes=(), policy="fifo", supply=supply())
    assert figures(unmeasured(scenario).to_json()) == figures(simulate(scenario).to_json())


def figures(value: Any, name: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {name}
    return {each for key, below in value.items() for each in figures(below, f"{name}.{key}")}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_a_supply_can_be_varied(name):
    values = ("1m", "2m") if name in ("after", "idle") else ("1", "2")
    sweep = combine(Setup(supply=supply(), policy="fifo"), [(name, values)])
    assert len({setup.supply for _, setup in sweep.runs}) == 2


@pytest.mark.parametrize(
    ("axis", "words"),
    [
        (("idle", ("5",)), "idle: "),
        (("backlog", ("0",)), "--sweep: backlog: is not at least 1"),
        (("min-nodes", ("9",)), "--sweep: min_nodes: is not between 0 and max_nodes, 4"),
    ],
)
def test_a_setting_that_no_supply_has_is_refused(axis, words):
    with pytest.raises((WorkloadError, PolicyError), match=words):
        combine(Setup(supply=supply(), policy="fifo"), [axis])


def test_without_a_supply_its_settings_cannot_be_varied():
    with pytest.raises(WorkloadError, match="idle is a setting of a supply: name one with --supply"):
        combine(Setup(policy="fifo"), [("idle", ("1m",))])


def test_jobs_that_lose_all_their_work_have_no_use_for_nodes_that_end():
    with pytest.raises(WorkloadError, match="--not-resumable"):
        Setup(supply=supply(), resumable=False).scenario()


@pytest.mark.parametrize(
    ("lender", "words"),
    [
        ({"queue_s": ()}, "queue"),
        ({"queue_s": (-1.0,)}, "queue"),
        ({"preempted_after_s": 0.0}, "preempted_after"),
        ({"notice_s": 0.5}, "notice: is not at least 1s"),
        ({"price": -1.0}, "price"),
    ],
)
def test_what_no_lender_does_is_refused(lender, words):
    with pytest.raises(ValueError, match=words):
        LenderAssumptions(**lender)
