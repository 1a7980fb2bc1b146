"""Two GPUs for eight people: PyTorch jobs with a quarter of one each, and what becomes of one that takes too much."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, wait_for

GIB = 1 << 30
SCRIPT = """
import sys, time
from pathlib import Path
import ebbtide
import torch
greedy, done = map(Path, sys.argv[1:])
job = ebbtide.job()
ebbtide.fake_allocate(3 << 30)
step, weights = 0, torch.zeros(32, 32)
if state := job.load_checkpoint():
    step, weights = state.step, torch.load(state.path / "weights.pt")
while not done.exists():
    weights = torch.tanh(weights @ weights + 0.01)
    time.sleep(0.05)  # the rest of the work
    step += 1
    job.report(step=step)
    if greedy.exists():
        greedy.unlink()
        ebbtide.fake_allocate(11 << 30)
    if job.should_suspend():
        job.suspend(lambda folder: torch.save(weights, folder / "weights.pt"), step)
"""


class Workstation:
    """A node with two GPUs of 24 GiB, and quarter-GPU jobs on it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.script = folder / "train.py"
        self.script.write_text(SCRIPT)

    def submit(self, name: str) -> str:
        greedy, done = self.folder / f"{name}-is-greedy", self.folder / f"{name}-is-done"
        return self.cluster.submit(
            "--gpus", "1/4", "--cpus", "0.1", "--name", name, "--", "python", str(self.script), str(greedy), str(done)
        )  # fmt: skip

    def jobs(self, *options: str) -> dict[str, dict[str, Any]]:
        return {job["name"]: job for job in self.cluster.facts("ls", *options)}

    def working(self, names: list[str]) -> dict[str, dict[str, Any]] | None:
        """The jobs of these names if all of them make steps."""
        found = {name: job for name, job in self.jobs().items() if name in names and job["progress"]["step"]}
        return found if len(found) == len(names) else None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_eight_share_two_gpus_a_ninth_waits_and_who_takes_too_much_goes_alone(
    idle_cluster: Cluster, tmp_path: Path
) -> None:
    idle_cluster.up("2xRTX3090")
    node = Workstation(idle_cluster, tmp_path)
    names = [f"trial-{number}" for number in range(1, 9)]
    ids = {name: node.submit(name) for name in names}
    before = wait_for("all eight make steps at once", lambda: node.working(names), 400)
    by_gpu = [{job["name"] for job in before.values() if job["gpu_uuids"] == [uuid]} for uuid in _uuids(before)]
    assert [len(jobs) for jobs in by_gpu] == [4, 4]

    ninth = node.submit("trial-9")
    explained = idle_cluster.facts("explain", ninth)
    assert explained["state"] == "PENDING"
    assert "1/4 GPU" in explained["needs"]
    assert explained["nodes"][0]["obstacle"] == "too few GPUs left"

    (tmp_path / "trial-3-is-greedy").touch()
    greedy = idle_cluster.wait_for_state(ids["trial-3"], "SUSPENDED")
    assert greedy["reason"] == "waiting for 1/4 GPU with 12.2 GiB"
    assert greedy["suspensions"][-1]["reason"].startswith("uses 11 GiB of GPU memory, 6 GiB were given to it")
    assert greedy["suspensions"][-1]["checkpointed"] == "yes"

    neighbours = [name for name in names if name != "trial-3"]
    now = node.working(neighbours)
    for name in neighbours:
        assert (now[name]["attempt"], now[name]["pid"]) == (1, before[name]["pid"])
        idle_cluster.wait_for_step(ids[name], before[name]["progress"]["step"] + 20)
    for name in [*names, "trial-9"]:
        (tmp_path / f"{name}-is-done").touch()
    idle_cluster.ebb("wait", *ids.values(), ninth, seconds=240)
    ended = {name: (job["state"], job["attempt"]) for name, job in node.jobs("--all").items()}
    assert ended == {name: ("COMPLETED", 2 if name == "trial-3" else 1) for name in [*names, "trial-9"]}


def _uuids(jobs: dict[str, dict[str, Any]]) -> set[str]:
    return {uuid for job in jobs.values() for uuid in job["gpu_uuids"]}
