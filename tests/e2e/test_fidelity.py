"""The simulator decides as the live cluster did: a scenario run live, and its journal under the same policy."""

import io
import json
from pathlib import Path

import pytest
from ebbtide_sim.engine import SimulatedWorld
from ebbtide_sim.replay import RecordedEvent, read_journal, reconstruct
from ebbtide_sim.simulate import Scenario, simulate

from tests.e2e.cluster import Cluster

SCRIPT = """
import sys, time, ebbtide
job = ebbtide.job()
state = job.load_checkpoint()
for step in range(state.step if state else 0, int(float(sys.argv[1]) * 20)):
    time.sleep(0.05)  # the work
    job.report(step=step + 1)
    if job.should_suspend():
        job.suspend(save=lambda folder: (folder / "state").write_text(str(step)))
"""
Decision = tuple[str, str, float]
"""What was decided, for which job, and on how many GPUs."""


@pytest.mark.slow
def test_a_live_run_and_its_simulation_make_the_same_decisions(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def submit(gpus: str, seconds: float, *options: str) -> str:
        return cluster.submit("--gpus", gpus, *options, "--", "python", str(script), str(seconds))

    def running(job: str) -> str:
        cluster.wait_for_state(job, "RUNNING")
        cluster.wait_for_step(job, 5)
        return job

    small = running(submit("1", 8, "--be"))
    large = running(submit("3", 6, "--be"))
    waiting = submit("2", 3, "--be")
    urgent = running(submit("1", 2, "--te"))  # takes the place of the small one, which costs least
    second = running(submit("2", 2, "--te"))  # and this one that of the large one
    queued = submit("1", 1, "--be")
    jobs = [small, large, waiting, urgent, second, queued]
    cluster.ebb("wait", *jobs)
    assert {cluster.show(job)["state"] for job in jobs} == {"COMPLETED"}

    lines = list(read_journal(cluster.home / "journal.db"))
    past = reconstruct(lines)
    log = io.StringIO()
    world = SimulatedWorld(restart_cost_s=past.restart_cost_s)
    simulate(Scenario(workload=past.workload, nodes=past.nodes, policy="fitgpp", world=world), events=log)
    simulated = [json.loads(line) for line in log.getvalue().splitlines()]
    assert of_simulation(simulated) == of_journal(lines)
    assert past.live.preemptions == sum(line["event"] == "preempt" for line in simulated) > 0


def of_journal(lines: list[RecordedEvent]) -> list[Decision]:
    decisions: list[Decision] = []
    for line in lines:
        if line.kind == "AttemptPlaced":
            gpus = sum(piece["share"] for node in line.body["allocation"]["nodes"] for piece in node["gpus"])
            decisions.append(("start", line.body["job"], gpus / 720720))
        elif line.kind == "StopRequested":
            decisions.append(("preempt", line.body["job"], 0.0))
    return decisions


def of_simulation(log: list[dict]) -> list[Decision]:
    names = {"start": "start", "resume": "start", "resize": "start", "preempt": "preempt"}
    return [
        (names[line["event"]], line["job"], sum(share for _, _, share in line["gpus"]))
        for line in log
        if line["event"] in names
    ]
