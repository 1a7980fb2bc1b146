"""A job on a Lightning Trainer with a tiny model; prints the digest of the final weights.

Arguments: the batches, counted from 1, at which it sends itself a signal, like TERM=3 or KILL=9. With DISK=full in its
environment no checkpoint can be written.
"""

import errno
import hashlib
import os

import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO
from recipes import Signals, recipe
from torch.utils.data import DataLoader, TensorDataset

BATCHES_PER_STEP = 2
RANKS = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2)
        )

    def training_step(self, batch, batch_idx):
        loss = torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def on_train_epoch_end(self):
        print("over after", self.global_step, flush=True)

    def validation_step(self, batch, batch_idx):
        if batch_idx == 0 and not self.trainer.sanity_checking:
            print("validated after", self.global_step, flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class FullDisk(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


torch.set_num_threads(1)
pl.seed_everything(0, verbose=False)
features = torch.randn(48, 8)
dataset = TensorDataset(features, (features.sum(1) > 0).long())
held_out = DataLoader(dataset, batch_size=16)
model = Model()
model.layers.register_forward_pre_hook(Signals(BATCHES_PER_STEP))
options = {
    "max_epochs": 2, "accelerator": "cpu", "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False, "accumulate_grad_batches": BATCHES_PER_STEP, "val_check_interval": 0.5,
    "log_every_n_steps": 1, "devices": RANKS, "strategy": "ddp" if RANKS > 1 else "auto",
}  # fmt: skip
if os.environ.get("DISK") == "full":
    options["plugins"] = [FullDisk()]
exec(recipe("lightning"))
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
print("digest", digest.hexdigest())
