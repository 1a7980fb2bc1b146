"""Runs a script again and again until it ends with anything but 85 (or SIGKILL), as Ebbtide would.

attempts.py SCRIPT FOLDER: reads one list of arguments per line from stdin, each a job of its own, and prints for each
a line of JSON: the attempts' exit codes, the steps that they went on from, and all that they printed.
The attempts are forks of this process, so that the libraries are loaded once.
"""

import importlib
import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

from ebbtide import checkpoints, leaving

AGAIN = (leaving.SUSPENDED, -signal.SIGKILL)


def run(script: str, folder: Path, arguments: list[str]) -> dict[str, object]:
    """All attempts of one job."""
    codes, steps = [], []
    while not codes or codes[-1] in AGAIN:
        found = checkpoints.newest_valid(folder)
        steps.append(found and found.step)
        codes.append(attempt(script, folder, len(codes) + 1, str(found.path) if found else "", arguments))
    return {"codes": codes, "steps": steps, "log": (folder / "log").read_text()}


def attempt(script: str, folder: Path, number: int, resume: str, arguments: list[str]) -> int:
    """Fork; the child runs the script as one attempt. Returns its exit code, negative for a signal."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)
        os.environ |= {
            "EBB_JOB_ID": "7",
            "EBB_ATTEMPT": str(number),
            "EBB_CHECKPOINT_DIR": str(folder / f"attempt-{number}"),
            "EBB_RESUME_DIR": resume,
            "EBB_OUTPUT_DIR": str(folder / "output"),
        }
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001  the child must not go on with the parent's work
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def main() -> None:
    script, folder, *modules = sys.argv[1:]
    sys.path.insert(0, str(Path(script).parent))
    for module in modules:
        importlib.import_module(module)
    for number, line in enumerate(sys.stdin):
        place = Path(folder, f"job-{number}")
        place.mkdir()
        print(json.dumps(run(script, place, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
