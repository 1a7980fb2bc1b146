"""A job on a Hugging Face Trainer with a tiny model; prints the digest of the final weights.

Arguments: the steps at which it sends itself a signal, like TERM=3 or KILL=9.
"""

import hashlib
import os

import torch
from recipes import Signals, recipe
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        words = torch.arange(8) * (index + 1) % 50
        return {"input_ids": words, "attention_mask": torch.ones(8, dtype=torch.long), "labels": index % 2}


torch.manual_seed(0)
torch.set_num_threads(1)
dataset = Data()
model = BertForSequenceClassification(
    BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16,
    )
)  # fmt: skip
model.register_forward_pre_hook(Signals())
args = TrainingArguments(
    os.environ["EBB_OUTPUT_DIR"], num_train_epochs=2, per_device_train_batch_size=4, logging_steps=1, save_steps=4,
    eval_strategy="epoch", report_to=[], use_cpu=True, disable_tqdm=True, seed=1,
)  # fmt: skip
exec(recipe("hugging_face"))
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
print("evaluations", sum("eval_loss" in entry for entry in trainer.state.log_history))  # noqa: F821  the recipe's
print("digest", digest.hexdigest())
