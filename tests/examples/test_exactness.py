"""However often a run is suspended, and whenever: it does what it would have done in peace, to the last bit."""

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ebbtide import checkpoints

from tests.examples.attempts import MOMENTS
from tests.late import torch

STEPS, SAVE_EVERY = 300, 7
SMALL = {
    "digits.py": ["--width", "8", "--batch", "128"],
    "charlm.py": ["--width", "16", "--batch", "4", "--context", "32"],
}


def run_twice(folder: Path, seed: int, suspensions: int, steps: int) -> None:
    program = [sys.executable, str(Path(__file__).with_name("attempts.py")), str(folder), str(seed), str(suspensions)]
    options = ["--steps", str(steps), "--checkpoint-every", str(SAVE_EVERY), "--log-every", "1"]
    arguments = json.dumps({script: [*small, *options] for script, small in SMALL.items()})
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([*program, arguments], env=environment, check=True, timeout=1500)


def digest(value: Any) -> str:
    """Of everything in it, tensors bit for bit."""
    return hashlib.sha256(_bytes(value)).hexdigest()


def _bytes(value: Any) -> bytes:
    match value:
        case torch.Tensor():
            return repr((value.dtype, value.shape)).encode() + value.contiguous().numpy().tobytes()
        case Mapping():
            return b"".join(repr(name).encode() + _bytes(part) for name, part in value.items())
        case list() | tuple():
            return b"".join(map(_bytes, value))
        case _:
            return repr(value).encode()


def outcome(folder: Path) -> dict[str, Any]:
    """The losses, the final weights, and all that the last checkpoint holds: optimizer, sampler, random numbers."""
    last = checkpoints.newest_valid(folder / "7")
    assert last is not None
    files = sorted([*last.path.glob("*.pt"), folder / "out.pt"])
    found = {path.name: digest(torch.load(path, weights_only=True)) for path in files}
    return {"losses": (folder / "losses").read_text(), "last step saved": last.step, **found}


def check(folder: Path, seed: int, suspensions: int, steps: int) -> None:
    ended = json.loads((folder / "suspended" / "ends.json").read_text())
    log = (folder / "suspended" / "log").read_text()
    assert len(ended) == suspensions + 1, (seed, ended, log)
    assert ended[-1] == ["in peace", 0], (seed, ended, log)
    ours, in_peace = outcome(folder / "suspended"), outcome(folder / "peace")
    assert [int(line.split()[0]) for line in ours["losses"].splitlines()] == list(range(1, steps + 1)), (seed, ended)
    assert ours == in_peace, (seed, ended)
    assert ours["last step saved"] == (steps - 1) // SAVE_EVERY * SAVE_EVERY
    assert len(ours) >= 4
    assert log.count("resumed from step") > suspensions // 2


@pytest.mark.slow  # tests/sdk has the moments of one save, tests/e2e a few suspensions of real examples
def test_a_suspension_at_any_kind_of_moment_changes_nothing(tmp_path: Path) -> None:
    run_twice(tmp_path, seed=3, suspensions=len(MOMENTS), steps=64)
    for script in SMALL:
        check(tmp_path / script, seed=3, suspensions=len(MOMENTS), steps=64)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_suspensions_at_random_moments_change_nothing(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    run_twice(tmp_path, seed, suspensions=50, steps=STEPS)
    for script in SMALL:
        check(tmp_path / script, seed, suspensions=50, steps=STEPS)
