"""EASY backfill keeps its promise: whoever passes the head of the line does not delay it, if all times are exact."""

from typing import Any

import pytest
from ebbtide_core.job import Job
from ebbtide_core.model import WHOLE, JobId
from ebbtide_core.placing import Trial
from ebbtide_core.policies.policy import Policy
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.snapshot import Plan, Snapshot
from ebbtide_sim.engine import Simulation, World
from ebbtide_sim.sources import Recorded
from ebbtide_sim.workload import SimJob
from ebbtide_sim.workloads.nodes import SimNode
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.simulator.test_properties import GIB, NODES, WORLDS, careful, could_run, named, simulated, workloads

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
        ends.append((since + job.spec.work_s / snapshot.speedup(allocation.share), job.sequence, allocation))
    for end, _, allocation in sorted(ends, key=lambda each: each[:2]):
        trial.give(allocation)
        if trial.find(head, head.gpus_min) is not None:
            return max(snapshot.now, end)
    return None


def run(jobs: list[SimJob], nodes: list[SimNode], world: World, name: str, **options: str) -> Watched:
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
    policy: str, options: dict[str, str], jobs: list[SimJob], nodes: list[SimNode], world: World
) -> None:
    nodes = named(nodes)
    jobs = [job for job in jobs if could_run(job, nodes)]
    log, checker = simulated(policy, jobs, nodes, world, **options)
    note(log)
    assert checker.finished == {job.id for job in jobs}
    assert not checker.held
    assert simulated(policy, jobs, nodes, world, **options)[0] == log


POLICIES = pytest.mark.parametrize(("policy", "options"), [("fifo", {"backfill": "easy"}), ("reservation", {})])
quick = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


@POLICIES
def test_the_head_never_starts_later_than_if_nobody_had_passed_it(policy: str, options: dict[str, str]) -> None:
    passed = 0

    @quick
    @given(crowd=crowds(), world=WORLDS)
    def holds(crowd: tuple[list[SimJob], list[SimNode]], world: World) -> None:
        nonlocal passed
        watched = run(*crowd, world, policy, **options)
        note(f"{watched.passed} passed; {watched.promises}")
        for id, promise in watched.promises.items():
            assert watched.starts[id] <= promise + DUST_S, f"job {id} was sure to start at {promise}"
        passed += watched.passed

    holds()
    assert passed > 100  # it was put to the test
