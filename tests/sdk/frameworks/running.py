"""Jobs on a framework, each run to its end through all its attempts."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}


@dataclass(frozen=True)
class Finished:
    """What came of one job."""

    codes: list[int]
    steps: list[int | None]
    log: str

    def said(self, word: str) -> list[str]:
        """What stands after the word in each line that begins with it."""
        return [line.removeprefix(f"{word} ") for line in self.log.splitlines() if line.startswith(f"{word} ")]


def run(script: str, folder: Path, *jobs: list[str], modules: tuple[str, ...]) -> list[Finished]:
    """Run the script once for each list of arguments, in one process that has the modules loaded."""
    command = [sys.executable, str(HERE / "attempts.py"), str(HERE / script), str(folder), *modules]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EBB_")}
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    result = subprocess.run(
        command, input=lines, env=inherited | ENVIRONMENT, capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stderr
    found: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    return [Finished(**job) for job in found]


def logged(folder: Path, tag: str) -> list[int]:
    """The steps that TensorBoard shows of the job, in order."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "output" / "tensorboard"))
    accumulator.Reload()
    return [event.step for event in accumulator.Scalars(tag)]
