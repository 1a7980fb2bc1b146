"""Counts how loans of a real Slurm end: preempted, or because their time is over; with a master, and without.

    python -m tests.faults.ends --preemptions 20 --walltimes 10

Each job has to have saved when its loan ends, and to go on elsewhere from there, with no retry charged. The loan has to
be over 5 seconds after its job has left. Without a master each job has to have saved.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.e2e.cluster import wait_for
from tests.e2e.conftest import a_home
from tests.e2e.day.test_nothing_is_lost import check_progress
from tests.faults.interrupt import EXIT_INTERRUPTED, until_interrupted
from tests.slurm.lent import Loans
from tests.slurm.rig import FIRST, GPUS, OVER, SECOND, Slurm, a_slurm

AT_A_TIME = GPUS
"""Loans that end together, each with one GPU and one job."""
AFTER_SAVE_S = 5.0
SMALL = ("-c", "1", "--mem", "500")


@dataclass(frozen=True, slots=True)
class Ended:
    """A loan that has ended, and the job that was on it.

    `save_s` are the seconds from the signal of Slurm, or from when Slurm wants the node back, until the job had left;
    below zero if it left before. `gone_s` are those until Slurm had the node back.
    """

    why: str
    saved: bool
    resumed: bool
    save_s: float
    gone_s: float

    @property
    def after_save_s(self) -> float:
        """Seconds for which the loan was there without need."""
        return self.gone_s - max(0.0, self.save_s)


def run(slurm: Slurm, why: str, count: int, master: bool) -> list[Ended]:
    """Have so many loans end at a time."""
    with a_home() as cluster:
        cluster.up_for_people()
        loans = Loans(cluster, slurm)
        time_limit = ("-t", "1") if why == "walltime" else ()
        lent = [loans.lend(gpus=1, slurm=("-w", FIRST, *SMALL, *time_limit)) for _ in range(count)]
        for loan in lent:
            loans.node_of(loan)
        ends = [_end_of(slurm, loan) for loan in lent]
        jobs = [loans.compute(how="plain" if number % 2 else "sdk") for number in range(count)]
        for job in jobs:
            loans.wait_for_steps(job, 5)
        of_job = {f"{FIRST}-{loan}": loan for loan in lent}
        loan_of = {job: of_job[cluster.show(job)["nodes"][0]] for job in jobs}
        if master:
            for loan in [loans.lend(gpus=1, slurm=("-w", SECOND, *SMALL)) for _ in range(count)]:
                loans.node_of(loan)
        else:
            cluster.kill(cluster.daemon("master"))
        if why == "preemption":
            slurm.batch("sleep 1", "-p", "high", "-w", FIRST, f"--gres=gpu:{GPUS}", "-t", "1")
        gone = _wait_for_all(slurm, lent)
        began = (
            dict(zip(lent, ends, strict=True))
            if why == "walltime"
            else {loan: _signalled(slurm, loan) for loan in lent}
        )
        found = []
        for job in jobs:
            loan = loan_of[job]
            left = [line for line in loans.lines(job) if line["attempt"] == 1]
            saved = [line["what"] for line in left][-2:] == ["saved", "leaves"]
            save_s = float(str(left[-1]["at"])) - began[loan]
            found.append(Ended(why, saved, master and _resumed(loans, job), save_s, gone[loan] - began[loan]))
        slurm.try_command("scancel", "--user", "root")
        wait_for("Slurm has all jobs back", lambda: not slurm.command("squeue", "-h").strip(), 60)
        return found


def _resumed(loans: Loans, job: str) -> bool:
    """Whether a job goes on elsewhere from where it was; with a retry charged it would have failed, as it has none."""
    loans.wait_for_steps(job, 5, attempt=2, seconds=90.0)
    check_progress(job, loans.lines(job))
    facts = loans.cluster.show(job)
    return (facts["state"], facts["attempt"]) == ("RUNNING", 2)


def _wait_for_all(slurm: Slurm, lent: Sequence[str]) -> dict[str, float]:
    """Wait until Slurm has the nodes of all loans back; return when, in Unix seconds."""
    gone: dict[str, float] = {}

    def look() -> bool:
        states = slurm.command("squeue", "-h", "-t", "all", "-j", ",".join(lent), "-o", "%i %T").split()
        at = time.time()
        for loan, state in zip(states[::2], states[1::2], strict=True):
            if state in OVER:
                gone.setdefault(loan, at)
        return len(gone) == len(lent)

    wait_for("all loans are over", look, 180)
    return gone


def _end_of(slurm: Slurm, loan: str) -> float:
    """When Slurm wants the node back, in Unix seconds."""
    said = slurm.command("squeue", "-h", "-j", loan, "-o", "%e").strip()
    return datetime.fromisoformat(said).timestamp()


def _signalled(slurm: Slurm, loan: str) -> float:
    """When Slurm signalled the loan's step, as its daemon there has noted, in Unix seconds."""
    said = (slurm.folder / f"slurmd.{FIRST}.log").read_text()
    found = re.findall(rf"^\[(\S+)\] \[{loan}\.0\] .*STEP {loan}\.0 .*CANCELLED", said, re.MULTILINE)
    assert found, f"loan {loan} was not signalled:\n{said[-3000:]}"
    return datetime.fromisoformat(found[0]).timestamp()


def _words(name: str, seconds: Sequence[float]) -> str:
    return f"{name} {min(seconds):.1f} to {max(seconds):.1f} s"


def report(found: Sequence[Ended], master: bool) -> bool:
    """Print what was counted; return whether it is as it has to be."""
    held = True
    for why in dict.fromkeys(ended.why for ended in found):
        of_kind = [ended for ended in found if ended.why == why]
        saved, resumed = sum(ended.saved for ended in of_kind), sum(ended.resumed for ended in of_kind)
        late = sum(ended.after_save_s > AFTER_SAVE_S for ended in of_kind)
        goes_on = f", {resumed} went on elsewhere with no retry charged" if master else ""
        times = ", ".join(
            (
                _words("had left after", [ended.save_s for ended in of_kind]),
                _words("loan over after", [ended.gone_s for ended in of_kind]),
                _words("that is after the save", [ended.after_save_s for ended in of_kind]),
            )
        )
        print(f"{len(of_kind)} x {why} {'with' if master else 'without'} a master: {saved} saved{goes_on}; {times}")
        held &= saved == len(of_kind) and (not master or resumed == len(of_kind)) and not (master and late)
    return held


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preemptions", type=int, default=20)
    parser.add_argument("--walltimes", type=int, default=10)
    parser.add_argument("--master", choices=["there", "away", "both"], default="both")
    options = parser.parse_args()
    counts = {"preemption": options.preemptions, "walltime": options.walltimes}
    held = True
    with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
        Path(folder).chmod(0o755)
        with a_slurm(Path(folder)) as slurm:
            for master in {"there": [True], "away": [False], "both": [True, False]}[options.master]:
                found: list[Ended] = []
                for why, count in counts.items():
                    for done in range(0, count, AT_A_TIME):
                        found += run(slurm, why, min(AT_A_TIME, count - done), master)
                        print(f"{why} {len(found)}: {found[-1]}", file=sys.stderr, flush=True)
                held &= report(found, master)
    return 0 if held else 1


if __name__ == "__main__":
    with until_interrupted():
        sys.exit(main())
    sys.exit(EXIT_INTERRUPTED)
