"""Determined's seven worked steps (seed 003) on a live cluster of 8 GPUs, and priorities that are changed meanwhile."""

from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, wait_for

SCRIPT = """
import sys, time
from pathlib import Path
import ebbtide
name, done = sys.argv[1], Path(sys.argv[2])
job = ebbtide.job()
state = job.load_checkpoint()
step = state.step if state else 0
while not done.exists():
    time.sleep(0.05)  # the work
    step += 1
    job.report(step=step)
    if job.should_suspend():
        job.suspend(save=lambda folder: (folder / "state").write_text(str(step)))
"""
WORKING = 5
"""The step at which a job has certainly begun to work."""


class Workshop:
    """Jobs by the name of their experiment, which end when they are told to."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)
        self.names: dict[str, str] = {}

    def submit(self, name: str, gpus: int, priority: int, *options: str) -> str:
        """Submit one job of an experiment."""
        done = self.folder / f"done-{len(self.names) + 1}"
        job = self.cluster.submit(
            "--gpus", str(gpus), "--priority", str(priority), *options, "--name", name,
            "--", "python", str(self.script), name, str(done),
        )  # fmt: skip
        assert job == str(len(self.names) + 1)
        self.names[job] = name
        return job

    def finish(self, *jobs: str) -> None:
        """Let them end by themselves, now or as soon as they run."""
        for job in jobs:
            (self.folder / f"done-{job}").touch()

    def at_work(self) -> dict[str, int]:
        """The GPUs of all experiments that have any; nothing if somebody is on the way in or out."""
        gpus: Counter[str] = Counter()
        for job in self.cluster.facts("ls"):
            if job["state"] == "RUNNING" and (job["progress"]["step"] or 0) >= WORKING:
                gpus[self.names[job["id"]]] += job["gpus"]["allocated"]
            elif job["gpus"]["allocated"]:
                return {}
        return dict(gpus)

    def reaches(self, what: str, **gpus: int) -> None:
        """Wait until the experiments have so many GPUs, and all others none."""
        wait_for(what, lambda: self.at_work() == {name.replace("_", "-"): count for name, count in gpus.items()}, 120)


@pytest.fixture
def workshop(idle_cluster: Cluster, tmp_path: Path) -> Workshop:
    idle_cluster.up("8xA100-40GB", "--policy", "priority")
    return Workshop(idle_cluster, tmp_path)


@pytest.mark.slow
def test_the_seven_steps_of_determined(workshop: Workshop) -> None:
    cluster, show = workshop.cluster, workshop.cluster.show
    trials = [workshop.submit("asha", 1, 2) for _ in range(20)]
    workshop.reaches("1. 8 of 20 trials run", asha=8)

    large = workshop.submit("large", 4, 1)
    workshop.reaches("2. 4 of them make room for a more urgent training", asha=4, large=4)
    preempted = [job for job in trials if show(job)["state"] == "SUSPENDED"]
    assert len(preempted) == 4
    assert all(show(job)["checkpoint"] for job in preempted)

    notebook = workshop.submit("notebook", 1, 3, "--suspend", "none")
    workshop.finish(*trials[:16])
    workshop.reaches("3. a notebook waits while the two need all 8", asha=4, large=4)
    assert show(notebook)["state"] == "PENDING"
    workshop.finish(trials[16])
    workshop.reaches("3. and runs once they need 7", asha=3, large=4, notebook=1)

    workshop.finish(*trials[17:], large)
    workshop.reaches("4. both are complete, and the notebook runs", notebook=1)
    assert {show(job)["state"] for job in [*trials, large]} == {"COMPLETED"}
    assert all(show(job)["attempts"][-1]["resumed_step"] >= WORKING for job in preempted)

    whole = workshop.submit("whole", 8, 1)
    workshop.reaches("5. one for 8 GPUs cannot start beside it", notebook=1)
    half = workshop.submit("half", 4, 2)
    workshop.reaches("6. one for 4 uses the idle 7", notebook=1, half=4)
    assert show(whole)["state"] == "PENDING"

    cluster.ebb("cancel", "--now", notebook)
    workshop.reaches("7. with the notebook gone, the larger one takes the place of the smaller one", whole=8)
    workshop.finish(whole)
    workshop.reaches("7. which goes on after it", half=4)
    assert show(half)["attempts"][-1]["resumed_step"] >= WORKING
    workshop.finish(half)
    cluster.ebb("wait", half)
    assert (show(half)["state"], show(half)["preemptions"]) == ("COMPLETED", 1)


def test_a_priority_that_is_changed_moves_those_who_wait_and_those_who_run(workshop: Workshop) -> None:
    cluster = workshop.cluster
    first, second = workshop.submit("first", 8, 42), workshop.submit("second", 8, 42)
    third = workshop.submit("third", 8, 42)
    workshop.reaches("the first to come runs", first=8)

    [shown] = cluster.facts("set", third, "--priority", "5", "--weight", "2")
    assert (shown["id"], shown["priority"], shown["weight"]) == (third, 5, 2.0)
    workshop.reaches("the last, now more urgent, has taken its place", third=8)
    assert "priority 42 → 5, weight 1 → 2 by " in cluster.ebb("story", third).out

    cluster.ebb("set", third, "--priority", "43")
    workshop.reaches("now the least urgent, it steps aside for the first", first=8)
    assert (cluster.show(third)["state"], cluster.show(third)["preemptions"]) == ("SUSPENDED", 1)

    cluster.ebb("set", first, "--priority", "42")  # as it is
    assert "→" not in cluster.ebb("story", first).out
    workshop.finish(first, second, third)
    cluster.ebb("wait", first, second, third)
    ended = [cluster.show(job)["end_time"] for job in (first, second, third)]
    assert ended == sorted(ended)
    assert cluster.ebb("set", first, "--priority", "1", code=1).err == "ebb: job 1 is COMPLETED already\n"
