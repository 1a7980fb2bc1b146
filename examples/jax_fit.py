"""Classify handwritten digits with JAX: its arrays are a tree, and a tree of numpy arrays is a checkpoint.

    ebb submit --gpus 1 --name jax -- python examples/jax_fit.py --steps 600

JAX draws random numbers from keys. A step's key is made from the seed and the step's number, so there is no
generator's state to save, and a run that was suspended ends with the weights of one that was not, bit for bit.
"""

import argparse
from functools import partial
from pathlib import Path

import ebbtide
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

Tree = dict[str, jax.Array]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=512, help="images per step")
    parser.add_argument("--width", type=int, default=1024, help="hidden units")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, metavar="N")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="N", help="0: only when suspended")
    parser.add_argument("--out", type=Path, metavar="PATH", help="write the final weights here (.npz)")
    return parser.parse_args()


def initial(key: jax.Array, width: int) -> Tree:
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (64, width)) / 8,
        "b1": jnp.zeros(width),
        "w2": jax.random.normal(second, (width, 10)) / width**0.5,
        "b2": jnp.zeros(10),
    }


def loss_of(weights: Tree, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
    hidden = jax.nn.relu(x @ weights["w1"] + weights["b1"])
    kept = jax.random.bernoulli(key, 0.8, hidden.shape)
    scores = jnp.where(kept, hidden / 0.8, 0.0) @ weights["w2"] + weights["b2"]
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], axis=1).mean()


@partial(jax.jit, static_argnames="batch")
def train_step(
    weights: Tree, speed: Tree, x: jax.Array, y: jax.Array, key: jax.Array, lr: float, batch: int
) -> tuple[Tree, Tree, jax.Array]:
    """Gradient descent with momentum on a batch drawn by the key; new weights, new speed, and the loss before."""
    rows_key, dropout_key = jax.random.split(key)
    rows = jax.random.randint(rows_key, (batch,), 0, len(x))
    loss, slope = jax.value_and_grad(loss_of)(weights, x[rows], y[rows], dropout_key)
    speed = jax.tree.map(lambda v, g: 0.9 * v - lr * g, speed, slope)
    return jax.tree.map(jnp.add, weights, speed), speed, loss


def save(directory: Path, weights: Tree, speed: Tree) -> None:
    write(directory / "weights.npz", weights)
    write(directory / "speed.npz", speed)


def write(path: Path, tree: Tree) -> None:
    np.savez(path, **{name: np.asarray(value) for name, value in tree.items()})  # type: ignore[arg-type]


def load(path: Path) -> Tree:
    with np.load(path) as saved:
        return {name: jnp.asarray(saved[name]) for name in saved}


def main() -> None:
    args = arguments()
    job = ebbtide.job()
    pixels, labels = load_digits(return_X_y=True)
    x, y = jnp.asarray(pixels, jnp.float32) / 16, jnp.asarray(labels)
    root = jax.random.key(args.seed)
    weights = initial(root, args.width)
    speed, first = jax.tree.map(jnp.zeros_like, weights), 0
    if state := job.load_checkpoint():
        weights, speed, first = load(state.path / "weights.npz"), load(state.path / "speed.npz"), state.step
        print(f"resumed from step {first} (attempt {job.attempt})")

    for step in range(first + 1, args.steps + 1):
        key = jax.random.fold_in(root, step)
        weights, speed, loss = train_step(weights, speed, x, y, key, args.lr, args.batch)
        if step % args.log_every == 0 or step == args.steps:
            print(f"step {step}/{args.steps} loss {loss:.4f}")
        job.report(step=step, total=args.steps, loss=loss)
        if job.should_suspend() and step < args.steps:
            job.suspend(partial(save, weights=weights, speed=speed), step)
        if args.checkpoint_every and step % args.checkpoint_every == 0 and step < args.steps:
            job.checkpoint(partial(save, weights=weights, speed=speed), step)
    if args.out:
        write(args.out, weights)


if __name__ == "__main__":
    main()
