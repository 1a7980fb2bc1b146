"""Run a training script and note when it saved, loaded and made its first step: `suspend_resume.py` asks for that.

    NOTES=notes.jsonl python benchmarks/timed.py examples/digits.py --steps 600

The script is run as it is; what it calls of the SDK is timed from outside. One line of JSON for each note.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ebbtide.torch as ebt
from ebbtide import checkpoints
from ebbtide.jobs import Job

NOTES = os.environ["NOTES"]


def note(what: str, began: float) -> None:
    """Append a line in one write, for all ranks write into one file. `at` is in Unix seconds."""
    fact = {
        "what": what,
        "attempt": int(os.environ["EBB_ATTEMPT"]),
        "s": time.perf_counter() - began,
        "at": time.time(),
    }
    with open(NOTES, "a") as file:
        file.write(json.dumps(fact) + "\n")


def timed(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, noted at its end."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            note(what, began)

    return noted


def reporting(report: Callable[..., None]) -> Callable[..., None]:
    """The same call, noted the first time: a step of training is done then."""
    began = time.perf_counter()
    first = True

    def noted(job: Job, **facts: Any) -> None:
        nonlocal first
        if first:
            first = False
            note("first step", began)
        report(job, **facts)

    return noted


def main() -> None:
    """Run the script that the arguments begin with."""
    ebt.Training.load = timed("load", ebt.Training.load)  # type: ignore[method-assign]
    checkpoints.publish = timed("save", checkpoints.publish)
    Job.report = reporting(Job.report)  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
