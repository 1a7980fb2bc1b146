"""Runs one simulation from start to end."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TextIO

from ebbtide_core.policies.registry import create_policy

from ebbtide_sim.borrowing import Borrower, BorrowingTotals, SimulatedSupply
from ebbtide_sim.engine import RunObserver, SimulatedWorld, Simulation
from ebbtide_sim.eventlog import EventLog
from ebbtide_sim.metrics import Metrics, Report, Tally
from ebbtide_sim.sources import Recorded
from ebbtide_sim.workload import Workload
from ebbtide_sim.workloads.nodes import SimNode

Progress = Callable[[float, int], None]
"""A callback that is called now and then with the simulated time (seconds) and the number of events so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A workload on a cluster under a policy; ``options`` are the policy's, as text.

    With a ``supply``, further nodes are borrowed; ``seed`` decides how long each loan waits and lasts.
    """

    workload: Workload
    nodes: tuple[SimNode, ...]
    policy: str
    options: Mapping[str, str] = field(default_factory=dict)
    world: SimulatedWorld = field(default_factory=SimulatedWorld)
    supply: SimulatedSupply | None = None
    seed: int = 0


def simulate(
    scenario: Scenario,
    *,
    events: TextIO | None = None,
    progress: Progress | None = None,
    metrics: Metrics | None = None,
) -> Report:
    """Run ``scenario``; write its event log to ``events``, and the tallies of its jobs to ``metrics``.

    Raise `PolicyError` for an unknown policy or option.
    """
    metrics = metrics or Metrics()
    observers: list[RunObserver] = [metrics]
    if events is not None:
        observers.append(EventLog(events))
    borrower = None if scenario.supply is None else Borrower(scenario.supply, scenario.seed)
    if borrower is not None:
        observers.append(borrower)
    policy = create_policy(scenario.policy, scenario.options)
    began = time.perf_counter()
    source = Recorded(scenario.workload.jobs)
    world = Simulation(scenario.nodes, source, policy, observers, scenario.world, borrowed=borrower)
    world.run(progress)
    wall_s = time.perf_counter() - began
    gpus, skipped = sum(node.gpus for node in scenario.nodes), scenario.workload.skipped
    if borrower is None or scenario.supply is None:
        return metrics.report(scenario.policy, gpus, skipped, wall_s, world.events)
    lent, facts = borrower.totals.lent_gpu_s, borrower.totals.facts(scenario.supply.lender.price)
    return metrics.report(scenario.policy, gpus, skipped, wall_s, world.events, lent, facts)


def unmeasured(scenario: Scenario) -> Report:
    """Return a report that has all figures which one of ``scenario`` has, before anything is measured."""
    metrics = Metrics({job.id: Tally(job, 0.0, ended=job.submit_s) for job in scenario.workload.jobs})
    supply = None if scenario.supply is None else BorrowingTotals().facts(scenario.supply.lender.price)
    return metrics.report(scenario.policy, 0, scenario.workload.skipped, 0.0, 0, supply=supply)
