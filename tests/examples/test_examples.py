"""Every example is interrupted by a real signal, goes on, and ends where it would have ended in peace."""

import re
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import numpy
import pytest
from ebbtide import checkpoints

from tests.examples.running import (
    SUSPENDED,
    contract,
    finish,
    read_until,
    resumed_from,
    started,
    steps,
)
from tests.late import torch
from tests.ports import free_port

SMALL = {
    "digits.py": ["--steps", 240, "--width", 16, "--batch", 128, "--log-every", 1, "--checkpoint-every", 50],
    "charlm.py": ["--steps", 160, "--width", 32, "--batch", 8, "--log-every", 1, "--checkpoint-every", 50],
}


def newest(root: Path) -> checkpoints.Checkpoint:
    found = checkpoints.newest_valid(root / "7")
    assert found is not None
    return found


@pytest.mark.slow  # tests/examples/test_exactness.py is quicker, and stricter
@pytest.mark.parametrize("script", SMALL)
def test_a_suspended_run_ends_with_the_same_weights_bit_for_bit(tmp_path: Path, script: str) -> None:
    options = SMALL[script]
    total = int(str(options[1]))
    with started(script, *options, "--out", tmp_path / "peace.pt") as peace:
        code, text = finish(peace)
    assert (code, steps(text)) == (0, list(range(1, total + 1)))

    with started(script, *options, "--out", tmp_path / "never.pt", **contract(tmp_path, 1)) as first:
        before = read_until(first, "step 60/")
        first.send_signal(signal.SIGTERM)
        code, rest = finish(first)
    assert code == SUSPENDED
    assert not (tmp_path / "never.pt").exists()
    saved = newest(tmp_path)
    assert steps(before + rest) == list(range(1, (saved.step or 0) + 1))

    out = tmp_path / "resumed.pt"
    with started(script, *options, "--out", out, **contract(tmp_path, 2, saved.path)) as second:
        code, text = finish(second)
    assert code == 0
    assert resumed_from(text) == (saved.step, 2)
    assert steps(text) == list(range((saved.step or 0) + 1, total + 1))
    ours, theirs = (torch.load(path, weights_only=True) for path in (out, tmp_path / "peace.pt"))
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def weights(path: Path) -> dict[str, bytes]:
    """What was trained, bit for bit."""
    if path.suffix == ".npz":
        with numpy.load(path) as saved:
            return {name: saved[name].tobytes() for name in saved}
    return {name: tensor.numpy().tobytes() for name, tensor in torch.load(path, weights_only=True).items()}


FRAMEWORKS = {
    "hf_trainer.py": (["--steps", 60, "--log-every", 5, "--checkpoint-every", 25, "--folder"], r"\{'loss'"),
    "lightning_fit.py": (["--steps", 400, "--log-every", 5, "--checkpoint-every", 150], r"step 20/"),
    "accelerate_fit.py": (["--steps", 400, "--log-every", 5, "--checkpoint-every", 150], r"step 20/"),
    "jax_fit.py": (["--steps", 400, "--log-every", 5, "--checkpoint-every", 150, "--width", 256], r"step 20/"),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", FRAMEWORKS)
def test_an_example_of_a_framework_is_suspended_and_ends_with_the_same_weights(tmp_path: Path, script: str) -> None:
    options, going = FRAMEWORKS[script]

    def command(run: str) -> list[object]:
        return [*options, *([tmp_path / run] if "--folder" in options else []), "--out", out(run)]

    def out(run: str) -> Path:
        return tmp_path / f"{run}{'.npz' if script == 'jax_fit.py' else '.pt'}"

    with started(script, *command("peace"), HOME=str(tmp_path)) as peace:
        assert finish(peace)[0] == 0
    with started(script, *command("first"), HOME=str(tmp_path), **contract(tmp_path, 1)) as first:
        read_until(first, going)
        first.send_signal(signal.SIGTERM)
        code, text = finish(first)
    assert code == SUSPENDED, text
    saved = newest(tmp_path).path
    with started(script, *command("second"), HOME=str(tmp_path), **contract(tmp_path, 2, saved)) as second:
        assert finish(second)[0] == 0
    ours, theirs = (weights(out(run)) for run in ("second", "peace"))
    assert ours == theirs


def start_ranks(stack: ExitStack, size: int, options: list[object], **variables: str) -> list[subprocess.Popen[str]]:
    """The processes that `--launch ddp` would start for `size` GPUs, rank 0 first."""
    port = str(free_port())
    ranks = []
    for rank in map(str, range(size)):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(stack.enter_context(started("digits_ddp.py", *options, **place, **variables)))
    return ranks


def final_loss(text: str) -> float:
    match = re.search(r"^final loss (\d+\.\d+)", text, re.MULTILINE)
    assert match is not None, text
    return float(match[1])


@pytest.mark.slow  # tests/examples/test_resizing.py is quicker, and stricter
def test_a_run_on_two_gpus_goes_on_with_one_and_learns_the_same(tmp_path: Path) -> None:
    options: list[object] = ["--steps", 160, "--width", 8, "--batch", 66, "--limit", 20, "--log-every", 1]
    with started("digits_ddp.py", *options) as peace:
        code, text = finish(peace)
    assert (code, steps(text)) == (0, list(range(1, 161)))
    assert text.startswith("world size 1\n")

    with ExitStack() as stack:
        ranks = start_ranks(stack, 2, options, **contract(tmp_path, 1))
        before = read_until(ranks[0], "step 40/")
        assert before.startswith("world size 2\n")
        ranks[1].send_signal(signal.SIGTERM)
        ended = [finish(rank) for rank in ranks]
    assert [code for code, _ in ended] == [SUSPENDED, SUSPENDED]
    assert ended[1][1] == "", "only rank 0 talks"
    saved = newest(tmp_path)
    assert steps(before + ended[0][1]) == list(range(1, (saved.step or 0) + 1))

    with ExitStack() as stack:
        (rank,) = start_ranks(stack, 1, options, **contract(tmp_path, 2, saved.path))
        code, resumed = finish(rank)
    assert code == 0
    assert resumed.startswith("world size 1\n")
    assert resumed_from(resumed) == (saved.step, 2)
    assert steps(resumed) == list(range((saved.step or 0) + 1, 161))
    # The same samples in the same batches, summed in another order: floating point is all that may differ.
    assert final_loss(resumed) == pytest.approx(final_loss(text), rel=0.01)


PLAIN: list[object] = ["--steps", 400, "--width", 128, "--batch", 1024, "--log-every", 1, "--checkpoint-every", 50]


def test_the_plain_script_stops_with_0_and_goes_on_from_its_own_file(tmp_path: Path) -> None:
    with started("plain.py", *PLAIN, "--checkpoint", tmp_path / "a.npz", "--out", tmp_path / "peace.npz") as peace:
        code, text = finish(peace)
    assert (code, steps(text)) == (0, list(range(1, 401)))

    own = [*PLAIN, "--checkpoint", tmp_path / "b.npz", "--out", tmp_path / "out.npz"]
    with started("plain.py", *own, signalled=("step 70/", signal.SIGTERM)) as first:
        before = read_until(first, "step 70/")
        code, rest = finish(first)
    assert code == 0
    assert not (tmp_path / "out.npz").exists()
    stopped_after = steps(before + rest)[-1]

    with started("plain.py", *own, signalled=("step 170/", signal.SIGKILL)) as second:
        begun = read_until(second, "step 170/")
        code, rest = finish(second)
    assert code == -signal.SIGKILL
    assert resumed_from(begun) == (stopped_after, 2)
    assert steps(begun)[0] == stopped_after + 1

    with started("plain.py", *own) as third:
        code, text = finish(third)
    assert code == 0
    last_saved, attempt = resumed_from(text)
    assert (last_saved % 50, attempt) == (0, 3)
    assert last_saved >= 150
    assert steps(text) == list(range(last_saved + 1, 401))
    assert weights(tmp_path / "out.npz") == weights(tmp_path / "peace.npz")
