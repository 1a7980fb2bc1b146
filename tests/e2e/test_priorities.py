"""Determined's seven worked steps (seed 003) on a live cluster of 8 GPUs, and priorities that are changed meanwhile."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, wait_for

SCRIPT = """
import os, sys, time
from pathlib import Path
import ebbtide
done = Path(sys.argv[1], os.environ["EBB_JOB_ID"])
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

    def submit(self, name: str, gpus: int, *options: str) -> str:
        """Submit one job of an experiment, or an array."""
        return self.cluster.submit(
            "--gpus", str(gpus), *options, "--name", name, "--", "python", str(self.script), str(self.folder)
        )

    def submit_all(self, name: str, count: int, *options: str) -> list[str]:
        """Submit so many jobs on one GPU each."""
        array = self.submit(name, 1, "--array", f"0-{count - 1}", "--max-concurrent", str(count), *options)
        return [f"{array}.{index}" for index in range(count)]

    def finish(self, *jobs: str) -> None:
        """Let them end by themselves, now or as soon as they run."""
        for job in jobs:
            (self.folder / job).touch()

    def jobs(self) -> dict[str, dict[str, Any]]:
        """Everything on all jobs."""
        return {job["id"]: job for job in self.cluster.facts("ls", "--all", "--tasks")}

    def at_work(self) -> dict[str, int]:
        """The GPUs of all experiments that have any; nothing if somebody is on the way in or out."""
        gpus: Counter[str] = Counter()
        for job in self.cluster.facts("ls", "--tasks"):
            if job["state"] == "RUNNING" and (job["progress"]["step"] or 0) >= WORKING:
                gpus[job["name"]] += job["gpus"]["allocated"]
            elif job["gpus"]["allocated"]:
                return {}
        return dict(gpus)

    def reaches(self, what: str, **gpus: int) -> None:
        """Wait until the experiments have so many GPUs, and all others none."""
        try:
            wait_for(what, lambda: self.at_work() == gpus, 60)
        except pytest.fail.Exception as failure:
            jobs = [
                (job["id"], job["state"], job["reason"], job["progress"]["step"]) for job in self.cluster.facts("ls")
            ]
            pytest.fail(f"{failure}; there are {jobs}")


@pytest.fixture
def workshop(idle_cluster: Cluster, tmp_path: Path) -> Workshop:
    idle_cluster.up("8xA100-40GB", "--policy", "priority")
    return Workshop(idle_cluster, tmp_path)


# --- the seed's seven steps ---


@pytest.mark.slow
def test_the_seven_steps_of_determined(workshop: Workshop) -> None:
    cluster, jobs = workshop.cluster, workshop.jobs
    trials = workshop.submit_all("asha", 20, "--priority", "2")
    workshop.reaches("1. 8 of 20 trials run", asha=8)

    large = workshop.submit("large", 4, "--priority", "1")
    workshop.reaches("2. 4 of them make room for a more urgent training", asha=4, large=4)
    now = jobs()
    preempted = [job for job in trials if now[job]["state"] == "SUSPENDED"]
    assert len(preempted) == 4
    assert all(now[job]["checkpoint"] for job in preempted)

    notebook = workshop.submit("notebook", 1, "--priority", "3", "--suspend", "none")
    workshop.finish(*trials[:16])
    workshop.reaches("3. a notebook waits while the two need all 8", asha=4, large=4)
    assert jobs()[notebook]["state"] == "PENDING"
    workshop.finish(trials[16])
    workshop.reaches("3. and runs once they need 7", asha=3, large=4, notebook=1)

    workshop.finish(*trials[17:], large)
    workshop.reaches("4. both are complete, and the notebook runs", notebook=1)
    now = jobs()
    assert {now[job]["state"] for job in [*trials, large]} == {"COMPLETED"}
    assert all(now[job]["attempts"][-1]["resumed_step"] >= WORKING for job in preempted)

    whole = workshop.submit("whole", 8, "--priority", "1")
    workshop.reaches("5. one for 8 GPUs cannot start beside it", notebook=1)
    half = workshop.submit("half", 4, "--priority", "2")
    workshop.reaches("6. one for 4 uses the idle 7", notebook=1, half=4)
    assert jobs()[whole]["state"] == "PENDING"

    cluster.ebb("cancel", "--now", notebook)
    workshop.reaches("7. with the notebook gone, the larger one takes the place of the smaller one", whole=8)
    workshop.finish(whole)
    workshop.reaches("7. which goes on after it", half=4)
    assert jobs()[half]["attempts"][-1]["resumed_step"] >= WORKING
    workshop.finish(half)
    cluster.ebb("wait", half)
    now = jobs()
    assert {now[job]["state"] for job in (whole, half)} == {"COMPLETED"}
    assert [now[job]["preemptions"] for job in (notebook, whole, half)] == [0, 0, 1]


@pytest.mark.slow
def test_without_preemption_the_training_of_step_2_waits_until_the_trials_need_4_gpus(
    idle_cluster: Cluster, tmp_path: Path
) -> None:
    idle_cluster.up("8xA100-40GB", "--policy", "priority", "--policy-option", "preemption=off")
    workshop = Workshop(idle_cluster, tmp_path)
    trials = workshop.submit_all("asha", 20, "--priority", "2")
    workshop.reaches("1. 8 of 20 trials run", asha=8)
    large = workshop.submit("large", 4, "--priority", "1")
    for done in range(0, 15, 3):  # were 4 to end at the same moment, it could start then
        workshop.finish(*trials[done : done + 3])
        idle_cluster.ebb("wait", *trials[done : done + 3])
        workshop.reaches("2. there is never room for it while trials wait", asha=min(8, 17 - done))
    assert workshop.jobs()[large]["state"] == "PENDING"
    workshop.finish(trials[15])
    workshop.reaches("2. 4 are left", asha=4, large=4)
    assert {job["preemptions"] for job in workshop.jobs().values()} == {0}
    said = idle_cluster.ebb("set", trials[16], "--priority", "1").err
    assert "has no effect while it runs: policy priority runs without preemption" in said


# --- the seed's fair shares ---


@pytest.mark.slow
def test_shares_by_demand_and_weight_follow_what_comes_and_what_changes(idle_cluster: Cluster, tmp_path: Path) -> None:
    """Of 8 GPUs, demands of 10 and 30 get 2 and 6; with weights of 3 and 1, 4 each; nobody else has a share."""
    idle_cluster.up("8xA100-40GB", "--policy", "fair-share", "--policy-option", "min_run_s=0")
    workshop = Workshop(idle_cluster, tmp_path)
    first = workshop.submit_all("first", 10, "--group", "first")
    workshop.reaches("alone, an experiment has all", first=8)
    second = workshop.submit_all("second", 30, "--group", "second")
    workshop.reaches("demands of 10 and 30", first=2, second=6)
    idle_cluster.ebb("set", *first, "--weight", "3")
    workshop.reaches("with weights of 3 and 1", first=4, second=4)
    third = workshop.submit_all("third", 8, "--group", "third", "--weight", "7.5")
    workshop.reaches("one more comes, with twice the demand of each", first=2, second=2, third=4)
    idle_cluster.ebb("cancel", "--now", *third)
    workshop.reaches("and goes", first=4, second=4)
    idle_cluster.ebb("cancel", "--now", *second[15:])
    workshop.reaches("the demand of one is half of what it was", first=5, second=3)
    jobs = workshop.jobs()
    assert all(jobs[job]["checkpoint"] for job in first if jobs[job]["preemptions"])


# --- changes ---


def test_a_priority_that_is_changed_moves_those_who_wait_and_those_who_run(workshop: Workshop) -> None:
    cluster = workshop.cluster
    first, second = workshop.submit("first", 8), workshop.submit("second", 8)
    third = workshop.submit("third", 8)
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
