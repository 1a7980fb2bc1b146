"""One run of `ebb` and what it ended with."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """What one run of `ebb` ended with."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def complaint(self) -> str:
        """The one line on stderr; the test fails if there are more or none."""
        (line,) = self.err.splitlines()
        assert line.startswith("ebb: ")
        return line.removeprefix("ebb: ")


Ebb = Callable[..., Result]


def start_ebb(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start `ebb` as a process of its own, with stdout and stderr as pipes."""
    defaults = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "text": True}
    command = [sys.executable, "-m", "ebbtide_cli.main", *arguments]
    return subprocess.Popen(command, env=os.environ.copy(), **(defaults | options))
