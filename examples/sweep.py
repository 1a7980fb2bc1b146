"""A sweep from Python, as with submitit: an executor with options, a function, and jobs whose results come back.

    ebb up --gpus 4xRTX4090
    python examples/sweep.py

Each trial is a job on half a GPU that may be preempted for others: it saves, and goes on later where it left off. Run
the script again with `--again ID` after Ctrl-C, or after the notebook's kernel has died, and it takes the jobs up.
"""

import argparse
import json
import random
from functools import partial
from pathlib import Path

import ebbtide
from ebbtide.cluster import Cluster, JobArray


def train(lr: float, momentum: float, steps: int = 200) -> float:
    """Fit a line to noisy points by stochastic gradient descent, and return the loss at the end."""
    job = ebbtide.job()
    slope, speed, first, loss = 0.0, 0.0, 0, 1.0
    if state := job.load_checkpoint():
        slope, speed, loss = json.loads((state.path / "state.json").read_text())
        first = state.step
    for step in range(first, steps):
        draw = random.Random(step)
        x = draw.uniform(-1, 1)
        error = slope * x - (3 * x + draw.gauss(0, 0.1))
        speed = momentum * speed - lr * 2 * error * x
        slope += speed
        loss = 0.95 * loss + 0.05 * error * error
        job.report(step=step + 1, total=steps, loss=loss)
        if job.should_suspend():
            content = json.dumps([slope, speed, loss])
            job.suspend(partial(save, content))
    return loss


def save(content: str, directory: Path) -> None:
    (directory / "state.json").write_text(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", metavar="ID", help="take up the jobs of an earlier run")
    options = parser.parse_args()
    grid = [(lr, momentum) for lr in (0.003, 0.03, 0.3) for momentum in (0.0, 0.9)]
    cluster = Cluster.connect()
    jobs = cluster.job(options.again) if options.again else cluster.map(train, *zip(*grid, strict=True), gpus=0.5)
    if not isinstance(jobs, JobArray):
        parser.error(f"--again {options.again}: is no array of {Path(__file__).name}")
    print(f"array {jobs.id} with {len(jobs)} tasks", flush=True)
    for job in jobs.as_completed():
        print(f"{job.id} {job.state}", flush=True)
    loss, (lr, momentum) = min(zip(jobs.result(), grid, strict=True))
    print(f"best: lr {lr} momentum {momentum} loss {loss:.4f}")


if __name__ == "__main__":
    main()
