"""Generates bags of tasks as a research group submits them: parameter surveys, mostly by day (after seed 001)."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ebbtide_sim.workload import SimJob, Workload, WorkloadError
from ebbtide_sim.workloads.draws import Floats, heavy_tailed
from ebbtide_sim.workloads.table import GIB

DAY_S: Final = 86_400.0
_STEPS_PER_DAY: Final = 288


@dataclass(frozen=True, slots=True)
class BagMix:
    """The distributions that the bags are drawn from.

    From seed 001 (section V-A): 14 users and 77,677 tasks in 2,317 bags over 184 days. No task uses more than one GPU
    or is shorter than 300 s; most use about 20 % of a GPU's 12 GiB, some above 90 %. The work is about 1,230 s per task
    on average, because the paper says that six GPUs are saturated. **The rest is assumed**: the few most active users
    submit most (Zipf); bag sizes are Pareto with exponent ``size_exponent``, cut at ``size_max``; run times are
    lognormal, alike within a bag; submissions follow a cosine over the day, strongest 14 hours after midnight.
    """

    users: int = 14
    bags_per_day: float = 2317 / 184
    size_exponent: float = 0.625
    size_max: int = 1000
    run_min_s: float = 300.0
    run_mean_s: float = 1230.0
    bag_sigma: float = 1.2
    task_sigma: float = 0.3
    day_swing: float = 0.8
    peak_hour: float = 14.0
    large_share: float = 0.1
    large_mem_gib: float = 11.0
    small_mem_gib: float = 2.4


NOTES: Final = (
    "a synthetic stand-in for the GPU workload of seed 001; the tasks of a bag arrive together",
    "who submits, sizes of bags, run times and the day's rhythm are drawn from assumed distributions",
)


def bags(n: int, seed: int, mix: BagMix | None = None) -> Workload:
    """Draw bags until they hold ``n`` tasks; the last bag is cut short. Time starts at midnight."""
    mix = mix or BagMix()
    _check(n, mix)
    rng = np.random.default_rng(seed)
    sizes = _sizes(rng, mix, n)
    arrival = _arrivals(rng, mix, sizes.size)
    users = rng.choice(mix.users, size=sizes.size, p=_activity(mix.users))
    large = rng.random(sizes.size) < mix.large_share
    bag_level = heavy_tailed(rng, mix.bag_sigma, 50.0, sizes.size)
    bag_of = np.repeat(np.arange(sizes.size), sizes)
    spread = heavy_tailed(rng, mix.task_sigma, 50.0, n)
    run_s = mix.run_min_s + (mix.run_mean_s - mix.run_min_s) * bag_level[bag_of] * spread
    mem = np.where(large, mix.large_mem_gib, mix.small_mem_gib) * GIB
    columns = (bag_of.tolist(), run_s.tolist())
    facts = list(zip(arrival.tolist(), users.tolist(), mem.astype(np.int64).tolist(), strict=True))
    jobs = [_task(index, bag, run, *facts[bag]) for index, (bag, run) in enumerate(zip(*columns, strict=True))]
    return Workload("bags", jobs, notes=NOTES)


def _check(n: int, mix: BagMix) -> None:
    positive = (mix.users, mix.bags_per_day, mix.size_exponent, mix.size_max)
    good = n >= 0 and all(np.isfinite(value) and value > 0 for value in positive)
    if not (good and 0 <= mix.day_swing <= 1 and 0 <= mix.run_min_s <= mix.run_mean_s):
        raise WorkloadError(f"bags: {n} tasks cannot be drawn from {mix}")


def _sizes(rng: np.random.Generator, mix: BagMix, n: int) -> np.ndarray:
    """Return how many tasks each bag has: at least one, ``n`` in all."""
    draws = (1.0 - rng.random(n)) ** (-1.0 / mix.size_exponent)
    sizes = np.minimum(draws, mix.size_max).astype(np.int64)
    ends = np.cumsum(sizes)
    count = int(np.searchsorted(ends, n)) + 1 if n else 0
    sizes = sizes[:count]
    if count:
        sizes[-1] -= ends[count - 1] - n
    return sizes


def _arrivals(rng: np.random.Generator, mix: BagMix, count: int) -> Floats:
    """Return the sorted times of a Poisson process whose rate follows the day (by inversion of its integral)."""
    if count == 0:
        return np.empty(0)
    even_days = np.cumsum(rng.exponential(1.0 / mix.bags_per_day, size=count))
    last = int(even_days[-1]) + 2
    grid = np.linspace(0.0, last, num=_STEPS_PER_DAY * last + 1)
    turn = 2 * np.pi
    phase = turn * mix.peak_hour / 24
    integral = grid + mix.day_swing / turn * (np.sin(turn * grid - phase) + np.sin(phase))
    return np.asarray(np.interp(even_days, integral, grid) * DAY_S, dtype=np.float64)


def _activity(users: int) -> Floats:
    weights = 1.0 / np.arange(1, users + 1)
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def _task(index: int, bag: int, run_s: float, submit_s: float, user: int, mem_bytes: int) -> SimJob:
    name = f"user{user}"
    return SimJob(
        id=str(index), submit_s=submit_s, runtime_s=run_s, user=name, bag=f"{name}.{bag}", gpu_mem_bytes=mem_bytes
    )
