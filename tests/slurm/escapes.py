"""A job one of whose processes leaves its session and its parents, and ignores SIGTERM.

Usage: escapes.py FILE

Both note in FILE, with their time, that they live: the job until it has saved, the other one until it is killed.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

ATTEMPT = int(os.environ["EBB_ATTEMPT"])


def note(what: str) -> None:
    line = {"at": time.time(), "what": what, "attempt": ATTEMPT, "pid": os.getpid()}
    os.write(file, (json.dumps(line) + "\n").encode())


def leave(*_: object) -> None:
    Path(os.environ["EBB_CHECKPOINT_DIR"], "saved").touch()
    note("saved")
    sys.exit(85)


file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        note("escaped")
        time.sleep(0.1)
signal.signal(signal.SIGTERM, leave)
while True:
    note("lives")
    time.sleep(0.1)
