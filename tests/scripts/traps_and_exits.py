"""Saves when it is asked to stop, and exits with the code that is its argument.

traps_and_exits.py CODE [SIGNAL]
"""

import signal
import sys

import training

asked = []
signal.signal(signal.Signals[sys.argv[2] if len(sys.argv) > 2 else "SIGTERM"], lambda *_: asked.append(True))
for step in training.steps(training.resumed()):
    if asked:
        training.save(step)
        sys.exit(int(sys.argv[1]))
