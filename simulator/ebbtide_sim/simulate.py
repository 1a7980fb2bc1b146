"""Runs one simulation from start to end."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TextIO

from ebbtide_core.policies.registry import create_policy

from ebbtide_sim.engine import RunObserver, SimulatedWorld, Simulation
from ebbtide_sim.eventlog import EventLog
from ebbtide_sim.metrics import Metrics, Report
from ebbtide_sim.sources import Recorded
from ebbtide_sim.workload import Workload
from ebbtide_sim.workloads.nodes import SimNode

Progress = Callable[[float, int], None]
"""A callback that is called now and then with the simulated time (seconds) and the number of events so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A workload on a cluster under a policy; ``options`` are the policy's, as text."""

    workload: Workload
    nodes: tuple[SimNode, ...]
    policy: str
    options: Mapping[str, str] = field(default_factory=dict)
    world: SimulatedWorld = field(default_factory=SimulatedWorld)


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
    policy = create_policy(scenario.policy, scenario.options)
    began = time.perf_counter()
    world = Simulation(scenario.nodes, Recorded(scenario.workload.jobs), policy, observers, scenario.world)
    world.run(progress)
    wall_s = time.perf_counter() - began
    gpus = sum(node.gpus for node in scenario.nodes)
    return metrics.report(scenario.policy, gpus, scenario.workload.skipped, wall_s, world.events)
