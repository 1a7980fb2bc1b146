"""Classify handwritten digits with Lightning, which suspends and goes on through one callback and one loader.

ebb submit --gpus 1 --name lightning -- python examples/lightning_fit.py --steps 600
"""

import argparse
import os
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from ebbtide.integrations.lightning import ResumableLoader, SuspendCallback, resume_path
from ebbtide.integrations.tensorboard import log_dir, purge_step
from pytorch_lightning.loggers import TensorBoardLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset


class Classifier(lightning.LightningModule):
    """A perceptron with dropout, so that a resume which forgets the random state would be seen."""

    def __init__(self, width: int, log_every: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 10))
        self._log_every = log_every

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        step = self.global_step + 1
        if step % self._log_every == 0:
            print(f"step {step}/{self.trainer.max_steps} loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, metavar="N")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="N", help="0: only when suspended")
    parser.add_argument("--out", type=Path, metavar="PATH", help="write the final weights here")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    lightning.seed_everything(args.seed, verbose=False)
    digits = load_digits()
    images = TensorDataset(
        torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target, dtype=torch.long)
    )
    logs = TensorBoardLogger(log_dir(), name="", version="", purge_step=purge_step(first=0))
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=1,
        logger=logs if "EBB_OUTPUT_DIR" in os.environ else False,
        log_every_n_steps=args.log_every,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[SuspendCallback(every=args.checkpoint_every)],
    )
    model = Classifier(args.width, args.log_every)
    trainer.fit(model, ResumableLoader(images, batch_size=args.batch, shuffle=True), ckpt_path=resume_path())
    if args.out:
        torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, args.out)


if __name__ == "__main__":
    main()
