"""Blocks the signal and waits for it in a thread, so that it has no handler; its helper process has none either."""

import os
import signal
import subprocess
import sys
import threading

import training

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
asked = threading.Event()


def wait() -> None:
    signal.sigwait([signal.SIGTERM])
    asked.set()


threading.Thread(target=wait, daemon=True).start()
helper = subprocess.Popen(
    [sys.executable, "-S", "-c", "import time; time.sleep(3600)"],
    preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM]),
)
for step in training.steps(training.resumed()):
    if asked.is_set():
        print(f"helper {'lives' if helper.poll() is None else 'is gone'}")
        training.save(step)
        os._exit(0)
