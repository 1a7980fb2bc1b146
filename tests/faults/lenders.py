"""Clusters that borrow their nodes, and whom of them and of their lenders a test can kill."""

import glob
import json
import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.e2e.cluster import Cluster, processes_of
from tests.pods.borrowed import MOST_NODES, Borrowed
from tests.slurm.borrower import Borrower
from tests.slurm.rig import GPUS, NODES, PROGRAMS, a_slurm

ORPHANED_S = 60.0
"""Seconds after which the lender lends nothing that the supplier does not know of."""


class FaultyLender(Protocol):
    """A cluster with a pool of borrowed nodes, and their lender.

    ``kinds`` says what can be killed, and how often beside the others. ``wrong`` gets what must not be.
    """

    cluster: Cluster
    pool: str
    kinds: Mapping[str, int]
    wrong: list[str]

    def strike(self, kind: str, rng: random.Random) -> bool:
        """Kill one of a kind; return whether there was one."""

    def help(self) -> None:
        """Do what a person has to do now and then."""

    def lent(self) -> list[str]:
        """Return the names of what is lent now."""

    def figures(self) -> str:
        """Return what else was counted."""

    def said(self) -> str:
        """Return how the lender and the supplier see things now."""


class FaultyPods:
    """An emulated Kubernetes."""

    pool = "own"
    kinds: Mapping[str, int] = {"supplier": 5, "master": 4, "pod": 2, "preemption": 3}

    def __init__(self, borrowed: Borrowed) -> None:
        self._borrowed = borrowed
        self.cluster = borrowed.cluster
        self.wrong: list[str] = []

    def strike(self, kind: str, rng: random.Random) -> bool:
        if len(running := self._borrowed.pods.pods_that_run()) > MOST_NODES:
            self.wrong.append(f"{len(running)} pods, and {MOST_NODES} may be")
        if kind == "supplier":
            self._borrowed.supplier.kill()
            self._borrowed.supplier.wait()
            self._borrowed.supplier = self._borrowed.supply()
        elif kind == "master":
            _kill_master(self.cluster)
        elif running:
            (self._borrowed.pods.kill if kind == "pod" else self._borrowed.pods.evict)(rng.choice(running))
        else:
            return False
        return True

    def help(self) -> None:
        pass

    def lent(self) -> list[str]:
        return list(self._borrowed.pods.pods)

    def said(self) -> str:
        return (self._borrowed.folder / "supplier.log").read_text()[-3000:]

    def figures(self) -> str:
        return ""


@dataclass(frozen=True)
class SlurmJob:
    """A loan as Slurm lists it."""

    loan: str
    state: str
    node: str
    job: str


class FaultySlurm:
    """A real Slurm, which is looked at all the time, and of which the supplier's questions are counted."""

    pool = "hpc"
    kinds: Mapping[str, int] = {"supplier": 5, "master": 4, "slurmctld": 3, "pilot": 2, "preemption": 2}

    def __init__(self, borrower: Borrower) -> None:
        self._borrower = borrower
        self._slurm = borrower.slurm
        self._most = borrower.supply()["max_nodes"]
        self._began = time.time()
        self._confirmed = self._resumed = 0
        self._released = set[str]()
        self._highest = 0
        self._have_run = set[tuple[str, str]]()
        self._ghosts_since: dict[str, float] = {}
        self._longest_ghost_s = 0.0
        self._unknown_since: dict[str, float] = {}
        self.cluster = borrower.cluster
        self.wrong: list[str] = []

    def strike(self, kind: str, rng: random.Random) -> bool:
        if kind == "supplier":
            self._borrower.suppliers[-1].kill()
            self._borrower.suppliers[-1].wait()
            self._borrower.serve()
        elif kind == "master":
            _kill_master(self.cluster)
        elif kind == "slurmctld":
            self._slurm.controller.kill()
            self._slurm.controller.wait()
            time.sleep(rng.uniform(0.0, 3.0))
            self._slurm.start_controller()
        elif running := self._running():
            id, node = rng.choice(running)
            if kind == "pilot":
                return self._borrower.kill_pilot(id)
            self._slurm.batch("sleep 1", "-p", "high", "-w", node, f"--gres=gpu:{GPUS}", "-t", "1")
        else:
            return False
        return True

    def _running(self) -> list[tuple[str, str]]:
        return [(job.loan, job.node) for job in self._jobs() if job.state == "RUNNING"]

    def _jobs(self) -> list[SlurmJob]:
        """Loans that Slurm has; none while it does not answer."""
        try:
            lines = self._slurm.try_command("squeue", "-h", "-o", "%j|%T|%N|%A").stdout.splitlines()
        except subprocess.TimeoutExpired:
            return []
        return [SlurmJob(*line.removeprefix("ebb-").split("|")) for line in lines if line.startswith("ebb-")]

    def _loans(self) -> list[dict[str, Any]]:
        path = self.cluster.home / "supplies" / "hpc" / "loans.json"
        return list(json.loads(path.read_text())["loans"]) if path.exists() else []

    def look(self) -> None:
        """See whether there is more in Slurm than there may be."""
        jobs, now = self._jobs(), time.monotonic()
        known = {loan["id"] for loan in self._loans() if loan["phase"] != "ended"}
        ghosts = {job.loan for job in jobs if self._is_ghost(job)}
        lent = [job.loan for job in jobs]
        self._highest = max(self._highest, len(lent))
        if len(lent) > self._most:
            without = f", of which {sorted(ghosts)} have no process any more" if ghosts else ""
            self.wrong.append(f"{len(lent)} loans, and {self._most} may be: {lent}{without}")
        self._ghosts_since = {id: self._ghosts_since.get(id, now) for id in ghosts}
        self._longest_ghost_s = max([self._longest_ghost_s, *(now - since for since in self._ghosts_since.values())])
        unknown = set(lent) - known
        self._unknown_since = {id: self._unknown_since.get(id, now) for id in unknown}
        for id, since in self._unknown_since.items():
            if now - since > ORPHANED_S:
                self.wrong.append(f"no supplier has known of {id} for {now - since:.0f} s")

    def _is_ghost(self, job: SlurmJob) -> bool:
        """Return whether a loan runs for Slurm alone: it has had processes, and has none any more.

        A slurmctld that is killed and started goes on with what it had saved before, so it lists loans that have ended.
        """
        alive = bool(_tasks_of(job.job))
        if alive:
            self._have_run.add((job.loan, job.job))
        return not alive and job.state == "RUNNING" and (job.loan, job.job) in self._have_run

    def help(self) -> None:
        """Do what people do then.

        A slurmctld that is killed forgets what it has not saved, gives a number of a job once more, and drains the node
        where it finds the other one; of a loan that it has forgotten nothing is proved. One whose pilot was killed just
        before may be running for it for minutes, and the supply waits for ten.
        """
        for node in NODES:
            if "drain" in self._slurm.try_command("sinfo", "-h", "-n", node, "-o", "%T").stdout:
                self._slurm.try_command("scontrol", "update", f"nodename={node}", "state=resume")
                self._resumed += 1
        down = {node["name"] for node in self.cluster.facts("nodes", "--all") if node["state"] == "down"}
        for loan in self._loans():
            if loan["id"] not in down or _tasks_of(loan["job"]):
                continue
            if loan["phase"] == "ended" and not loan["proved"]:
                self._confirmed += self.cluster.ebb("node", "confirm-dead", loan["id"], "--yes", code=None).code == 0
            elif loan["phase"] == "ended":
                continue
            elif self.cluster.ebb("supply", "release", loan["id"], code=None).code == 0:
                self._released.add(loan["id"])

    def lent(self) -> list[str]:
        return [job.loan for job in self._jobs()]

    def said(self) -> str:
        slurm = (self._slurm.try_command(*words).stdout for words in (("squeue", "-a"), ("sinfo", "-N", "-l")))
        return "\n".join([*slurm, self._borrower.said()[-3000:]])

    def figures(self) -> str:
        asked = Counter[str]()
        with suppress(FileNotFoundError):
            for line in (self._borrower.folder / "asked").read_text().splitlines():
                asked["squeue" if "--me" in line else "sbatch" if "sbatch --parsable" in line else "else"] += 1
        seconds = time.time() - self._began
        for command, every_s in (("squeue", 30.0), ("sbatch", 5.0)):
            if asked[command] > seconds / every_s + 1:
                self.wrong.append(f"{asked[command]} times {command} in {seconds:.0f} s")
        return (
            f"; {self._highest} of {self._most} loans at most, {self._confirmed} deaths confirmed by hand, "
            f"{len(self._released)} silent loans released, {self._resumed} drained nodes resumed; "
            f"the longest that Slurm listed a loan without processes was {self._longest_ghost_s:.0f} s; "
            f"{asked['squeue']} squeue and {asked['sbatch']} sbatch of the suppliers in {seconds:.0f} s"
        )


def _tasks_of(job: str) -> list[str]:
    """Processes in the cgroups of a job of Slurm."""
    pattern = f"/sys/fs/cgroup/freezer/slurm_*p{os.getpid()}/uid_*/job_{job}/**/cgroup.procs"
    found = list[str]()
    for path in glob.glob(pattern, recursive=True):  # it passes over what is gone
        with suppress(OSError):
            found += Path(path).read_text().split()
    return found


def _kill_master(cluster: Cluster) -> None:
    cluster.kill(cluster.daemon("master"))
    cluster.up("none", "--node", "login")


@contextmanager
def _pods(folder: Path) -> Iterator[FaultyLender]:
    borrowed = Borrowed(folder)
    try:
        yield FaultyPods(borrowed)
    finally:
        borrowed.close()


@contextmanager
def _slurm(folder: Path) -> Iterator[FaultyLender]:
    (folder / "slurm").mkdir(mode=0o755)
    with a_slurm(folder / "slurm") as slurm:
        borrower = Borrower(folder, slurm)
        try:
            _count_questions(borrower)
            borrower.start(max_nodes=2)
            borrower.serve()
            faulty = FaultySlurm(borrower)
            with _every_second(faulty.look):
                yield faulty
            if left := [process.pid for process in processes_of(folder / "loans")]:
                faulty.wrong.append(f"processes of loans are left: {left}")
        finally:
            borrower.close()


def _count_questions(borrower: Borrower) -> None:
    """Have each command of Slurm that is used noted, with its arguments."""
    folder = borrower.folder / "bin"
    folder.mkdir()
    for name in PROGRAMS:
        path = folder / name
        path.write_text(f'#!/bin/sh\necho {name} "$@" >> {borrower.folder}/asked\nexec /usr/bin/{name} "$@"\n')
        path.chmod(0o755)
    borrower.cluster.environment["PATH"] = f"{folder}:{borrower.cluster.environment['PATH']}"


@contextmanager
def _every_second(look: Callable[[], None]) -> Iterator[None]:
    done = threading.Event()

    def go_on() -> None:
        while not done.wait(1.0):
            look()

    with ThreadPoolExecutor(1) as looking:
        going = looking.submit(go_on)
        try:
            yield
        finally:
            done.set()
        going.result()


LENDERS = {"kubernetes": _pods, "slurm": _slurm}
