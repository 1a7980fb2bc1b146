"""Train a tiny GPT-2 on a text with the Hugging Face Trainer, which suspends and goes on through one callback.

    ebb submit --gpus 1 --name gpt2 -- python examples/hf_trainer.py --steps 300

Nothing is downloaded: the model is made from its configuration, and its words are single characters.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from ebbtide.integrations.transformers import SuspendCallback, resume_path
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

TEXT = Path(__file__).parent / "data" / "tides.txt"
CONTEXT = 32


class Pieces(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Every piece of the text of a certain length, to be continued by one character after each."""

    def __init__(self, raw: str) -> None:
        self.alphabet = sorted(set(raw))
        self._text = torch.tensor([self.alphabet.index(character) for character in raw])

    def __len__(self) -> int:
        return len(self._text) - CONTEXT

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        piece = self._text[index : index + CONTEXT]
        return {"input_ids": piece, "labels": piece}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16, help="pieces of text per step")
    parser.add_argument("--width", type=int, default=64, help="numbers per character; a multiple of 4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20, metavar="N")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="N")
    parser.add_argument("--folder", default=os.environ.get("EBB_OUTPUT_DIR", "hf_trainer"), help="the Trainer's own")
    parser.add_argument("--out", type=Path, metavar="PATH", help="write the final weights here")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    set_seed(args.seed)
    pieces = Pieces(TEXT.read_text())
    config = GPT2Config(
        vocab_size=len(pieces.alphabet), n_positions=CONTEXT, n_embd=args.width, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    options = TrainingArguments(
        args.folder,
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        learning_rate=3e-3,
        logging_steps=args.log_every,
        save_steps=args.checkpoint_every,
        save_total_limit=2,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        seed=args.seed,
    )
    model = GPT2LMHeadModel(config)
    trainer = Trainer(model=model, args=options, train_dataset=pieces, callbacks=[SuspendCallback()])
    trainer.train(resume_from_checkpoint=resume_path())
    if args.out:
        torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, args.out)


if __name__ == "__main__":
    main()
