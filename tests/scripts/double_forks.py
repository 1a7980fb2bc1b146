"""Starts three processes that try to get away, each in another way, and none of which ends when it is told to."""

import os
import signal
import sys
import time

import training


def escape(how: str) -> None:
    """A grandchild of this process that forgets where it came from."""
    readable, writable = os.pipe()
    if os.fork() == 0:
        if how != "stays in the group":
            os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            training.say(f"escaped {os.getpid()}")
            os.write(writable, b"!")
            if how == "closes everything":
                os.closerange(0, 1024)
                os.chdir("/")
            time.sleep(3600)
        os._exit(0)
    os.wait()
    os.read(readable, 1)


for way in ("stays in the group", "has its own session", "closes everything"):
    escape(way)
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
for step in training.steps(training.resumed()):
    if asked:
        training.save(step)
        sys.exit(85)
