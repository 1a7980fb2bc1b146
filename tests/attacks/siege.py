"""A live agent of root's, one user who attacks it, and another one whose job runs beside.

The attacker has an account, a token and everything that they allow; what they do is decided by a seed.
"""

import json
import os
import pwd
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.attacks import hostile
from tests.attacks.submits import a_submit, prepare
from tests.e2e.cluster import EBB, Cluster, processes_of, wait_for

GRACE_S, BEYOND_S = 1.0, 5.0
"""Of each attacking job, and how long after its grace period a stop may last."""

ATTACKER, VICTIM = "nobody", "daemon"
"""Accounts that every system has."""

PATIENCE_S = 60.0
_GPUS = 4
_AT_ONCE = _GPUS - 1
_VICTIM = "import sys,time\nwhile True: open(sys.argv[1], 'w').write(str(time.time())); time.sleep(0.2)"


@dataclass
class Tally:
    """What was tried, by kind, and what gave way."""

    tried: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    """Of all stops, beyond the grace period."""

    @property
    def cases(self) -> int:
        return self.tried.total()


class Siege:
    """One cluster under attack."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.tally = Tally()
        self._cluster = cluster
        self._seed = seed
        self._run = 0
        self._stopped: set[str] = set()
        self._open()
        self._journal = cluster.home / "events.json"
        command = [*EBB, "events", "--follow", "--json"]
        with self._journal.open("wb") as journal:
            self._follows = subprocess.Popen(command, env=cluster.environment, stdout=journal)

    def close(self) -> None:
        """End what only looks on."""
        self._follows.kill()
        self._follows.wait()

    def _open(self) -> None:
        cluster = self._cluster
        cluster.home.chmod(0o711)
        cluster.up_for_people()
        cluster.add_workstation("ws", f"{_GPUS}xA100-40GB", None, "--min-uid", "1")
        for name in (ATTACKER, VICTIM):
            cluster.ebb("user", "add", name, "--account", name)
        self._attacker = Cluster(cluster.home)
        self._attacker.environment["EBB_TOKEN"] = cluster.ebb("token", "create", "--user", ATTACKER).out.strip()
        self.place = self._folder(ATTACKER)
        prepare(self.place)
        self._sign = self._folder(VICTIM) / "alive"
        self._script = Path(shutil.copy(hostile.__file__, cluster.home / "hostile.py"))
        owner = Cluster(cluster.home)
        owner.environment["EBB_TOKEN"] = cluster.ebb("token", "create", "--user", VICTIM).out.strip()
        self._victim = owner.submit(
            "--workdir", str(self._sign.parent), "--", sys.executable, "-c", _VICTIM, str(self._sign)
        )
        wait_for("the victim's job runs", self._sign.exists, PATIENCE_S)

    def _folder(self, account: str) -> Path:
        folder = self._cluster.home / account
        folder.mkdir(mode=0o755)
        of = pwd.getpwnam(account)
        os.chown(folder, of.pw_uid, of.pw_gid)
        return folder

    def round(self) -> None:
        """Attack once with several jobs at a time, stop them all, and look at what became of the others."""
        dice = random.Random(f"{self._seed}/{self._run}")
        jobs = [job for _ in range(_AT_ONCE) if (job := self._submit(dice))]
        self._wait_until_started(jobs)
        time.sleep(dice.uniform(0.0, 2.0))
        odd = [self._odd_submit(dice) for _ in range(2)]
        if dice.random() < 0.1:
            self._restart_agent()
        for job in jobs:
            verb = dice.choice(("suspend", "cancel"))
            self._attacker.ebb(verb, job, code=None)
        wait_for("all stops are over", lambda: self._all_stopped(jobs), PATIENCE_S)
        for job in [*jobs, *filter(None, odd)]:
            self._count(self._attacker.ebb("logs", job, code=None).out.split("\n"))
            self._attacker.ebb("cancel", job, code=None)
        self._look(jobs)

    def _submit(self, dice: random.Random) -> str:
        self._run += 1
        workdir = self.place / str(self._run)
        command = (sys.executable, str(self._script), f"{self._seed}/{self._run}")
        workdir.mkdir()
        shutil.chown(workdir, ATTACKER)
        grace = ("--grace", f"{GRACE_S:g}s")
        mode = dice.choice(((), ("--no-snapshot",), ("--retries", "2"), ("--prefix-ranks", "--launch", "ddp")))
        return self._attacker.submit("--workdir", str(workdir), *grace, *mode, "--", *command)

    def _odd_submit(self, dice: random.Random) -> str:
        """Ask for something that nobody in their senses asks for; the job's id if it was taken."""
        options = a_submit(dice, self.place)
        try:
            said = self._attacker.ebb("submit", "--cpu-only", *options, "--", "true", code=None)
        except subprocess.TimeoutExpired:
            self.tally.wrong.append(f"ebb submit {options} did not end")
            return ""
        self.tally.tried["submit"] += 1
        if "Traceback" in said.err or said.code not in (0, 1, 2, 3):
            self.tally.wrong.append(f"ebb submit {options} ended with {said.code}: {said.err[-2000:]}")
        return said.out.strip() if said.code == 0 else ""

    def _wait_until_started(self, jobs: list[str]) -> None:
        def begun() -> bool:
            return {one["id"] for one in self._events("AttemptStarted", "AttemptExited")} >= set(jobs)

        wait_for("the attacking jobs are started", begun, PATIENCE_S)

    def _events(self, *kinds: str) -> list[dict[str, Any]]:
        """So far, from the beginning."""
        with self._journal.open() as journal:
            lines = [line for line in journal if line.endswith("\n")]
        return [one for one in map(json.loads, lines) if one["kind"] in kinds]

    def _all_stopped(self, jobs: list[str]) -> bool:
        begun, ended = (
            {(one["id"], one["event"]["attempt"]) for one in self._events(*kinds)}
            for kinds in (("AttemptPlaced",), ("AttemptFreed", "AttemptNotStarted"))
        )
        return not {one for one in begun - ended if one[0] in jobs}

    def _count(self, lines: list[str]) -> None:
        for line in lines:
            if "ready " in line:
                self.tally.tried.update(line.split("ready ", 1)[1].split())

    def _restart_agent(self) -> None:
        agent = self._cluster.daemon("ws")
        self._cluster.kill(agent)
        self.tally.tried["agent killed"] += 1
        self._cluster.add_workstation("ws", f"{_GPUS}xA100-40GB", None, "--min-uid", "1")

    def _look(self, jobs: list[str]) -> None:
        """What must hold whatever the attacker did."""
        asked: dict[tuple[str, int], float] = {}
        for one in self._events("StopRequested", "AttemptFreed"):
            key = (one["id"], one["event"]["attempt"])
            if one["kind"] == "StopRequested":
                asked.setdefault(key, one["time"])
            elif key in asked and one["id"] in jobs:
                beyond = one["time"] - asked[key] - GRACE_S
                self.tally.longest_s = max(self.tally.longest_s, beyond)
                if beyond > BEYOND_S:
                    self.tally.wrong.append(f"the stop of {key} lasted {beyond:.1f} s beyond its grace period")
        victim = self._cluster.show(self._victim)
        if victim["state"] != "RUNNING" or len(victim["attempts"]) != 1:
            self.tally.wrong.append(f"the victim's job is {victim['state']} in attempt {len(victim['attempts'])}")
        wait_for("the victim's job goes on", lambda: time.time() - self._sign.stat().st_mtime < 1.0, PATIENCE_S)
        wait_for("no GPU is set aside", self._all_gpus_are_there, PATIENCE_S)

    def _all_gpus_are_there(self) -> bool:
        node = next(node for node in self._cluster.facts("nodes") if node["name"] == "ws")
        good = [gpu for gpu in node["gpus"] if gpu["healthy"] and not gpu["foreign"]]
        return len(good) == _GPUS and sum(not gpu["job_ids"] for gpu in good) == _AT_ONCE and not node["strays"]


@contextmanager
def a_siege(seed: int) -> Iterator[Siege]:
    """Ended in the end, with everything that the attacker made."""
    folder = Path(tempfile.mkdtemp(prefix="ebb-"))
    cluster = Cluster(folder)
    try:
        with closing(Siege(cluster, seed)) as siege:
            yield siege
    finally:
        try:
            cluster.close()
        finally:
            for process in processes_of(folder):
                process.kill()
            subprocess.run(["rm", "-rf", "--one-file-system", str(folder)], check=False)
