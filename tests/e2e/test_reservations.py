"""A job of unknown length reserves what earlier runs of its script took, and goes on when that was not enough."""

from pathlib import Path

from tests.e2e.cluster import Cluster

SCRIPT = """
import sys, time, itertools, ebbtide
job = ebbtide.job()
state = job.load_checkpoint()
first = state.step if state else 0
for step in itertools.count(first):
    time.sleep(0.05)  # the work
    print(f"step {step}", flush=True)
    job.report(step=step + 1)
    if job.should_suspend():
        job.suspend(save=lambda folder: (folder / "state").write_text(str(step)))
    if step == first + 5 and (first or sys.argv[1] == "short"):
        break
"""
"""With `short` it makes a few steps; else it is not done, however fast, before it went on from a checkpoint."""


def test_a_longer_run_than_ever_checkpoints_at_the_end_of_each_reservation(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = ("--name", "train", "--", "python", str(script))
    short = [cluster.submit(*command, "short") for _ in range(5)]
    cluster.ebb("wait", *short)

    job = cluster.submit("--time", "auto", *command, "long")
    cluster.ebb("wait", job)
    shown = cluster.show(job)
    assert shown["state"] == "COMPLETED"
    assert shown["attempt"] >= 2
    assert "yes" in {suspension["checkpointed"] for suspension in shown["suspensions"]}
    assert (shown["preemptions"], shown["restarts"]) == (0, 0)
    steps = [line for line in cluster.log(job).splitlines() if line.startswith("step")]
    assert steps == [f"step {step}" for step in range(len(steps))]
    story = cluster.ebb("story", job).out
    assert "from 5 earlier runs" in story or "longer than all 5 earlier runs" in story
    assert "its reservation of" in story
