"""What it is worth to know how scripts scale: the same policies, told nothing, and told what was measured."""

from collections.abc import Iterable

import pytest
from ebbtide_core.estimates.work import LINEAR, Speedup
from ebbtide_core.job.meter import MeasuredRate, Setting
from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_core.policies.registry import create_policy
from ebbtide_sim.engine import Simulation
from ebbtide_sim.metrics import Metrics, Report
from ebbtide_sim.physics import SimulatedAttempt
from ebbtide_sim.sources import Recorded
from ebbtide_sim.workload import SimJob
from ebbtide_sim.workloads.nodes import SimNode

GPUS = 8
JOBS = 8
FLAT = Speedup(((WHOLE, 1.0), (2 * WHOLE, 1.05), (8 * WHOLE, 1.1)))
TRUTH = {"flat": FLAT, "linear": LINEAR}


class ByScript:
    """A world in which each script has a curve of its own, whatever the cluster takes it for."""

    def __init__(self, scripts: dict[str, str]) -> None:
        self._scripts = scripts

    def start(self, run: SimulatedAttempt, now: float) -> Iterable[SimulatedAttempt]:
        run.ends = now + run.work / self._speed(run)
        return (run,)

    def stop(self, run: SimulatedAttempt, now: float) -> tuple[float, Iterable[SimulatedAttempt]]:
        if run.ends is not None and now >= run.ends:
            return run.work, ()
        return min(run.work, (now - run.started) * self._speed(run)), ()

    def _speed(self, run: SimulatedAttempt) -> float:
        return TRUTH[self._scripts[run.job]](run.allocation.share)


def simulated(policy: str, told: bool) -> Report:
    """Jobs that scale badly and jobs that scale well, in turns, on eight GPUs."""
    scripts = {f"{number}": "flat" if number % 2 else "linear" for number in range(JOBS)}
    jobs = [
        SimJob(
            id=id,
            submit_s=600.0 * number,
            runtime_s=6000.0,
            gpus_max=GPUS * WHOLE,
            grace_s=1.0,
            script=script,
        )
        for number, (id, script) in enumerate(scripts.items())
    ]
    metrics = Metrics()
    node = SimNode(name="n0", gpus=GPUS, cpus=32.0, mem_bytes=2**38)
    world = Simulation(
        [node], Recorded(jobs), create_policy(policy, {}), [metrics], physics=ByScript(scripts), keep_jobs=True
    )
    if told:
        for script, curve in TRUTH.items():
            for count in (1, 2, 8):
                rate = MeasuredRate(10 * curve(count * WHOLE), 3)
                world.cluster.state.rates.add(
                    ("", script), JobId(f"before-{count}"), Setting(count * WHOLE, 1, "A100", True), rate
                )
    world.run()
    return metrics.report(policy, GPUS, {}, 0.0, world.events)


@pytest.mark.parametrize(
    "policy",
    [
        "moldable-equipartition",
        "moldable-proportional",
        "malleable-equipartition",
        "malleable-proportional",
        "fitgpp",
    ],
)
def test_jobs_flow_faster_where_the_curves_of_their_scripts_are_known(policy: str) -> None:
    guessed, known = simulated(policy, told=False), simulated(policy, told=True)
    assert guessed.finished == known.finished == JOBS
    assert guessed.flow_time_s["mean"] > 1.2 * known.flow_time_s["mean"]
    assert known.resizes <= guessed.resizes
