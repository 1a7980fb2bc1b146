"""A job that finds out whether anybody else has its GPUs: it locks a file for each half of each, as long as it lives.

Usage: witness.py FOLDER NAME SECONDS [leaves]
With `leaves` it ends with a child that goes on, keeps the locks, and holds memory on the GPUs.
"""

import fcntl
import json
import os
import signal
import sys
import time
from pathlib import Path

HALVES = 2


def main() -> None:
    folder, name, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
    signal.signal(signal.SIGTERM, step_aside)
    gpus = [gpu for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if gpu]
    halves = HALVES if os.environ["EBB_GPU_SHARE"] == "1" else 1
    locks = [lock for gpu in gpus for lock in take(folder / "locks", gpu, halves)]
    if len(locks) < halves * len(gpus):
        (folder / "violations" / f"{name}.{os.environ['EBB_ATTEMPT']}").write_text(f"{gpus} are in use")
        sys.exit(111)
    time.sleep(seconds)
    if "leaves" in sys.argv[4:]:
        leave_a_child(gpus)
    (folder / "done" / name).touch()


def take(folder: Path, gpu: str, wanted: int) -> list[int]:
    """Locks on so many halves of the GPU; fewer if others have them."""
    found = []
    for half in range(HALVES):
        lock = os.open(folder / f"{gpu}.{half}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        found.append(lock)
        if len(found) == wanted:  # who shares the GPU may just be looking for the other half
            break
    return found


def step_aside(signum: int, frame: object) -> None:
    Path(os.environ["EBB_CHECKPOINT_DIR"], "state").write_text("so far")
    os._exit(85)


def leave_a_child(gpus: list[str]) -> None:
    """In a session of its own, known to the fake driver as a process of 4 GiB."""
    if os.fork() == 0:
        os.setsid()
        starttime = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        processes = Path(os.environ["EBB_SOCKET"]).parents[2] / "gpus" / "processes"
        draft = processes / f".{os.getpid()}"
        content = {"pid": os.getpid(), "starttime": starttime, "gpus": dict.fromkeys(gpus, 4 << 30)}
        draft.write_text(json.dumps(content))
        draft.replace(processes / f"{os.getpid()}.json")
        time.sleep(1000)


if __name__ == "__main__":
    main()
