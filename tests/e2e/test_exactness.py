"""The real examples, suspended and resized through the real stack, do what they would have done in peace."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ebbtide_cli.errors import UNSAVED

from tests.e2e.cluster import EXAMPLES, Cluster, wait_for
from tests.examples.test_exactness import digest
from tests.late import torch

ENDLESS = ["--steps", "1000000"]
SMALL = {
    "digits": ["--width", "16", "--batch", "256"],
    "charlm": ["--width", "32", "--batch", "8"],
}
# Ten times that of tests/examples/test_resizing.py, because nobody knows how many steps it will be. Learning slowly
# keeps it so small: with ten times the rate, micro-batches of another size alone move the loss by 8e-4 in 70 steps.
TOLERANCE = 1e-4


def losses(folder: Path) -> list[tuple[int, float]]:
    path = folder / "losses"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(step), float(loss)) for step, loss in lines]


def command(name: str, folder: Path, *options: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    return ["python", str(EXAMPLES / f"{name}.py"), *options, "--losses", str(folder / "losses")]


def in_peace(name: str, folder: Path, steps: int, *options: str) -> Path:
    """Run without a cluster, up to this step and one more; where the state after so many steps was saved."""
    checkpoint_dir = folder / "7"
    line = command(name, folder, *options, "--steps", str(steps + 1), "--checkpoint-every", str(steps))
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "EBB_CHECKPOINT_DIR": str(checkpoint_dir)}
    subprocess.run([sys.executable, *line[1:]], env=environment, check=True, capture_output=True, timeout=600)
    return checkpoint_dir / "attempt-1" / f"step-{steps:012d}"


def state(checkpoint: Path) -> dict[str, str]:
    """Digests of model, optimizer, sampler and torch's generator; nobody seeded those of Python and numpy."""
    parts = {path.name: torch.load(path, weights_only=True) for path in checkpoint.glob("*.pt")}
    return {
        name: digest({key: value for key, value in part.items() if key not in ("python", "numpy")})
        for name, part in parts.items()
    }


def suspend_once(cluster: Cluster, job: str, folder: Path, chance: random.Random) -> None:
    """Suspend the running job at once, while it starts, some steps later, or twice; and resume it."""
    before = len(losses(folder))
    match chance.choice(["at once", "starting", "training", "training", "training", "twice"]):
        case "starting":
            cluster.wait_for_state(job, "STARTING", "RUNNING")
        case "training":
            steps = chance.randrange(1, 20)
            wait_for("it trains", lambda: len(losses(folder)) >= before + steps)
        case "twice":
            cluster.ebb("suspend", job)
    ended = cluster.ebb("suspend", "--wait", job, code=None)
    assert ended.code in (0, UNSAVED), ended  # the latter while it starts
    cluster.ebb("resume", job)
    if cluster.show(job)["held_by"] == "system":  # it was stopped three times before it had begun
        cluster.ebb("release", job)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", SMALL)
def test_fifty_suspensions_through_the_cluster_change_nothing(cluster: Cluster, tmp_path: Path, name: str) -> None:
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    folder = tmp_path / name
    line = command(name, folder, *SMALL[name], *ENDLESS, "--checkpoint-every", "50")
    job = cluster.submit("--env", "OMP_NUM_THREADS=1", "--name", name, "--", *line)
    for _ in range(49):
        suspend_once(cluster, job, folder, chance)
    before = len(losses(folder))
    wait_for("it trains", lambda: len(losses(folder)) > before)
    cluster.ebb("suspend", "--wait", job)
    shown = cluster.show(job)
    step = shown["checkpoint"]["step"]
    saved = in_peace(name, tmp_path / "peace", step, *SMALL[name])
    assert losses(folder) == losses(tmp_path / "peace")[:step], seed
    assert state(Path(shown["checkpoint"]["path"])) == state(saved), seed
    assert len(shown["suspensions"]) >= 25, seed
    print(f"seed {seed}: {step} steps, {shown['attempt']} attempts")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("wish", "sizes", "processes"),
    [("4", ["1", "2", "4"], ["4", "1", "2", "4"]), ("1/4-2", ["1/4", "2", "1/4"], ["2", "1", "2", "1"])],
    ids=["four GPUs, one, two, four", "from a quarter of a GPU to two and back"],
)
def test_a_run_that_ebb_resizes_learns_what_it_would_have_learned(
    cluster: Cluster, tmp_path: Path, wish: str, sizes: list[str], processes: list[str]
) -> None:
    folder = tmp_path / "resized"
    small = ["--width", "32", "--batch", "264", "--lr", "1e-4"]
    line = command("digits_ddp", folder, *small, "--limit", "40", "--checkpoint-every", "0", *ENDLESS)
    job = cluster.submit("--gpus", wish, "--launch", "ddp", "--", *line)

    def train() -> None:
        before = len(losses(folder))
        wait_for("it trains", lambda: len(losses(folder)) >= before + 10, seconds=240)

    train()
    for size in sizes:
        cluster.ebb("resize", "--wait", job, "--gpus", size)
        train()
    cluster.ebb("suspend", "--wait", job)
    ours, log = losses(folder), cluster.log(job)
    in_peace("digits_ddp", tmp_path / "peace", len(ours), *small)
    assert re.findall(r"^world size (\d)", log, re.MULTILINE) == processes
    for mine, peace in zip(ours, losses(tmp_path / "peace"), strict=False):
        assert mine == pytest.approx(peace, rel=TOLERANCE), len(ours)
    assert [step for step, _ in ours] == list(range(1, len(ours) + 1))
