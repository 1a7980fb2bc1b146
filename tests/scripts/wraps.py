"""Starts a script and catches the signal, of which that is to know: `dies` leaves it alone, `swallows` does nothing."""

import os
import signal
import subprocess
import sys

WAYS = {"dies": lambda *_: os._exit(7), "swallows": lambda *_: None}
signal.signal(signal.SIGTERM, WAYS[sys.argv[1]])
sys.exit(subprocess.Popen([sys.executable, "traps_and_exits.py", "85"]).wait())
