"""Two jobs on one GPU that slow each other down, as real processes: the newcomer leaves, and the first one recovers."""

from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, wait_for

TRAIN = """
import os, pathlib, time
import ebbtide
job, here = ebbtide.job(), pathlib.Path({here!r})
state = job.load_checkpoint()
mine = here / job.id
mine.touch()
try:
    for step in range(state.step if state else 0, 1_000_000):
        alone = len(os.listdir(here)) == 1
        time.sleep(0.02 if alone else 0.1)
        job.report(step=step + 1)
        if job.should_suspend():
            mine.unlink()
            job.suspend(save=lambda d: (d / "state").write_text("saved"), step=step + 1)
finally:
    mine.unlink(missing_ok=True)
"""


def submit(cluster: Cluster, here: Path) -> str:
    """One on a quarter of a GPU."""
    return cluster.submit("--name", "train", "--gpus", "1/4", "--", "python", "-c", TRAIN.format(here=str(here)))


@pytest.mark.slow
@pytest.mark.alone
def test_the_newcomer_is_suspended_and_the_first_one_is_as_fast_as_before(
    idle_cluster: Cluster, tmp_path: Path
) -> None:
    cluster = idle_cluster
    cluster.up("1xA100-40GB")
    here = tmp_path / "here"
    here.mkdir()
    first = submit(cluster, here)
    wait_for("its speed alone is known", lambda: cluster.show(first)["rates"], 60)
    [alone] = cluster.show(first)["rates"]
    assert (alone["gpus"], alone["nodes"], alone["alone"]) == (0.25, 1, True)
    second = submit(cluster, here)
    cluster.wait_for_state(second, "RUNNING")
    cluster.wait_for_state(second, "SUSPENDED", seconds=120)
    slow = next(rate for rate in cluster.show(first)["rates"] if not rate["alone"])
    assert slow["steps_per_s"] < 0.4 * alone["steps_per_s"]
    away = cluster.show(second)
    assert away["suspensions"][0]["reason"].startswith(f"suspended until there is room elsewhere: beside job {first}")
    assert away["suspensions"][0]["checkpointed"] == "yes"
    assert f"kept apart from job {first}" in cluster.ebb("explain", second).out
    wait_for(
        "the first one is as fast as before",
        lambda: (cluster.show(first)["steps_per_s"] or 0) > 0.8 * alone["steps_per_s"],
        60,
    )
    assert cluster.show(first)["attempt"] == 1
    cluster.ebb("cancel", "--wait", first)
    cluster.wait_for_state(second, "RUNNING")
    assert "disturbed beside job" in cluster.ebb("story", second).out
    cluster.ebb("cancel", "--now", "--wait", second)
