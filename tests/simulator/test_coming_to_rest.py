"""Every policy comes to rest: no jobs step aside for each other to and fro while nothing else happens."""

import random
from collections import Counter

import pytest
from ebbtide_core.events import AttemptExited, Event, StopRequested
from ebbtide_core.model.types import WHOLE, JobClass, StopCause
from ebbtide_core.policies.registry import POLICIES, create_policy
from ebbtide_sim.engine import SimulatedWorld, Simulation
from ebbtide_sim.setup import RIGID
from ebbtide_sim.sources import Recorded
from ebbtide_sim.workload import SimJob
from ebbtide_sim.workloads.nodes import SimNode

from tests.drawing import share_of

GIB = 2**30
AT_ONCE = {"min_run_s": "0", "resize_after_s": "0"}
OPTIONS = {
    "fair-share": [{}, {"min_run_s": "0"}, {"min_run_s": "30"}, AT_ONCE, {"per": "user", **AT_ONCE}],
    "priority": [{}, AT_ONCE, {"victims": "cheapest", "classes": "on", **AT_ONCE}, {"preemption": "off"}],
    "fitgpp": [{}, AT_ONCE],
    "hybrid": [{}, {"min_run_s": "0", "sticky": "2"}],
    "malleable-equipartition": [{"min_work_s": "0", "resize_after_s": "0", "gain_restarts": "0"}],
    "malleable-proportional": [{"min_work_s": "0", "resize_after_s": "0", "gain_restarts": "0"}],
    **{policy: [{}, {"min_run_s": "0"}] for policy in ("lrtp", "rand", "pri", "pri-limit")},
}
RUNS = [(policy, options) for policy in POLICIES for options in OPTIONS.get(policy, [{}])]
WHOLE_GPUS = [(1, 1), (1, 1), (2, 2), (3, 3), (6, 6)]
RANGES = [*WHOLE_GPUS, (1, 4), (2, 8), (0.25, 0.25), (0.5, 0.5), (0.25, 4), (0.5, 1), (0, 0)]


def drawn_jobs(drawing: random.Random, rigid: bool) -> list[SimJob]:
    jobs, submit_s = [], 0.0
    for number in range(100):
        low, high = drawing.choice(WHOLE_GPUS if rigid else RANGES)
        submit_s += drawing.expovariate(1 / 14)
        jobs.append(
            SimJob(
                id=str(number),
                submit_s=round(submit_s, 1),
                runtime_s=float(drawing.randint(10, 900)),
                job_class=drawing.choice([JobClass.BEST_EFFORT, JobClass.BEST_EFFORT, JobClass.TRIAL_AND_ERROR]),
                user=drawing.choice(["ann", "bob", "cy"]),
                gpus_min=int(low * WHOLE),
                gpus_max=int(high * WHOLE),
                gpu_mem_bytes=drawing.choice([0, 0, 0, 4 * GIB, 30 * GIB]),
                cpus=float(drawing.choice([0, 1, 8]) or low == 0),
                mem_bytes=drawing.choice([0, 16 * GIB]),
                grace_s=float(drawing.randint(0, 40)),
                save_s=drawing.choice([None, 2.0]),
                priority=drawing.randint(1, 12),
                weight=float(drawing.choice([1, 1, 3])),
                bag=drawing.choice(["", "", "x", "y", "z"]),
                preemptible=drawing.random() < 0.85,
                max_nodes=3 if low >= 2 and drawing.random() < 0.3 else 1,
            )
        )
    return jobs


def drawn_nodes(drawing: random.Random) -> list[SimNode]:
    return [
        SimNode(
            name=f"n{number}",
            gpus=drawing.choice([1, 2, 4, 4, 8]),
            gpu_mem_bytes=drawing.choice([16, 40]) * GIB,
            cpus=drawing.choice([8.0, 32.0]),
            mem_bytes=drawing.choice([64, 256]) * GIB,
        )
        for number in range(drawing.randint(2, 5))
    ]


class Preempted:
    """Counts how often each job is asked to step aside while no job comes and none ends by itself."""

    def __init__(self) -> None:
        self.times: Counter[str] = Counter()
        self.most = 0

    def submitted(self, now: float, job: SimJob, work: float) -> None:
        self.times.clear()

    def dropped(self, now: float, job: str, reason: str) -> None:
        self.times.clear()

    def computed(self, job: str, attempt: int, seconds: float, work: float, kept: bool) -> None:
        pass

    def recorded(self, now: float, event: Event) -> None:
        if isinstance(event, AttemptExited) and not event.exit.stop_requested:
            self.times.clear()
        elif isinstance(event, StopRequested) and event.cause is StopCause.PREEMPTED:
            self.times[event.job] += 1
            self.most = max(self.most, self.times[event.job])


@pytest.mark.parametrize(("policy", "options"), RUNS)
def test_every_policy_comes_to_rest(policy: str, options: dict[str, str]) -> None:
    for seed in range(share_of(20 if policy == "fair-share" else 5)):
        drawing = random.Random(seed)
        jobs, nodes = drawn_jobs(drawing, policy in RIGID or seed % 3 == 0), drawn_nodes(drawing)
        world = SimulatedWorld(restart_cost_s=[0.0, 5.0][seed % 2], resumable=seed % 5 != 4)
        preempted = Preempted()
        # It raises InvariantError where a policy goes to and fro within one instant.
        Simulation(nodes, Recorded(jobs), create_policy(policy, options), [preempted], world).run()
        assert preempted.most <= 3, f"seed {seed}: a job stepped aside again and again"
