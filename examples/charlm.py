"""Train a small transformer to continue a text, one character after the other, with checkpoints of its own making.

    ebb submit --gpus 1 --name charlm -- python examples/charlm.py --steps 600

It uses nothing but `ebbtide` itself: what it saves is up to the script. Each step draws its batch from a generator
seeded by the step's number, so that weights, optimizer and torch's generator are all there is to save.
"""

import argparse
from pathlib import Path

import ebbtide
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

TEXT = Path(__file__).parent / "data" / "tides.txt"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=16, help="pieces of text per step")
    parser.add_argument("--context", type=int, default=64, help="characters that the model looks back on")
    parser.add_argument("--width", type=int, default=64, help="numbers per character; a multiple of 4")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, default=TEXT, help="what to learn from")
    parser.add_argument("--log-every", type=int, default=20, metavar="N")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="N", help="0: only when suspended")
    parser.add_argument("--losses", type=Path, metavar="PATH", help="append the loss of every step here")
    parser.add_argument("--out", type=Path, metavar="PATH", help="write the final weights here")
    return parser.parse_args()


class CharacterModel(nn.Module):
    """A stack of transformer layers, each character seeing only those before it."""

    def __init__(self, characters: int, context: int, width: int, layers: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.scores = nn.Linear(width, characters)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=text.device)
        places = self.places(torch.arange(length, device=text.device))
        hidden = self.layers(self.characters(text) + places, mask=mask, is_causal=True)
        scores: Tensor = self.scores(hidden)
        return scores


def pieces(text: Tensor, args: argparse.Namespace, step: int) -> tuple[Tensor, Tensor]:
    """The batch of this step: pieces of the text, and the same pieces one character further on."""
    draw = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - args.context - 1, (args.batch, 1), generator=draw)
    rows = starts + torch.arange(args.context)
    return text[rows], text[rows + 1]


@torch.no_grad()
def continued(model: nn.Module, text: Tensor, context: int, characters: int) -> Tensor:
    """The text and the likeliest characters that follow it."""
    model.eval()
    for _ in range(characters):
        likeliest = model(text[None, -context:])[0, -1].argmax()
        text = torch.cat([text, likeliest[None]])
    return text


def note(path: Path, step: int, loss: Tensor) -> None:
    with path.open("a") as losses:
        losses.write(f"{step} {loss.item()!r}\n")


def main() -> None:
    args = arguments()
    job = ebbtide.job()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    raw = args.text.read_text()
    alphabet = sorted(set(raw))
    text = torch.tensor([alphabet.index(character) for character in raw])
    model = CharacterModel(len(alphabet), args.context, args.width, args.layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    def save(directory: Path) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
        if device.type == "cuda":
            state["random_cuda"] = torch.cuda.get_rng_state()
        torch.save(state, directory / "state.pt")

    first = 0
    if found := job.load_checkpoint():
        state = torch.load(found.path / "state.pt", map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        if device.type == "cuda" and "random_cuda" in state:
            torch.cuda.set_rng_state(state["random_cuda"])
        first = found.step
        print(f"resumed from step {first} (attempt {job.attempt})")

    for step in range(first + 1, args.steps + 1):
        x, y = (part.to(device) for part in pieces(text, args, step))
        loss = cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if step % args.log_every == 0 or step == args.steps:
            print(f"step {step}/{args.steps} loss {loss.item():.4f}")
        if args.losses:
            note(args.losses, step, loss)
        job.report(step=step, total=args.steps, loss=loss)
        if job.should_suspend() and step < args.steps:
            job.suspend(save, step)
        if args.checkpoint_every and step % args.checkpoint_every == 0 and step < args.steps:
            job.checkpoint(save, step)

    sample = continued(model, text[: args.context].to(device), args.context, 120)
    print("".join(alphabet[index] for index in sample.tolist()))
    if args.out:
        torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
