"""EASY backfill keeps its promise: whoever passes the head of the line does not delay it, if all times are exact."""

from pathlib import Path
from typing import Any

import pytest
from ebbtide_core.estimates.work import Speedup
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_core.planning.policy import Policy
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.resources.placing import Trial
from ebbtide_core.snapshot import Plan, Snapshot
from ebbtide_sim.engine import SimulatedWorld, Simulation
from ebbtide_sim.setup import Setup
from ebbtide_sim.sources import Recorded
from ebbtide_sim.workload import SimJob, Workload, WorkloadError, elastic
from ebbtide_sim.workloads.loading import load_workload
from ebbtide_sim.workloads.nodes import SimNode
from ebbtide_sim.workloads.swf import read_swf
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.drawing import share_of
from tests.simulator.test_properties import GIB, NODES, WORLDS, careful, could_run, named, simulated, workloads
from tests.simulator.workloads.writing import write_csv

DUST_S = 1e-6
"""What sums of times may be off by."""


class Watched:
    """A policy, and for each job the earliest start that it was ever sure of while it was the head of the line."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.promises: dict[JobId, float] = {}
        self.starts: dict[JobId, float] = {}
        self.passed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def plan(self, snapshot: Snapshot) -> Plan:
        line = list(snapshot.waiting())
        plan = self._policy.plan(snapshot)
        index = next((index for index, job in enumerate(line) if job.id not in plan.placements), None)
        if index is not None:
            head = line[index]
            self.passed += sum(job.id in plan.placements for job in line[index:])
            start = earliest_start(snapshot, line[:index], plan, head)
            if start is not None:
                self.promises[head.id] = min(start, self.promises.get(head.id, start))
        return plan


def earliest_start(snapshot: Snapshot, ahead: list[Job], plan: Plan, head: Job) -> float | None:
    """When ``head`` could start if nobody behind it ever did: once enough of those before it have ended."""
    trial = Trial(snapshot.books)
    ends = []
    for job in [*snapshot.planned(), *ahead]:
        placement = plan.placements.get(job.id)
        allocation = placement.allocation if placement is not None else job.planned
        if job.planned is None:
            trial.take(allocation)
        started = job.attempts[-1].started if job.attempts else None
        since = snapshot.now if started is None else started
        if job.spec.work_s is not None:
            ends.append((since + job.spec.work_s / snapshot.speedup(allocation.share), job.sequence, allocation))
    for end, _, allocation in sorted(ends, key=lambda each: each[:2]):
        trial.give(allocation)
        if trial.find(head, head.gpus_min) is not None:
            return max(snapshot.now, end)
    return None


def run(jobs: list[SimJob], nodes: list[SimNode], world: SimulatedWorld, name: str, **options: str) -> Watched:
    watched = Watched(create_policy(name, options))
    simulation = Simulation(nodes, Recorded(jobs), watched, world=world, keep_jobs=True)
    simulation.run()
    watched.starts = {id: job.attempts[0].started for id, job in simulation.cluster.state.jobs.items()}
    return watched


@st.composite
def crowds(draw: Any) -> tuple[list[SimJob], list[SimNode]]:
    """Rigid jobs that come close together, so that most have to wait, and nodes that could run each."""
    nodes = named(draw(NODES))
    jobs = [
        SimJob(
            id=str(number),
            submit_s=float(number),
            runtime_s=float(draw(st.integers(1, 400))),
            gpus_min=(share := int(draw(st.sampled_from([0.25, 0.5, 1, 1, 2, 2, 3, 4, 6])) * WHOLE)),
            gpus_max=share,
            gpu_mem_bytes=draw(st.sampled_from([0, 0, 4 * GIB, 12 * GIB])),
            cpus=float(draw(st.sampled_from([0, 1, 5]))),
            mem_bytes=draw(st.sampled_from([0, 24 * GIB])),
        )
        for number in range(draw(st.integers(10, 24)))
    ]
    return [job for job in jobs if could_run(job, nodes)], nodes


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        ("fifo", {"backfill": "easy", "resize_after_s": "0"}),
        ("priority", {"backfill": "easy", "min_run_s": "0"}),
        ("priority", {"backfill": "easy", "preemption": "off"}),
    ],
)
@careful
@given(jobs=workloads(), nodes=NODES, world=WORLDS)
def test_nothing_is_booked_twice_and_nobody_starves(
    policy: str, options: dict[str, str], jobs: list[SimJob], nodes: list[SimNode], world: SimulatedWorld
) -> None:
    nodes = named(nodes)
    jobs = [job for job in jobs if could_run(job, nodes)]
    log, checker = simulated(policy, jobs, nodes, world, **options)
    note(log)
    assert checker.finished == {job.id for job in jobs}
    assert not checker.held
    assert simulated(policy, jobs, nodes, world, **options)[0] == log


POLICIES = pytest.mark.parametrize(("policy", "options"), [("fifo", {"backfill": "easy"}), ("reservation", {})])
quick = settings(
    max_examples=share_of(100), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@POLICIES
def test_the_head_never_starts_later_than_if_nobody_had_passed_it(policy: str, options: dict[str, str]) -> None:
    passed = 0

    @quick
    @given(crowd=crowds(), world=WORLDS)
    def holds(crowd: tuple[list[SimJob], list[SimNode]], world: SimulatedWorld) -> None:
        nonlocal passed
        watched = run(*crowd, world, policy, **options)
        note(f"{watched.passed} passed; {watched.promises}")
        for id, promise in watched.promises.items():
            assert watched.starts[id] <= promise + DUST_S, f"job {id} was sure to start at {promise}"
        passed += watched.passed

    holds()
    assert passed > 100  # it was put to the test


def test_a_log_says_what_users_asked_for_and_nobody_is_ended_for_it(tmp_path: Path) -> None:
    """Three of four processors for an hour, then all; one asks for 20 minutes and takes 40, one asks for nothing."""
    log = tmp_path / "log.swf"
    log.write_text("".join(f"{line} -1 1 1 1 -1 1 -1 -1 -1\n" for line in (
        "1 0 -1 3600 3 -1 -1 3 7200", "2 1 -1 60 4 -1 -1 4 -1", "3 2 -1 2400 1 -1 -1 1 1200", "4 3 -1 600 1 -1 -1 1 -1",
    )))  # fmt: skip
    jobs = read_swf(log).jobs
    assert [job.requested_s for job in jobs] == [7200.0, None, 1200.0, None]
    nodes = [SimNode(name="n", gpus=4)]
    exact = run(list(jobs), nodes, SimulatedWorld(), "fifo", backfill="easy")
    assert exact.starts == {"1": 0.0, "2": 3600.0, "3": 2.0, "4": 2402.0}
    requested = run(list(jobs), nodes, SimulatedWorld(requested=True), "fifo", backfill="easy")
    assert requested.starts == {"1": 0.0, "2": 3600.0, "3": 2.0, "4": 3660.0}  # nothing was asked for it


def test_what_was_asked_for_is_kept_in_our_csv_and_scales_with_the_size(tmp_path: Path) -> None:
    job = SimJob(id="1", submit_s=0.0, runtime_s=10.0, gpus_min=4 * WHOLE, gpus_max=4 * WHOLE, requested_s=30.0)
    write_csv(Workload("jobs.csv", [job]), tmp_path / "jobs.csv")
    workload = load_workload(str(tmp_path / "jobs.csv"))
    assert list(workload.jobs) == [job]
    assert elastic(workload, WHOLE, 4 * WHOLE, Speedup()).jobs[0].requested_s == 120.0


def test_which_times_policies_know_is_one_of_two() -> None:
    with pytest.raises(WorkloadError, match="--times: 'guessed' is neither exact nor requested"):
        Setup(times="guessed").scenario()
    assert Setup(times="requested").scenario().world.requested
