"""A training script that knows nothing of Ebbtide: it traps SIGTERM, saves to a file of its own, and exits 0.

    ebb submit --gpus 1 --name plain -- python examples/plain.py --checkpoint spiral.npz

Started again, it goes on from that file. Many scripts are like this one, written for a batch system or for a spot
instance; they are suspended and resumed as they are. It trains a network with one hidden layer, in numpy, to tell
the arms of a spiral apart.
"""

import argparse
import os
import signal
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

ARMS = 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE", help="an .npz file of this run's own")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=4096, help="points per step")
    parser.add_argument("--width", type=int, default=1024, help="hidden units")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, metavar="N")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="N", help="0: only when stopped")
    parser.add_argument("--out", type=Path, metavar="PATH", help="write the final weights here (.npz)")
    return parser.parse_args()


def spiral(seed: int, step: int, size: int) -> tuple[Array, NDArray[np.int64]]:
    """Points of step `step`: drawn anew for each, so that going on from a step needs no generator's state."""
    draw = np.random.default_rng([seed, step])
    radius = draw.uniform(0.1, 1.0, size)
    arm = draw.integers(0, ARMS, size)
    angle = 6 * radius + 2 * np.pi * arm / ARMS + draw.normal(0, 0.1, size)
    points = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return points.astype(np.float32), arm


def initial(seed: int, width: int) -> dict[str, Array]:
    draw = np.random.default_rng(seed)
    weights = {
        "w1": draw.normal(0, 2, (2, width)),
        "b1": draw.normal(0, 1, width),
        "w2": draw.normal(0, 1 / width, (width, ARMS)),
        "b2": np.zeros(ARMS),
    }
    return {name: value.astype(np.float32) for name, value in weights.items()}


def train_step(weights: dict[str, Array], x: Array, y: NDArray[np.int64], lr: float) -> float:
    """One step of gradient descent on the cross-entropy, in place; returns the loss before it."""
    hidden = np.tanh(x @ weights["w1"] + weights["b1"])
    scores = hidden @ weights["w2"] + weights["b2"]
    scores -= scores.max(axis=1, keepdims=True)
    likely = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(-np.log(likely[rows, y]).mean())
    d_scores = likely.copy()
    d_scores[rows, y] -= 1
    d_scores /= len(y)
    d_hidden = (d_scores @ weights["w2"].T) * (1 - hidden**2)
    weights["w2"] -= lr * hidden.T @ d_scores
    weights["b2"] -= lr * d_scores.sum(axis=0)
    weights["w1"] -= lr * x.T @ d_hidden
    weights["b1"] -= lr * d_hidden.sum(axis=0)
    return loss


def save(path: Path, weights: dict[str, Array], step: int, attempt: int) -> None:
    """Replace the file in one rename: whoever reads it finds the old one or the new one, never half of it."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("wb") as stream:
        np.savez(stream, step=step, attempt=attempt, **weights)  # type: ignore[arg-type]
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)


def main() -> None:
    args = arguments()
    stopped = False

    def stop(number: int, frame: object) -> None:
        nonlocal stopped
        stopped = True

    signal.signal(signal.SIGTERM, stop)
    weights, first, attempt = initial(args.seed, args.width), 0, 1
    if args.checkpoint.exists():
        with np.load(args.checkpoint) as saved:
            weights = {name: saved[name] for name in weights}
            first, attempt = int(saved["step"]), int(saved["attempt"]) + 1
        print(f"resumed from step {first} (attempt {attempt})")

    for step in range(first + 1, args.steps + 1):
        x, y = spiral(args.seed, step, args.batch)
        loss = train_step(weights, x, y, args.lr)
        if step % args.log_every == 0 or step == args.steps:
            print(f"step {step}/{args.steps} loss {loss:.4f}")
        if stopped or (args.checkpoint_every and step % args.checkpoint_every == 0) or step == args.steps:
            save(args.checkpoint, weights, step, attempt)
        if stopped and step < args.steps:
            return
    if args.out:
        with args.out.open("wb") as stream:
            np.savez(stream, **weights)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
