"""Generates a stand-in for the 15 hours of Google's trace that HYBRID was tested on (seed 004), and its servers."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from ebbtide_core.model.types import JobClass

from ebbtide_sim.workload import SimJob, Workload, WorkloadError
from ebbtide_sim.workloads.draws import Floats, heavy_tailed
from ebbtide_sim.workloads.google import CLASSES, PRODUCTION
from ebbtide_sim.workloads.nodes import SimNode

HOUR_S: Final = 3600.0
CORES_PER_MACHINE: Final = 16
"""The cores of the largest machine (CPU 1.0). The paper does not give N_c; below 24, slots share cores."""
SERVERS: Final = (("a", 69, 0.5, 24), ("b", 38, 0.5, 24), ("c", 10, 0.5, 24), ("d", 5, 1.0, 24), ("e", 3, 1.0, 48))
"""Table 1 as (name, quantity, CPU, slots); type D is ``d`` with 24 (powerful) and ``e`` with 48 (normal) slots."""


@dataclass(frozen=True, slots=True)
class ClassMix:
    """The tasks of one priority class: their share of all tasks, and their mean demand relative to class 0's."""

    priority_class: int
    share: float
    demand: float


MIX: Final = (
    ClassMix(0, 0.62, 1.0),
    ClassMix(1, 0.05, 1.0),
    ClassMix(2, 0.04, 1.0),
    ClassMix(3, 0.002, 1.0),
    ClassMix(4, 0.26, 1.0),
    ClassMix(5, 0.001, 1.0),
    ClassMix(6, 0.002, 1.0),
    ClassMix(7, 0.001, 1.0),
    ClassMix(8, 0.003, 1.0),
    ClassMix(9, 0.015, 12.0),
    ClassMix(10, 0.005, 4.0),
    ClassMix(11, 0.001, 4.0),
)


@dataclass(frozen=True, slots=True)
class HybridMix:
    """The distributions that the tasks are drawn from.

    From the paper: about 68,000 tasks in 15 hours; of 12 classes, 0, 4 and 9 matter most; class 0 is the most common,
    and class 9 is rare but has large demands. **The rest is assumed**, to be calibrated: the shares; demands are
    lognormal with ``sigma``, cut at ``cut`` times the mean; ``load`` is the total demand over what `hybrid_servers` can
    do in ``hours`` with every slot taken; of the ``bursting`` classes, a fraction ``bursty`` arrives in
    ``bursts_per_hour`` bursts, one in each equal part of the time, which decay with the time constant ``burst_s``; all
    other tasks arrive evenly.
    """

    tasks: int = 68_000
    hours: float = 15.0
    load: float = 0.95
    mix: tuple[ClassMix, ...] = MIX
    sigma: float = 1.5
    cut: float = 30.0
    bursting: tuple[int, ...] = (PRODUCTION,)
    bursty: float = 0.8
    bursts_per_hour: float = 2.0
    burst_s: float = 60.0


NOTES: Final = (
    "a synthetic stand-in for 15 hours of Google's trace of 2011; class shares, demands, load and bursts are assumed",
    "run times are CPU-seconds of the largest machine, to be divided by a task's share of its server",
)


def hybrid_servers() -> list[SimNode]:
    """Return the 125 servers with 3,072 slots of Table 1; a slot is one GPU, and ``speed`` is Table 1's CPU.

    A task progresses by speed / max(cores, tasks running on the server) CPU-seconds per second (section 2.2).
    """
    return [
        SimNode(
            name=f"{kind}-{number}",
            gpus=slots,
            cpus=cpu * CORES_PER_MACHINE,
            cores=round(cpu * CORES_PER_MACHINE),
            speed=cpu,
        )
        for kind, quantity, cpu, slots in SERVERS
        for number in range(quantity)
    ]


def hybrid(seed: int, mix: HybridMix | None = None) -> Workload:
    """Draw the tasks; ``runtime_s`` is a demand in CPU-seconds (of the largest machine), priority is 12 - class."""
    mix = mix or HybridMix()
    _check(mix)
    rng = np.random.default_rng(seed)
    weights = np.array([each.share for each in mix.mix])
    kinds = rng.choice(len(mix.mix), size=mix.tasks, p=weights / weights.sum())
    classes = np.array([each.priority_class for each in mix.mix])[kinds]
    demand = _demands(rng, mix, weights / weights.sum(), kinds)
    arrival = _arrivals(rng, mix, classes)
    order = np.argsort(arrival, kind="stable")
    columns = (arrival[order].tolist(), demand[order].tolist(), classes[order].tolist())
    jobs = [_task(index, *values) for index, values in enumerate(zip(*columns, strict=True))]
    return Workload("hybrid", jobs, notes=NOTES)


def _check(mix: HybridMix) -> None:
    amounts = (mix.hours, mix.load, mix.sigma, mix.cut, mix.bursts_per_hour, mix.burst_s, *(m.share for m in mix.mix))
    good = mix.tasks >= 0 and all(np.isfinite(amount) and amount >= 0 for amount in amounts)
    if not (good and 0 <= mix.bursty <= 1 and mix.cut > 0 and mix.hours > 0 and sum(m.share for m in mix.mix) > 0):
        raise WorkloadError(f"hybrid: no tasks can be drawn from {mix}")


def _demands(rng: np.random.Generator, mix: HybridMix, weights: Floats, kinds: np.ndarray) -> Floats:
    """Draw the CPU-seconds of each task so that their expected sum is the load."""
    relative = np.array([each.demand for each in mix.mix])
    capacity = sum(server.speed for server in hybrid_servers()) * mix.hours * HOUR_S
    unit = mix.load * capacity / max(mix.tasks, 1) / float(weights @ relative)
    demands: Floats = unit * relative[kinds] * heavy_tailed(rng, mix.sigma, mix.cut, mix.tasks)
    return demands


def _arrivals(rng: np.random.Generator, mix: HybridMix, classes: np.ndarray) -> Floats:
    span_s = mix.hours * HOUR_S
    arrival = rng.random(mix.tasks) * span_s
    number = max(1, round(mix.bursts_per_hour * mix.hours))
    bursts = (np.arange(number) + rng.random(number)) / number * span_s
    in_burst = np.isin(classes, mix.bursting) & (rng.random(mix.tasks) < mix.bursty)
    count = int(in_burst.sum())
    if mix.bursts_per_hour > 0:
        arrival[in_burst] = rng.choice(bursts, size=count) + rng.exponential(mix.burst_s, size=count)
    return arrival


def _task(index: int, submit_s: float, demand: float, priority_class: int) -> SimJob:
    return SimJob(
        id=str(index),
        submit_s=submit_s,
        runtime_s=demand,
        job_class=JobClass.TRIAL_AND_ERROR if priority_class >= PRODUCTION else JobClass.BEST_EFFORT,
        priority=CLASSES - priority_class,
    )
