"""Successive halving over real processes: eight tasks on two GPUs, of which few run to their end."""

from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster

LOSSES = [8, 7, 3, 6, 5, 1, 2, 4]
"""Of each task, whatever it computes; the earlier, the worse."""
SCRIPT = f"""
import os, time
import ebbtide
job = ebbtide.job()
state = job.load_checkpoint()
final = {LOSSES}[int(os.environ["EBB_ARRAY_INDEX"])]
for step in range(state.step if state else 0, 240):
    time.sleep(0.02)  # the work
    job.report(step=step + 1, total=240, loss=final + 10 / (step + 1), final=final)
    if job.should_suspend():
        job.suspend(save=lambda folder: (folder / "state").write_text(str(step)), step=step + 1)
"""


@pytest.mark.slow
def test_the_best_of_eight_tasks_goes_on_from_its_checkpoints_and_the_worse_ones_stop_early(
    idle_cluster: Cluster, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    idle_cluster.up("2xA100-40GB")
    array = idle_cluster.submit(
        "--array", "0-7", "--asha", "metric=final,min-steps=20,max-steps=240", "--", "python", str(script)
    )
    idle_cluster.ebb("wait", array, seconds=100)
    tasks = {job["index"]: job for job in idle_cluster.facts("ls", "--all", "--tasks") if job["array"] == array}
    assert {job["state"] for job in tasks.values()} == {"COMPLETED"}
    steps = [tasks[index]["progress"]["step"] for index in range(8)]
    assert steps[LOSSES.index(1)] == 240
    assert sum(steps) < 8 * 240 / 2
    stopped = [job for job in tasks.values() if job["reason"].startswith("stopped early at 20 steps: final ")]
    assert len(stopped) >= 4
    assert {job["exit_code"] for job in stopped} == {0}
    resumed = [attempt["resumed_step"] for job in tasks.values() for attempt in job["attempts"][1:]]
    assert resumed
    assert min(resumed) >= 20
    assert [job["rungs"][0] for job in tasks.values()] == [{"steps": 20, "value": float(loss)} for loss in LOSSES]
    story = idle_cluster.ebb("story", f"{array}.{LOSSES.index(1)}").out
    assert "reached the rung at 20 steps with 1" in story
    assert "goes on from 20 steps: final 1 is number " in story
