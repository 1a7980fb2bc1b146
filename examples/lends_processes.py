"""Lends nodes of this machine to `ebb supply`: each is a pilot that runs as a process of yours.

It stands for whatever starts machines where you are, and shows what the commands of a supply of kind "hook" do:

    [supply.here]
    kind = "hook"
    grow = ["python", "lends_processes.py", "grow"]
    shrink = ["python", "lends_processes.py", "shrink"]
    list = ["python", "lends_processes.py", "list"]

Each loan has a file in ~/.local/state/lent (or $LENT), which its keeper writes: a process that outlives this one,
starts the pilot and waits for its end.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LENT = Path(os.environ.get("LENT", "~/.local/state/lent")).expanduser()


def write(id: str, loan: dict[str, Any]) -> None:
    """Write the file of a loan so that whoever reads it finds all of it."""
    LENT.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = LENT / f"{id}.{os.getpid()}"
    draft.write_text(json.dumps(loan))
    draft.rename(LENT / f"{id}.json")


def read(id: str) -> dict[str, Any]:
    """Return what is known of a loan; nothing if it is unknown."""
    try:
        loan: dict[str, Any] = json.loads((LENT / f"{id}.json").read_text())
    except FileNotFoundError:
        return {}
    return loan


def began(pid: int) -> str:
    """Return when a process began, so that no other one with its pid is taken for it; empty if it is over."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def grow(asked: dict[str, Any]) -> None:
    """Start a node, unless that was done before, and print a name for it."""
    if not read(asked["id"]):
        keeper = subprocess.Popen(
            [sys.executable, __file__, "keep"], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        assert keeper.stdin is not None
        with keeper.stdin:
            keeper.stdin.write(json.dumps(asked))
        while not read(asked["id"]) and keeper.poll() is None:
            time.sleep(0.05)
        if not read(asked["id"]):
            sys.exit(f"the keeper of {asked['id']} ended with {keeper.returncode}")
    print(f"process-{read(asked['id'])['pid']}")


def keep(asked: dict[str, Any]) -> None:
    """Run the pilot of a loan, and note how it ended."""
    until = time.time() + asked["time_s"]
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    command = [*asked["pilot"], "--ends-in", f"{asked['time_s']:.0f}s"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, env=os.environ | asked["environment"]) as pilot:
        loan = {"pid": pilot.pid, "began": began(pilot.pid), "until": until}
        write(asked["id"], loan)
        write(asked["id"], loan | {"exit": pilot.wait()})


def shrink(asked: dict[str, Any]) -> None:
    """Ask the pilot of a loan to leave."""
    loan = read(asked["id"])
    if loan and "exit" not in loan and began(loan["pid"]) == loan["began"]:
        os.kill(loan["pid"], signal.SIGTERM)


def list_(asked: dict[str, Any]) -> None:
    """Print all loans of a supply. A pilot that ended with exit code 0 has left nothing behind."""
    loans = []
    for path in sorted(LENT.glob("*.json")):
        id, loan = path.stem, read(path.stem)
        if id.rpartition("-")[0] != asked["supply"]:
            continue
        if "exit" in loan:
            reason, dead = f"its pilot ended with {loan['exit']}", loan["exit"] == 0
            loans.append({"id": id, "state": "over", "reason": reason, "dead": dead})
        elif began(loan["pid"]) == loan["began"]:
            loans.append({"id": id, "state": "running", "job": f"process-{loan['pid']}", "until": loan["until"]})
        else:
            loans.append({"id": id, "state": "over", "reason": "its pilot was killed"})
    print(json.dumps(loans))


if __name__ == "__main__":
    DO = {"grow": grow, "keep": keep, "shrink": shrink, "list": list_}
    DO[sys.argv[1]](json.load(sys.stdin))
