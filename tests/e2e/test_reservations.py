"""A job of unknown length reserves what earlier runs of its script took, and goes on when that was not enough."""

from pathlib import Path

from tests.e2e.cluster import Cluster

SCRIPT = """
import sys, time, ebbtide
job = ebbtide.job()
state = job.load_checkpoint()
for step in range(state.step if state else 0, int(sys.argv[1])):
    time.sleep(0.1)  # the work
    print("step", step, flush=True)
    job.report(step=step + 1)
    if job.should_suspend():
        job.suspend(save=lambda folder: (folder / "state").write_text(str(step)))
"""


def test_a_longer_run_than_ever_checkpoints_at_the_end_of_each_reservation(cluster: Cluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = ("--name", "train", "--", "python", str(script))
    short = [cluster.submit(*command, "5") for _ in range(5)]
    cluster.ebb("wait", *short)

    job = cluster.submit("--time", "auto", *command, "25")
    cluster.ebb("wait", job)
    shown = cluster.show(job)
    assert shown["state"] == "COMPLETED"
    assert shown["attempt"] >= 2
    assert {suspension["checkpointed"] for suspension in shown["suspensions"]} == {"yes"}
    assert (shown["preemptions"], shown["restarts"]) == (0, 0)
    assert [line for line in cluster.log(job).splitlines() if line.startswith("step")] == [
        f"step {step}" for step in range(25)
    ]
    story = cluster.ebb("story", job).out
    assert "from 5 earlier runs" in story or "longer than all 5 earlier runs" in story
    assert "its reservation of" in story
