"""kill -9 of suppliers, masters, pilots and lenders, and preemptions, while jobs run on nodes that are borrowed.

    python -m tests.faults.loans --kills 200 --seed 7
    python -m tests.faults.loans --kills 200 --lender slurm

No job may ever have two live attempts, none may begin before what it saved last, there may never be more loans than the
supply allows, nor one that the supplier does not know of, and once no job is left no loan and no process may be left.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.cluster import wait_for
from tests.faults.interrupt import EXIT_INTERRUPTED, until_interrupted
from tests.faults.lenders import LENDERS, FaultyLender

JOBS = 3
SETTLED_EVERY = 10
AGAIN_S = 480.0
"""Seconds in which all jobs run again: a lender is asked every half a minute, a silent node is lost after 20 s, and a
loan that a killed slurmctld takes for running, though no pilot was started, is given back after 5 minutes."""

# It notes each step in a file that all attempts share, and saves every twentieth.
STEPS = """
import ebbtide, os, sys, time
job, step = ebbtide.job(), 0
if state := job.load_checkpoint():
    step = state.step
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(what):
    os.write(file, f"{time.time():.4f} {os.environ['EBB_JOB_ID']} {job.attempt} {what} {step}\\n".encode())
def save(directory):
    (directory / "saved").touch()
note("begins")
while True:
    step += 1
    time.sleep(0.05)
    note("steps")
    if job.should_suspend():
        job.suspend(save, step)
    elif step % 20 == 0:
        job.checkpoint(save, step)
        note("saved")
"""


@dataclass
class Truth:
    """What the jobs have noted."""

    path: Path
    wrong: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Find attempts of a job that ran at the same time, and steps that were lost though they had been saved."""
        times: dict[tuple[str, int], list[float]] = {}
        saved: dict[str, int] = {}
        for line in self.path.read_text().splitlines():
            at, job, attempt, what, step = line.split()
            span = times.setdefault((job, int(attempt)), [float(at), float(at)])
            span[1] = float(at)
            if what == "saved":
                saved[job] = int(step)
            if what == "begins" and int(step) < saved.get(job, 0):
                self.wrong.append(f"attempt {attempt} of job {job} began at {step}, and {saved[job]} was saved")
        for (job, attempt), (_, last) in sorted(times.items()):
            later = [begin for (other, number), (begin, _) in times.items() if other == job and number > attempt]
            if later and min(later) < last:
                self.wrong.append(f"attempt {attempt} of job {job} still ran when a later one began")

    def attempts(self) -> int:
        """How many attempts there were."""
        return sum(" begins " in line for line in self.path.read_text().splitlines())


def run(kills: int, seed: int, folder: Path, lender: str = "kubernetes") -> tuple[Counter[str], Truth, str]:
    """Kill that often; return what was killed, what the jobs noted, and what else was counted."""
    rng, done, truth = random.Random(seed), Counter[str](), Truth(folder / "steps")
    script = folder / "steps.py"
    script.write_text(STEPS)
    with LENDERS[lender](folder) as faulty:
        run_one = ("--gpus", "1", "--grace", "10s", "--", sys.executable, str(script), str(truth.path))
        jobs = [faulty.cluster.submit("--pool", faulty.pool, *run_one) for _ in range(JOBS)]
        _settle(faulty, jobs)
        while done.total() < kills:
            kind = rng.choices(list(faulty.kinds), list(faulty.kinds.values()))[0]
            if faulty.strike(kind, rng):
                done[kind] += 1
                print(f"\r{done.total()} of {kills} kills", end="", file=sys.stderr, flush=True)
            time.sleep(rng.uniform(0.0, 3.0))
            if done.total() % SETTLED_EVERY == 0:
                _settle(faulty, jobs)
        _settle(faulty, jobs)
        faulty.cluster.ebb("cancel", "--now", "--wait", *jobs, seconds=120)
        wait_for("no loan is left", lambda: not faulty.lent(), 180)
        figures = faulty.figures()
    truth.check()
    truth.wrong += faulty.wrong
    return done, truth, figures


def _settle(faulty: FaultyLender, jobs: list[str]) -> None:
    """Wait until all jobs run."""

    def all_run() -> bool:
        faulty.help()
        return all(faulty.cluster.show(job)["state"] == "RUNNING" for job in jobs)

    try:
        wait_for("all jobs run", all_run, AGAIN_S)
    except BaseException:
        print(faulty.cluster.ebb("ls").out, faulty.cluster.ebb("nodes", "--all").out, faulty.said(), sep="\n")
        raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--lender", choices=sorted(LENDERS), default="kubernetes")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        Path(folder).chmod(0o755)
        done, truth, figures = run(options.kills, options.seed, Path(folder), options.lender)
        attempts, minutes = truth.attempts(), (time.monotonic() - began) / 60
    print(f"\r{dict(done)}: {attempts} attempts of {JOBS} jobs, {minutes:.1f} min{figures}; wrong: {truth.wrong or 0}")
    return 1 if truth.wrong else 0


if __name__ == "__main__":
    with until_interrupted():
        sys.exit(main())
    sys.exit(EXIT_INTERRUPTED)
