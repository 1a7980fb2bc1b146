"""Classify handwritten digits with Hugging Face Accelerate, whose loop over batches suspends and goes on by itself.

ebb submit --gpus 1 --name accelerate -- python examples/accelerate_fit.py --steps 600
"""

import argparse
from pathlib import Path

import ebbtide
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from ebbtide.integrations.accelerate import steps
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64, help="images per step")
    parser.add_argument("--width", type=int, default=256, help="hidden units")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, metavar="N")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="N", help="0: only when suspended")
    parser.add_argument("--out", type=Path, metavar="PATH", help="write the final weights here")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    accelerator = Accelerator(
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=args.seed),
    )
    pixels, labels = load_digits(return_X_y=True)
    images = TensorDataset(torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(labels))
    model = nn.Sequential(nn.Linear(64, args.width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(args.width, 10))
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.Adam(model.parameters(), lr=args.lr),
        DataLoader(images, batch_size=args.batch, shuffle=True),
    )
    for step, (x, y) in steps(accelerator, loader, total=args.steps, every=args.checkpoint_every):
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        if step % args.log_every == 0 or step == args.steps:
            accelerator.print(f"step {step}/{args.steps} loss {loss.item():.4f}")
        ebbtide.job().report(step=step, total=args.steps, loss=loss)
    if args.out and accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), args.out)


if __name__ == "__main__":
    main()
