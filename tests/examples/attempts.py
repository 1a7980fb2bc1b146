"""Run examples with nothing in their way, and once more, suspended again and again at moments drawn from a seed.

attempts.py FOLDER SEED SUSPENSIONS ARGUMENTS, the last a JSON object: the arguments of each script.

Every attempt is a child of this process, which has imported torch once for all of them. A signal comes at an exact
point of the program: so many calls of functions after a certain one began.
"""

import importlib
import json
import os
import random
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ebbtide import checkpoints

EXAMPLES = Path(__file__).parents[2] / "examples"
HEAVY = ("sklearn.datasets", "torch", "torch._dynamo", "ebbtide.torch")
ASKED_TO_LEAVE = (85, -signal.SIGTERM)

Moment = tuple[str, int]  # the function, one or another, after whose first call it comes, and how many calls later

MOMENTS = {
    "start-up, mostly before anything can catch the signal": [("", 400)],
    "while the checkpoint is loaded": [("load_checkpoint", 1500)],
    "in training": [("report", 6000)],
    "in the last part of a step": [("should_suspend", 5)],
    "while a checkpoint is saved": [("publish", 250)],
    "between two epochs, or two batches": [("_order or pieces", 10)],
    "twice before the first step": [("load_checkpoint", 20), ("load_checkpoint", 200)],
    "again while it is being suspended": [("report", 3000), ("suspend", 250)],
}


def ask_at(moments: list[Moment]) -> None:
    """Send SIGTERM to this process at each of these moments of the script."""
    begun = [0 if after == "" else None for after, _ in moments]
    calls, to_come = 0, len(moments)

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls, to_come
        if not event.endswith("call"):
            return
        calls += 1
        for index, (after, number) in enumerate(moments):
            if begun[index] is None and event == "call" and frame.f_code.co_name in after.split(" or "):
                begun[index] = calls
            if (begin := begun[index]) is not None and calls == begin + number:
                os.kill(os.getpid(), signal.SIGTERM)
                to_come -= 1
        if to_come == 0:
            sys.setprofile(None)

    sys.setprofile(count)


def attempt(script: str, folder: Path, number: int, moments: list[Moment], arguments: list[str]) -> int:
    """Run one attempt to its end in a child; its exit code."""
    newest = checkpoints.newest_valid(folder / "7", before_attempt=number)
    own = folder / "7" / f"attempt-{number}"
    own.mkdir(parents=True)
    child = os.fork()
    if child == 0:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ |= {"EBB_JOB_ID": "7", "EBB_ATTEMPT": str(number), "EBB_CHECKPOINT_DIR": str(own)}
        os.environ["EBB_RESUME_DIR"] = str(newest.path if newest else "")
        sys.argv = [script, *arguments]
        random.seed(0)  # nobody uses it, but it is saved, and Python seeds it anew after a fork
        code = 1
        try:
            ask_at(moments)
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
            code = 0
        except SystemExit as left:
            code = int(str(left.code))
        finally:
            sys.setprofile(None)
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def drawn(seed: int, count: int) -> Iterator[tuple[str, list[Moment]]]:
    """So many kinds of moments: each kind about equally often, the moment itself anywhere in what the kind says."""
    chance = random.Random(seed)
    kinds = [kind for _ in range(count // len(MOMENTS) + 1) for kind in MOMENTS][:count]
    chance.shuffle(kinds)
    for kind in kinds:
        yield kind, [(after, chance.randint(1, most)) for after, most in MOMENTS[kind]]


def run(script: str, folder: Path, moments: Iterator[tuple[str, list[Moment]]], arguments: list[str]) -> None:
    """Run to the end in a folder of its own; ends.json in it says how each attempt ended."""
    folder.mkdir(parents=True)
    arguments = [*arguments, "--losses", str(folder / "losses"), "--out", str(folder / "out.pt")]
    ended: list[tuple[str, int]] = []
    for kind, when in (*moments, ("in peace", [])):
        if not ended or ended[-1][1] in ASKED_TO_LEAVE:
            ended.append((kind, attempt(script, folder, len(ended) + 1, when, arguments)))
    (folder / "ends.json").write_text(json.dumps(ended))


def main() -> None:
    folder, seed, suspensions, scripts = sys.argv[1:]
    for name in HEAVY:
        importlib.import_module(name)
    for script, arguments in json.loads(scripts).items():
        run(script, Path(folder, script, "peace"), iter(()), arguments)
        run(script, Path(folder, script, "suspended"), drawn(int(seed), int(suspensions)), arguments)


if __name__ == "__main__":
    main()
