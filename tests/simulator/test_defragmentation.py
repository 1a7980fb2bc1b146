"""Jobs are moved in the simulator as they are live: the same policy decides, and a move costs a restart."""

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE
from ebbtide_core.policies.registry import create_policy
from ebbtide_sim.engine import SimulatedWorld, Simulation
from ebbtide_sim.sources import Recorded
from ebbtide_sim.workload import SimJob
from ebbtide_sim.workloads.nodes import SimNode

HOUR_S = 3600.0
RESTART_S = 30.0


def run(restart_cost_s: float) -> list[Job]:
    """Two nodes with two GPUs each: all jobs were preempted once, and one of each node ends before the others."""
    nodes = [SimNode(name=name, gpus=2, cpus=8.0, mem_bytes=2**30) for name in "ab"]
    jobs = [
        *(SimJob(id=f"{i}", submit_s=0.0, runtime_s=hours * HOUR_S) for i, hours in enumerate((1, 10, 1, 10))),
        *(
            SimJob(id=f"urgent{i}", submit_s=100.0, runtime_s=60.0, priority=1, gpus_min=2 * WHOLE, gpus_max=2 * WHOLE)
            for i in range(2)
        ),
        SimJob(id="wide", submit_s=3 * HOUR_S, runtime_s=HOUR_S, gpus_min=2 * WHOLE, gpus_max=2 * WHOLE),
    ]
    world = SimulatedWorld(restart_cost_s=restart_cost_s)
    simulation = Simulation(nodes, Recorded(jobs), create_policy("priority", {}), world=world, keep_jobs=True)
    simulation.run()
    return list(simulation.cluster.state.jobs.values())


def test_a_wide_job_starts_as_soon_as_another_was_moved_out_of_its_way() -> None:
    jobs = run(RESTART_S)
    wide = next(job for job in jobs if job.gpus_min == 2 * WHOLE and job.submitted == 3 * HOUR_S)
    assert wide.attempts[0].started - wide.submitted < RESTART_S
    moved = [job for job in jobs if job.gpus_min == WHOLE and job.submitted == 0.0 and len(job.attempts) == 3]
    assert len(moved) == 1
    assert moved[0].suspending.preemptions == 1
    assert moved[0].suspensions[-1].reason == f"moved to make room for job {wide.id}"
    assert moved[0].times.ran_s >= 10 * HOUR_S


def test_nobody_is_moved_if_restarts_cost_more_than_the_wait() -> None:
    jobs = run(9 * HOUR_S)
    assert all(len(job.suspensions) <= 1 for job in jobs)
