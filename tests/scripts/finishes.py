"""Finishes by itself, the moment that something is written into the named pipe that is its argument.

With `asks` it is on the SDK and asks whether it should suspend; with `traps` it has a handler that never gets to act.
"""

import os
import signal
import sys

import ebbtide

if "traps" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: None)
if "asks" in sys.argv:
    ebbtide.job().should_suspend()
print("up", flush=True)
with open(sys.argv[1]) as pipe:
    pipe.read()
os._exit(0)
