"""What is foreseen is what happens, if nobody submits anything and everybody told the truth."""

import random

import pytest
from ebbtide_core import events as e
from ebbtide_core.model.types import WHOLE, JobClass
from ebbtide_core.policies.registry import POLICIES, create_policy
from ebbtide_core.views.forecast import forecast, fork
from ebbtide_sim.engine import Simulation
from ebbtide_sim.sources import Recorded
from ebbtide_sim.workload import SimJob
from ebbtide_sim.workloads.nodes import SimNode

NODES = [SimNode(name=name, gpus=4, cpus=32.0, mem_bytes=2**38) for name in ("a", "b")]


class Starts:
    """When each job first got its room."""

    def __init__(self):
        self.times = {}

    def submitted(self, now, job, work):
        pass

    def dropped(self, now, job, reason):
        pass

    def computed(self, job, attempt, seconds, work, kept):
        pass

    def recorded(self, now, event):
        if isinstance(event, e.AttemptPlaced):
            self.times.setdefault(event.job, now)


def jobs_of(seed):
    draw = random.Random(seed)
    sizes = [(1, 1), (2, 2), (4, 4), (1, 4), (0.25, 0.25)]
    for number in range(16):
        low, high = draw.choice(sizes)
        yield SimJob(
            id=str(number + 1),
            submit_s=0.0,
            runtime_s=float(draw.randint(10, 400)),
            job_class=draw.choice(list(JobClass)),
            user=draw.choice(["ann", "bob"]),
            gpus_min=int(low * WHOLE),
            gpus_max=int(high * WHOLE),
            grace_s=float(draw.randint(0, 20)),
            priority=draw.randint(1, 60),
        )


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_job_starts_when_it_was_foreseen(policy, seed):
    starts, seen = Starts(), {}
    simulation = Simulation(NODES, Recorded(list(jobs_of(seed))), create_policy(policy, {}), [starts])

    def look(now, count):
        if seen or not starts.times:
            return
        for job in simulation.cluster.state.unfinished.values():
            if not job.attempts:
                seen[job.id] = forecast(fork(simulation.cluster), job.id, now).start

    simulation.run(look, every=1)
    assert seen, "some have to wait"
    assert seen == {job: pytest.approx(starts.times[job], abs=0.001) for job in seen}
