"""Real processes that are killed, stopped and cut off, and then left in peace: nothing may be lost, nothing run twice.

    python -m tests.faults.storm --faults 500 --seed 7

A storm is a cluster of its own with so many faults; its seed decides what is done to whom when, and what people wish.
After it all must be well again by itself.
"""

import argparse
import heapq
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from ebbtide_protos.v1 import client_pb2

from tests.faults import figures
from tests.faults.daemons import NotInTime
from tests.faults.field import NODES, Field, Node
from tests.faults.interrupt import EXIT_INTERRUPTED, until_interrupted
from tests.faults.people import OVER, People
from tests.faults.proxy import Cut, Delay, Hold, Proxy, Swallow, Way
from tests.faults.strikes import Strike, strikes
from tests.faults.verdict import double_bookings, judge

FAULTS_PER_STORM = 50
LONG_S = 22.0
LOOK_EVERY_S = 0.5
CALM_S = 180.0
KINDS = {
    "jobs": "jobs lost or twice",
    "attempts": "overlapping attempts",
    "checkpoints": "lost checkpoints",
    "gpus": "GPUs double-booked",
    "ends": "untrue ends",
}
WAYS = {"onward": (Way.ONWARD,), "back": (Way.BACK,)}


@dataclass
class Outcome:
    """What was done, and what is wrong by kind: jobs, attempts, checkpoints, ends, gpus."""

    faults: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    attempts: int = 0
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def add(self, other: "Outcome") -> None:
        self.faults += other.faults
        self.jobs += other.jobs
        self.attempts += other.attempts
        for kind, what in other.wrong.items():
            self.wrong.setdefault(kind, []).extend(what)

    @property
    def held(self) -> bool:
        return not any(self.wrong.values())

    def facts(self) -> dict[str, Any]:
        wrong = {f"wrong {kind}": len(what) for kind, what in self.wrong.items()}
        return {"faults": self.faults.total(), "jobs": self.jobs, "attempts": self.attempts} | wrong


class Storm:
    """Strikes a field; what a strike broke is mended when its time is over."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.struck = Counter[str]()
        self.gpus: set[str] = set()
        self.orphaned: set[str] = set()  # attempts whose supervisor was killed
        self._dead: set[str] = set()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def rage(self, faults: int, seed: int, long_s: float) -> None:
        """So many faults, and then the end of the last one."""
        for strike in strikes(seed, list(NODES), long_s):
            self._until(strike.at)
            if self._strike(strike):
                self.struck[strike.kind] += 1
            if self.struck.total() >= faults:
                break
        while self._due:
            self._until(self._due[0][0])
        for node in self.field.nodes.values():
            node.line.heal()

    def _until(self, at: float) -> None:
        """Mend what is due, and look at what must hold at any time."""
        while True:
            while self._due and self._due[0][0] <= self.now:
                heapq.heappop(self._due)[2]()
            self.look()
            wake = min([at, *[due[0] for due in self._due[:1]]])
            if self.now >= at:
                return
            time.sleep(max(0.0, min(wake - self.now, LOOK_EVERY_S)))

    def look(self) -> None:
        """No GPU is given away twice, and whom nobody killed lives."""
        for node in self.field.nodes.values():
            self.gpus.update(double_bookings(node.folder / "gpus"))
        for daemon in (self.field.master, *(node.agent for node in self.field.nodes.values())):
            if daemon.name not in self._dead and not daemon.runs():
                raise AssertionError(f"{daemon.name} ended by itself:\n{daemon.log_end()}")

    def _strike(self, strike: Strike) -> bool:
        """Do it; whether there was anybody to do it to."""
        dice = random.Random(strike.dice)
        verb, _, what = strike.kind.partition(" ")
        node = self.field.nodes.get(strike.node)
        match verb, what:
            case "kill" | "stop", "supervisor":
                assert node is not None
                return self._strike_supervisor(verb, node, dice, strike.seconds)
            case "kill" | "stop", _:
                daemon = self.field.master if node is None else node.agent
                if verb == "kill":
                    self._dead.add(daemon.name)
                    daemon.kill()
                    self._later(strike.seconds, lambda: (daemon.start(), self._dead.discard(daemon.name)))
                else:
                    daemon.signal(signal.SIGSTOP)
                    self._later(strike.seconds, lambda: daemon.signal(signal.SIGCONT))
            case _:
                assert node is not None
                self._break(node.line, verb, WAYS.get(what, tuple(Way)), dice)
                self._later(strike.seconds, node.line.heal)
        return True

    def _strike_supervisor(self, verb: str, node: Node, dice: random.Random, seconds: float) -> bool:
        living = node.supervisors()
        for other in self.field.nodes.values():
            living = living or other.supervisors()
        if not living:
            return False
        name = dice.choice(list(living))
        victim = living[name]
        done = victim.signal(signal.SIGKILL if verb == "kill" else signal.SIGSTOP)
        if verb == "kill":
            self.orphaned.add(name)
        if verb == "stop":
            self._later(seconds, lambda: victim.signal(signal.SIGCONT))
        return done

    def _break(self, line: Proxy, verb: str, ways: tuple[Way, ...], dice: random.Random) -> None:
        match verb:
            case "partition":
                line.set(Hold(), *ways)
            case "half-open":
                line.set(Swallow(), *ways)
            case "delay":
                line.set(Delay(0.0, dice.choice((0.02, 0.1, 0.5))), dice.choice(list(Way)))
            case "cut":
                line.set(Cut(dice.randint(1, 20_000)), dice.choice(list(Way)))
            case "drop":
                line.refuse()
                line.drop()

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), act))


def wait_for_calm(field: Field, storm: Storm, people: People) -> list[client_pb2.Job]:
    """All jobs once they are over; one that lost too much in a row is let go on. Raises NotInTime."""
    deadline = time.monotonic() + CALM_S
    while True:
        storm.look()
        jobs: list[client_pb2.Job] = list(field.line.ask("ListJobs", client_pb2.ListJobsRequest(all=True)).jobs)
        left = [job for job in jobs if job.state not in OVER]
        if not left and people.ids.keys() <= {job.spec.name for job in jobs}:
            return jobs
        for job in left:
            if job.held_by == "system":
                field.line.ask("Release", client_pb2.JobRequest(job_id=job.job_id))
        if time.monotonic() > deadline:
            still = [f"job {job.job_id} {job.state} {job.reason}" for job in left]
            raise NotInTime(f"{CALM_S:g} s after the last fault: {still}")
        time.sleep(0.2)


def storm_once(home: Path, faults: int, seed: int, long_s: float) -> Outcome:
    """One storm on a new field, and what came of it."""
    witnesses = home / "witnesses"
    witnesses.mkdir()
    with Field(home, seed) as field:
        storm, people = Storm(field), People(home, witnesses, seed)
        people.start()
        try:
            storm.rage(faults, seed, long_s)
        finally:
            people.stop.set()
        people.join(90)
        if people.error is not None or people.is_alive():
            raise AssertionError(f"people could not go on: {people.error!r}")
        jobs = wait_for_calm(field, storm, people)
        wrong = judge(jobs, people, storm.orphaned, witnesses, home / "checkpoints" / field.cluster_id())
    attempts = sum(job.attempt for job in jobs)
    return Outcome(storm.struck, len(jobs), attempts, wrong | {"gpus": sorted(storm.gpus)})


def run(
    faults: int,
    seed: int,
    tell: Callable[[str], object] = print,
    per_storm: int = FAULTS_PER_STORM,
    long_s: float = LONG_S,
) -> Outcome:
    """So many faults, in storms whose seeds count up from ``seed``. Raises what keeps a storm from its end."""
    total = Outcome()
    for number in count():
        now = min(per_storm, faults - total.faults.total())
        if now <= 0:
            return total
        again = f"python -m tests.faults.storm --faults {now} --seed {seed + number} --long {long_s:g}"
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
            try:
                outcome = storm_once(Path(folder), now, seed + number, long_s)
            except (AssertionError, NotInTime) as error:
                raise AssertionError(f"{error}\nagain: {again}") from None
        total.add(outcome)
        for what in (line for lines in outcome.wrong.values() for line in lines):
            tell(f"WRONG: {what}\n  again: {again}")
        took = time.monotonic() - began
        tell(f"storm {seed + number}: {json.dumps(outcome.facts())} in {took:.0f} s")
    raise AssertionError


def main() -> int:
    parser = argparse.ArgumentParser(description="faults of real processes and lines")
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--long", type=float, default=LONG_S, help="how long the long ones are, in seconds")
    options = parser.parse_args()
    print(f"seed {options.seed}: python -m tests.faults.storm --faults {options.faults} --seed {options.seed}")
    outcome = run(options.faults, options.seed, long_s=options.long)
    print(dict(outcome.faults))
    figures.at_least("faults of real processes and lines", outcome.faults.total(), options.faults)
    figures.record("jobs and attempts meanwhile", f"{outcome.jobs} and {outcome.attempts}", "", held=True)
    for kind, words in KINDS.items():
        figures.none(words, len(outcome.wrong.get(kind, [])))
    return 0 if outcome.held else 1


if __name__ == "__main__":
    with until_interrupted():
        sys.exit(main())
    sys.exit(EXIT_INTERRUPTED)
