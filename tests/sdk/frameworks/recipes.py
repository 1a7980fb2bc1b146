"""The recipes of docs/how-to/frameworks.md, to be run as they stand there."""

import os
import re
import signal
import sys
from pathlib import Path
from types import CodeType

import torch
from ebbtide import jobs

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "frameworks.md"


def recipe(name: str) -> CodeType:
    """The code below the comment `<!-- recipe: NAME -->`."""
    found = re.search(rf"^<!-- recipe: {name} -->\n```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{PAGE.name} has no recipe {name}"
    return compile(found[1], f"{PAGE.name}: {name}", "exec")


def signal_at(number: int) -> None:
    """Send this process the signals that its arguments, like TERM=3 or KILL=9, have for this number."""
    for name, at in (word.split("=") for word in sys.argv[1:]):
        # A killed attempt comes by the same number once more.
        if number == int(at) and (name == "TERM" or jobs.job().attempt == 1):
            os.kill(os.getpid(), signal.Signals[f"SIG{name}"])


class Signals:
    """To be called before each batch, as a module's forward hook is: counts them over all attempts."""

    def __init__(self, batches_per_step: int = 1) -> None:
        state = jobs.job().load_checkpoint()
        self.batches = state.step * batches_per_step if state else 0

    def __call__(self, module: torch.nn.Module, *ignored: object) -> None:
        if module.training:
            self.batches += 1
            signal_at(self.batches)
