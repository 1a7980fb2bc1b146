"""The other side of `launches.py`: HyperQueue with one worker of 8 cores, in an interpreter that has it.

Usage: PYTHON hyperqueue_tasks.py FOLDER. Each line of standard input is a JSON list of a command and how many tasks run
it; a line with the seconds that the submit took is printed for each. The end of the input stops it.
"""

import json
import os
import sys
import time
from pathlib import Path

CORES = 8


def main(folder: str) -> None:
    """Serve until the end of the input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # it prints a table of itself
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig

    Path(folder).mkdir()
    with LocalCluster(folder, WorkerConfig(cores=CORES)) as cluster:
        client = cluster.client()
        print("ready", file=answers, flush=True)
        for line in sys.stdin:
            command, tasks = json.loads(line)
            job = Job(default_workdir=Path(folder), max_fails=None)
            for _ in range(tasks):
                job.program(command, stdout=None, stderr=None)
            began = time.perf_counter()
            client.submit(job)
            print(time.perf_counter() - began, file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
