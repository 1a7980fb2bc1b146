"""Stands in for Slurm's `scontrol`: it knows `requeue` of the job itself, and `show hostnames`."""

import json
import os
import signal
import socket
import sys

SUPERVISOR = "ebb:"
"""The beginning of the names of supervisor processes."""
SRUN = "ebb:srun"
"""The name of `srun`, which is no supervisor."""


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    match arguments:
        case ["requeue" | "requeuehold", *ids] if set(ids) <= own_ids():
            return requeue()
        case ["show", "hostnames" | "hostname", *lists]:
            sys.stdout.writelines(f"{name}\n" for name in hostnames(",".join(lists)))
            return 0
    sys.exit(f"scontrol (of Ebbtide): {' '.join(arguments)}: only 'requeue' of this job and 'show hostnames' are known")


def own_ids() -> set[str]:
    """Return the ids that a script may use for its own job."""
    variables = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "EBB_JOB_ID")
    ids = {os.environ[name] for name in variables if name in os.environ}
    return ids | {os.environ.get("EBB_JOB_ID", "").replace(".", "_")}


def hostnames(text: str) -> list[str]:
    """Return the nodes of a list; the job's first node as the address by which the others reach it."""
    of_job = os.environ["SLURM_JOB_NODELIST"].split(",")
    names = text.split(",") if text else of_job
    first = os.environ.get("MASTER_ADDR", os.uname().nodename)
    return [first if name == of_job[0] else name for name in names]


def requeue() -> int:
    """Ask for the job to be run again, and end its script."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(json.dumps({"kind": "requeue"}).encode(), os.environ["EBB_SOCKET"])
    os.kill(leader(), signal.SIGTERM)
    return 0


def leader() -> int:
    """Return the pid of the attempt's first process, directly below the supervisor."""
    pid = os.getpid()
    while True:
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
        with open(f"/proc/{parent}/comm") as file:
            name = file.read().strip()
        if (name.startswith(SUPERVISOR) and name != SRUN) or parent == 1:
            return pid
        pid = parent


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
