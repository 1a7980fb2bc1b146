"""A job on a Hugging Face Trainer with a tiny model; prints the digest of the final weights.

Arguments: the steps at which it sends itself a signal, like TERM=3 or KILL=9.
"""

import hashlib
import os
import signal
import sys

import torch
from ebbtide.integrations.transformers import SuspendCallback, resume_path
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

EPOCHS, SAMPLES, BATCH = 2, 24, 4


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        words = torch.arange(8) * (index + 1) % 50
        return {"input_ids": words, "attention_mask": torch.ones(8, dtype=torch.long), "labels": index % 2}


class Signals(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        for name, step in (word.split("=") for word in sys.argv[1:]):
            # A killed attempt comes by the same step once more.
            if state.global_step + 1 == int(step) and (name == "TERM" or os.environ["EBB_ATTEMPT"] == "1"):
                os.kill(os.getpid(), signal.Signals[f"SIG{name}"])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    arguments = TrainingArguments(
        "out", num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, logging_steps=1, save_steps=4,
        eval_strategy="epoch", report_to=[], use_cpu=True, disable_tqdm=True, seed=1,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Data(), eval_dataset=Data(), callbacks=[Signals(), SuspendCallback()]
    )
    trainer.train(resume_from_checkpoint=resume_path())
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    print("evaluations", sum("eval_loss" in entry for entry in trainer.state.log_history))
    print("digest", digest.hexdigest())


if __name__ == "__main__":
    main()
