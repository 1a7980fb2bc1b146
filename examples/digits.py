"""Train a small convolutional network on handwritten digits, in one process, so that it can be suspended at any step.

    ebb submit --gpus 1 --name digits -- python examples/digits.py --steps 600

Suspended and resumed, it ends with the same weights, bit for bit, as a run that nobody interrupted (with the same
seed, on the same kind of machine, with the same number of threads).
"""

import argparse
from pathlib import Path

import ebbtide
import ebbtide.torch as ebt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

HELD_OUT = 297


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=256, help="images per step")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer; work grows with its square")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, metavar="N")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="N", help="0: only when suspended")
    parser.add_argument("--losses", type=Path, metavar="PATH", help="append the loss of every step here")
    parser.add_argument("--out", type=Path, metavar="PATH", help="write the final weights here")
    return parser.parse_args()


def network(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(2 * width * 16, 10),
    )


def note(path: Path, step: int, loss: torch.Tensor) -> None:
    with path.open("a") as losses:
        losses.write(f"{step} {loss.item()!r}\n")


def main() -> None:
    args = arguments()
    job = ebbtide.job()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels, dtype=torch.float32, device=device).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels, device=device)

    model = network(args.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    sampler = ebt.ResumableSampler(len(x) - HELD_OUT, args.batch, seed=args.seed)
    training = ebt.Training(model, optimizer, sampler)

    first = 0
    if state := job.load_checkpoint():
        training.load(state.path)
        first = state.step
        print(f"resumed from step {first} (attempt {job.attempt})")

    for step in range(first + 1, args.steps + 1):
        rows = sampler.take().to(device)
        loss = cross_entropy(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if step % args.log_every == 0 or step == args.steps:
            print(f"step {step}/{args.steps} loss {loss.item():.4f}")
        if args.losses:
            note(args.losses, step, loss)
        job.report(step=step, total=args.steps, loss=loss)
        if job.should_suspend() and step < args.steps:
            job.suspend(training.save, step)
        if args.checkpoint_every and step % args.checkpoint_every == 0 and step < args.steps:
            job.checkpoint(training.save, step)

    model.eval()
    with torch.no_grad():
        correct = model(x[-HELD_OUT:]).argmax(dim=1) == y[-HELD_OUT:]
    print(f"accuracy {correct.float().mean().item():.3f} on {HELD_OUT} digits it never saw")
    if args.out:
        torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
