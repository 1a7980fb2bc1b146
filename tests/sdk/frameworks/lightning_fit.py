"""A job on a Lightning Trainer with a tiny model; prints the digest of the final weights.

Arguments: the batches, counted from 1, at which it sends itself a signal, like TERM=3 or KILL=9.
"""

import hashlib
import os
import signal
import sys

import pytorch_lightning as pl
import torch
from ebbtide.integrations.lightning import ResumableLoader, SuspendCallback, resume_path
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, SAMPLES, BATCH = 2, 48, 4


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2)
        )

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def on_train_epoch_end(self):
        print("over after", self.global_step, flush=True)

    def validation_step(self, batch, batch_idx):
        if batch_idx == 0 and not self.trainer.sanity_checking:
            print("validated after", self.global_step, flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Signals(pl.Callback):
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        done = trainer.current_epoch * SAMPLES // BATCH + batch_idx
        for name, number in (word.split("=") for word in sys.argv[1:]):
            # A killed attempt comes by the same batch once more.
            if done + 1 == int(number) and (name == "TERM" or os.environ["EBB_ATTEMPT"] == "1"):
                os.kill(os.getpid(), signal.Signals[f"SIG{name}"])


def main() -> None:
    torch.set_num_threads(1)
    pl.seed_everything(0, verbose=False)
    features = torch.randn(SAMPLES, 8)
    data = TensorDataset(features, (features.sum(1) > 0).long())
    model = Model()
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accumulate_grad_batches=2, val_check_interval=0.5, barebones=False,
        callbacks=[Signals(), SuspendCallback(every=2)],
    )  # fmt: skip
    loader = ResumableLoader(data, batch_size=BATCH, shuffle=True)
    trainer.fit(model, loader, DataLoader(data, batch_size=16), ckpt_path=resume_path())
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    print("digest", digest.hexdigest())


if __name__ == "__main__":
    main()
