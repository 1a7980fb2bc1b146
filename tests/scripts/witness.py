"""Proves how it is treated: it and a child that gets away each hold a lock of their own as long as they live.

witness.py FOLDER

Whoever finds a lock taken says so in a file, for then two copies run. The child does not care for SIGTERM.
"""

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[1])


def hold(name: str) -> object:
    lock = (FOLDER / name).open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (FOLDER / "overlap").write_text(f"attempt {os.environ['EBB_ATTEMPT']} finds {name} taken")
    return lock


if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kept = hold("child.lock")
        os.write(1, b"up\n")
        time.sleep(3600)
    os._exit(0)
signal.signal(signal.SIGTERM, lambda *_: os._exit(85))
kept = hold("leader.lock")
os.write(1, b"up\n")
while True:
    time.sleep(0.05)
