"""A job on a Hugging Face Trainer on a disk that is nearly full; it saves and evaluates at the end of each epoch.

All files count as large, so that each is linked into the published checkpoints. Arguments: the steps at which it sends
itself a signal, like TERM=2. Variables: DIES_IN_SAVE is the number of the save of the first attempt in whose middle it
is killed; with EVALUATES=no there is no evaluation.
"""

import hashlib
import os
import shutil
import signal
from types import SimpleNamespace

import torch
from ebbtide import jobs
from ebbtide.integrations import transformers as integration
from ebbtide.integrations.transformers import SuspendCallback, resume_path
from recipes import Signals
from transformers import Trainer, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, inputs, labels=None):
        outputs = self.layer(inputs)
        return {"loss": torch.nn.functional.mse_loss(outputs, labels), "logits": outputs}


class DyingTrainer(Trainer):
    saves = 0

    def _save_optimizer_and_scheduler(self, output_dir):
        self.saves += 1
        if jobs.job().attempt == 1 and self.saves == int(os.environ.get("DIES_IN_SAVE", "0")):
            with open(os.path.join(output_dir, "optimizer.pt"), "wb"):  # as torch.save begins
                os.kill(os.getpid(), signal.SIGKILL)
        super()._save_optimizer_and_scheduler(output_dir)


integration.LARGE_BYTES = 1
shutil.disk_usage = lambda path: SimpleNamespace(free=1)
torch.manual_seed(0)
dataset = [{"inputs": torch.tensor([n, 1.0]), "labels": torch.tensor([n / 2])} for n in range(4)]
model = Model()
model.register_forward_pre_hook(Signals())
args = TrainingArguments(
    os.environ["EBB_OUTPUT_DIR"], num_train_epochs=3, per_device_train_batch_size=2, save_steps=2, logging_steps=1,
    eval_strategy=os.environ.get("EVALUATES", "epoch"), report_to=[], use_cpu=True, disable_tqdm=True, seed=1,
)  # fmt: skip
callbacks = [SuspendCallback()]
trainer = DyingTrainer(model=model, args=args, train_dataset=dataset, eval_dataset=dataset, callbacks=callbacks)
trainer.train(resume_from_checkpoint=resume_path())
print("evaluations", sum("eval_loss" in entry for entry in trainer.state.log_history))
weights = b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())
print("digest", hashlib.sha256(weights).hexdigest())
