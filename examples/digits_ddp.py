"""Train the digits network on as many GPUs as there are, and go on with fewer or more after a suspend.

    ebb submit --gpus 1-3 --launch ddp --name elastic -- python examples/digits_ddp.py --steps 600

One process per GPU. The global batch stays what it is: its samples are dealt to the processes there are, each works
through its share in pieces of at most --limit, and the gradient is the mean over all of it whatever their number.
"""

import argparse
from pathlib import Path

import ebbtide
import ebbtide.torch as ebt
import torch
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

HELD_OUT = 297


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=256, help="images per step, over all processes")
    parser.add_argument("--limit", type=int, default=256, help="images that a process holds at once")
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
        nn.Linear(2 * width * 16, 10),
    )


def note(path: Path, step: int, loss: torch.Tensor) -> None:
    with path.open("a") as losses:
        losses.write(f"{step} {loss.item()!r}\n")


def main() -> None:
    args = arguments()
    job = ebbtide.job()
    world = ebt.init()
    torch.manual_seed(args.seed)
    pixels, labels = load_digits(return_X_y=True)
    x = torch.tensor(pixels, dtype=torch.float32, device=world.device).view(-1, 1, 8, 8) / 16
    y = torch.tensor(labels, device=world.device)

    model = DistributedDataParallel(network(args.width).to(world.device))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    sampler = ebt.ResumableSampler(len(x) - HELD_OUT, args.batch, seed=args.seed)
    training = ebt.Training(model, optimizer, sampler)

    def say(text: str) -> None:
        if world.rank == 0:
            print(text)

    say(f"world size {world.world_size}")
    first = 0
    if state := job.load_checkpoint():
        training.load(state.path)
        first = state.step
        say(f"resumed from step {first} (attempt {job.attempt})")

    for step in range(first + 1, args.steps + 1):
        rows = sampler.take().to(world.device)
        loss = torch.zeros((), device=world.device)
        optimizer.zero_grad()
        for part in ebt.accumulate(args.batch, limit=args.limit, model=model):
            chosen = rows[part.rows]
            part_loss = cross_entropy(model(x[chosen]), y[chosen]) * part.weight
            part_loss.backward()
            loss += part_loss.detach()
        optimizer.step()

        logged = step % args.log_every == 0 or step == args.steps
        if logged or args.losses:
            distributed.all_reduce(loss)
            loss /= world.world_size  # the mean over the whole batch now, and before only this process's part of it
        if logged:
            say(f"step {step}/{args.steps} loss {loss.item():.4f}")
        if args.losses and world.rank == 0:
            note(args.losses, step, loss)
        job.report(step=step, total=args.steps, loss=loss)
        if job.should_suspend() and step < args.steps:
            job.suspend(training.save, step, all_ranks=True)
        if args.checkpoint_every and step % args.checkpoint_every == 0 and step < args.steps:
            job.checkpoint(training.save, step, all_ranks=True)

    model.eval()
    with torch.no_grad():
        scores = model.module(x)
    accuracy = (scores[-HELD_OUT:].argmax(dim=1) == y[-HELD_OUT:]).float().mean().item()
    say(f"final loss {cross_entropy(scores[:-HELD_OUT], y[:-HELD_OUT]).item():.6f} over all training digits")
    say(f"accuracy {accuracy:.3f} on {HELD_OUT} digits it never saw")
    if args.out and world.rank == 0:
        torch.save(model.module.state_dict(), args.out)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
