"""A job that says all that it can see of itself, and what it may rely on; then it leaves as it is told to.

Its attempts differ in nothing but their number. It fails with `fail`, and ends at once with `end`.
"""

import atexit
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import ebbtide
import numpy


def named(value: object) -> str:
    """What is one value in one attempt and another in the next, told by its name."""
    attempt = os.environ["EBB_ATTEMPT"]
    return str(value).replace(f"attempt-{attempt}", "attempt-N").replace(f".{attempt}/", ".N/")


def descriptors() -> list[tuple[str, bool]]:
    """What is open, and whether it is for children, too; all but what lists them. The lock's number may vary."""
    open_ones = [name for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}")]
    return sorted((named(os.readlink(f"/proc/self/fd/{name}")), os.get_inheritable(int(name))) for name in open_ones)


def main_module() -> dict[str, str]:
    """The attributes that Python gives to the module that it runs."""
    module = sys.modules["__main__"]
    names = [name for name in vars(module) if name.startswith("__") and name != "__loader__"]
    texts = {name: str(getattr(module, name)) for name in names if name != "__builtins__"}
    return {name: re.sub(" at 0x[0-9a-f]+", "", text) for name, text in texts.items()}


def status(*fields: str) -> dict[str, str]:
    lines = Path("/proc/self/status").read_text().splitlines()
    found = (line.split(":\t", 1) for line in lines if line.startswith(fields))
    return {name: value for name, value in found if name != "SigQ"}  # that counts all processes


def shown() -> dict[str, str]:
    """The environment as the kernel shows it to others."""
    entries = [entry for entry in Path("/proc/self/environ").read_bytes().decode().split("\0") if entry]
    return {name: named(value) for name, value in sorted(entry.split("=", 1) for entry in entries)}


def seen() -> dict[str, object]:
    return {
        "argv": [sys.argv, sys.orig_argv, sys.flags, sys.executable, sys.prefix, sys.warnoptions],
        "cmdline": Path("/proc/self/cmdline").read_text().split("\0"),
        "comm": Path("/proc/self/comm").read_text(),
        "path": [sys.path, sorted(sys.path_importer_cache.keys() & set(sys.path))],
        "meta": [str(finder).partition(" at 0x")[0] for finder in sys.meta_path],
        "site": "sitecustomize" in sys.modules,
        "main": main_module(),
        "environment": {name: named(value) for name, value in sorted(os.environ.items()) if name != "EBB_ATTEMPT"},
        "shown": {name: value for name, value in shown().items() if name != "EBB_ATTEMPT"},
        "signals": status("Sig", "Shd", "NoNewPrivs", "Seccomp"),
        "handlers": {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
        "fds": descriptors(),
        "cwd": os.getcwd(),
        "umask": status("Umask"),
        "limits": [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
        "affinity": sorted(os.sched_getaffinity(0)),
        "group": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getppid(), os.getpriority(os.PRIO_PROCESS, 0)],
        "streams": [
            (s.encoding, s.errors, s.line_buffering, s.write_through) for s in (sys.stdin, sys.stdout, sys.stderr)
        ],
        "files": [(s.fileno(), s.isatty(), s.seekable(), s.mode, s.name) for s in (sys.stdin, sys.stdout, sys.stderr)],
        "stdout": named(os.readlink("/proc/self/fd/1")),
        "threads": [thread.name for thread in threading.enumerate()],
        "hooks": [
            sys.excepthook is sys.__excepthook__,
            sys.gettrace(),
            sys.getrecursionlimit(),
            sys.getswitchinterval(),
        ],
        "seeded": [random.Random(1).random(), numpy.random.default_rng(1).random()],
        "spawned": spawned(),
    }


def child(queue: "multiprocessing.Queue[list[object]]") -> None:
    queue.put([sys.modules["__main__"].__name__, sys.argv, os.getcwd(), "numpy" in sys.modules])


def spawned() -> list[object]:
    """What a child sees that is started anew, as a DataLoader's worker may be."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    answer = queue.get()
    process.join()
    return [process.exitcode, *answer]


if __name__ == "__main__":
    facts = seen() if "look" in sys.argv else {}
    job = ebbtide.job()
    atexit.register(print, "at exit")
    print(f"facts {json.dumps(facts, default=str)}", flush=True)
    job.report(step=1, total=100)
    print("reported", flush=True)
    if job.attempt > 1 and "fail" in sys.argv:
        raise ValueError("as it was told")
    while not job.should_suspend():
        time.sleep(0.01)
    job.suspend(step=1)
