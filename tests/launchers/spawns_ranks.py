"""Starts two ranks by multiprocessing, in the way that is its argument, and only polls them; each saves by itself."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time
from pathlib import Path


def rank(number: int) -> None:
    def save(signum: int, frame: object) -> None:
        time.sleep(0.3)
        Path(os.environ["EBB_CHECKPOINT_DIR"], f"rank-{number}").write_text("whole")
        sys.exit(85)

    signal.signal(signal.SIGTERM, save)
    print("up", flush=True)
    while True:
        time.sleep(0.01)


if __name__ == "__main__":
    ranks = [multiprocessing.get_context(sys.argv[1]).Process(target=rank, args=(number,)) for number in range(2)]
    for each in ranks:
        each.start()
    multiprocessing.connection.wait([each.sentinel for each in ranks])
    time.sleep(600)
