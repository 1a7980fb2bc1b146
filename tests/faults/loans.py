"""kill -9 of suppliers, masters and pods, and preemptions of pods, while jobs run on nodes that are borrowed.

    python -m tests.faults.loans --kills 200 --seed 7

No job may ever have two live attempts, none may begin before what it saved last, there may never be more pods than the
supply allows, and once no job is left no pod and no process may be left either.
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
from tests.pods.borrowed import MOST_NODES, Borrowed

JOBS = 3
SETTLED_EVERY = 5
KINDS = {"supplier": 5, "master": 4, "pod": 2, "preemption": 3}
"""What is killed, and how often beside the others."""
AGAIN_S = 240.0
"""Seconds in which all jobs run again: a lender is asked every half a minute, and a silent node is lost after 20 s."""

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


def run(kills: int, seed: int, folder: Path) -> tuple[Counter[str], Truth]:
    """Kill that often; return what was killed, and what the jobs noted."""
    rng, done, truth = random.Random(seed), Counter[str](), Truth(folder / "steps")
    script = folder / "steps.py"
    script.write_text(STEPS)
    borrowed = Borrowed(folder)
    try:
        run_one = ("--pool", "own", "--gpus", "1", "--grace", "10s", "--", sys.executable, str(script), str(truth.path))
        jobs = [borrowed.cluster.submit(*run_one) for _ in range(JOBS)]
        _settle(borrowed, jobs)
        while done.total() < kills:
            kind = rng.choices(list(KINDS), list(KINDS.values()))[0]
            if _kill(borrowed, kind, rng):
                done[kind] += 1
                print(f"\r{done.total()} of {kills} kills", end="", file=sys.stderr, flush=True)
            if len(borrowed.pods.pods_that_run()) > MOST_NODES:
                truth.wrong.append(f"{len(borrowed.pods.pods_that_run())} pods, and {MOST_NODES} may be")
            time.sleep(rng.uniform(0.0, 3.0))
            if done.total() % SETTLED_EVERY == 0:
                _settle(borrowed, jobs)
        _settle(borrowed, jobs)
        borrowed.cluster.ebb("cancel", "--now", "--wait", *jobs, seconds=120)
        wait_for("no pod is left", lambda: not borrowed.pods.pods, 180)
    finally:
        borrowed.close()
    truth.check()
    return done, truth


def _kill(borrowed: Borrowed, kind: str, rng: random.Random) -> bool:
    """Kill one of a kind; return whether there was one."""
    if kind == "supplier":
        borrowed.supplier.kill()
        borrowed.supplier.wait()
        borrowed.supplier = borrowed.supply()
        return True
    if kind == "master":
        borrowed.cluster.kill(borrowed.cluster.daemon("master"))
        borrowed.cluster.up("none", "--node", "login")
        return True
    pods = borrowed.pods.pods_that_run()
    if not pods:
        return False
    (borrowed.pods.kill if kind == "pod" else borrowed.pods.evict)(rng.choice(pods))
    return True


def _settle(borrowed: Borrowed, jobs: list[str]) -> None:
    """Wait until all jobs run."""
    wait_for("all jobs run", lambda: all(borrowed.nodes_of(job) for job in jobs), AGAIN_S)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3)))
    options = parser.parse_args()
    print(f"seed {options.seed}", file=sys.stderr)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        done, truth = run(options.kills, options.seed, Path(folder))
        minutes = (time.monotonic() - began) / 60
        print(
            f"\r{dict(done)}: {truth.attempts()} attempts of {JOBS} jobs, {minutes:.1f} min; wrong: {truth.wrong or 0}"
        )
    return 1 if truth.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
