"""How long a scheduling pass takes on a large and full cluster, with a long queue, without and with reservations.

    python benchmarks/policy_pass.py [--ends N] [POLICY …]

1,000 nodes of 8 GPUs are full, and 10,000 jobs of many users and sizes wait. Then jobs end, one after the other, and
a pass follows each end, as in the live master. The passes are timed in CPU seconds, by the cluster itself: no network,
no journal. Marks: 5 ms (p99), and 10 ms for tide.
"""

import argparse
import gc
import random
import time
from collections.abc import Iterator, Sequence
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.commands import Launch, Stop
from ebbtide_core.events.bookings import BookedGpu
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, ExitFacts, JobClass, JobId, NodeId, SuspendMode
from ebbtide_core.policies.registry import create_policy
from ebbtide_master.main import COLLECTED
from ebbtide_sim.engine import registration
from ebbtide_sim.workloads.nodes import SimNode
from marks import Measured, quantile

NODES: Final = 1000
GPUS: Final = 8
WAITING: Final = 10_000
ENDS: Final = 1000
USERS: Final = 50
BOOKINGS: Final = 100
"""Reservations, of 8 GPUs each, that begin within a day."""
POLICIES: Final = ("fitgpp", "priority", "fair-share", "tide")
MARKS_MS: Final = {"fitgpp": 5.0, "priority": 5.0, "fair-share": 5.0, "tide": 10.0}
"""The most that the 99th percentile may be, in milliseconds, by policy."""
DONE: Final = ExitFacts()


class FullCluster:
    """A full cluster in which jobs end; launched attempts start at once, and stopped ones have saved at once."""

    def __init__(self, policy: str, bookings: int) -> None:
        self.begin(policy, NODES, bookings)
        self.fill(WAITING)

    def begin(self, policy: str, nodes: int, bookings: int) -> None:
        """Begin with so many nodes, and with nobody."""
        self.cluster = Cluster(create_policy(policy, {}))
        self.random = random.Random(1)
        self.now = 1000.0
        self.jobs = 0
        self.running: dict[JobId, int] = {}
        self.passes: list[float] = []
        for number in range(nodes):
            self._tell(registration(SimNode(name=f"n{number:04}", gpus=GPUS)))
        for number in range(bookings):
            self._tell(self._booking(number))

    def fill(self, waiting: int) -> None:
        """Submit jobs until so many wait."""
        while self.waiting < waiting:
            for _ in range(500):
                self.submit()
            self.settle()

    @property
    def waiting(self) -> int:
        """The number of jobs in the queue."""
        return sum(1 for _ in self.cluster.state.pools["default"].queue)

    def _booking(self, number: int) -> e.BookingMade:
        node, since = f"n{number * NODES // BOOKINGS:04}", self.now + self.random.uniform(3600.0, 86_400.0)
        gpus = tuple(BookedGpu(NodeId(node), gpu) for gpu in self.cluster.state.nodes[NodeId(node)].gpus)
        return e.BookingMade(
            booking=f"r{number}",
            user=f"user{number % USERS}",
            since=since,
            until=since + 7200.0,
            gpus=gpus,
            window="in a while",
        )

    def submit(self) -> None:
        """Submit a job of a random user and size."""
        draw = self.random
        spec = JobSpec(
            command=("train",),
            workdir="/",
            gpus_min=(size := draw.choice([WHOLE // 4, WHOLE // 2, *[WHOLE] * 6, 2 * WHOLE, 4 * WHOLE, 8 * WHOLE])),
            gpus_max=size,
            job_class=draw.choice([JobClass.BEST_EFFORT] * 9 + [JobClass.TRIAL_AND_ERROR]),
            priority=draw.randrange(5),
            grace_s=30.0,
            suspend=SuspendMode.CHECKPOINT,
            time_limit_s=draw.choice([600.0, 3600.0, 36_000.0]),
        )
        self.submit_job(spec)

    def submit_job(self, spec: JobSpec) -> None:
        """Submit a job with that spec, of a random user."""
        self.jobs += 1
        self._tell(e.JobSubmitted(JobId(str(self.jobs)), spec, f"user{self.random.randrange(USERS)}"))

    def _tell(self, event: e.Event) -> None:
        began = time.process_time()
        commands = self.cluster.handle(event, self.now)
        if isinstance(event, e.SchedulingDue):
            self.passes.append(time.process_time() - began)
        for command in commands:
            if isinstance(command, Launch):
                self.running[command.job] = command.attempt
                self._tell(e.AttemptStarted(command.job, command.attempt, 1))
            elif isinstance(command, Stop):
                self._end(command.job, command.attempt, ExitFacts(exit_code=85, stop_requested=True, delivered=True))

    def _end(self, job: JobId, attempt: int, exit: ExitFacts) -> None:
        if self.running.get(job) == attempt:
            del self.running[job]
            self._tell(e.AttemptExited(job, attempt, exit, freed=True))

    def settle(self) -> None:
        """Run passes until one of them starts and stops no attempt."""
        before = None
        while before != (before := dict(self.running)):
            self._tell(e.SchedulingDue())

    def ends(self, count: int) -> Iterator[float]:
        """End jobs drawn at random, with a new one for each; yield the CPU seconds of each pass."""
        for _ in range(count):
            self.now += 5.0
            job = self.random.choice(list(self.running))
            self._end(job, self.running[job], DONE)
            self.submit()
            self.passes.clear()
            self._tell(e.SchedulingDue())
            yield self.passes[0]


def measured(policies: Sequence[str] = POLICIES, ends: int = ENDS) -> Iterator[Measured]:
    """Median and 99th percentile of each policy, without reservations and with some; sets the collector up."""
    gc.set_threshold(*COLLECTED)  # as in the master
    for policy in policies:
        for bookings in (0, BOOKINGS):
            took = [1000 * seconds for seconds in FullCluster(policy, bookings).ends(ends)]
            name = f"pass of {policy}{f', {bookings} reservations' if bookings else ''}"
            yield Measured(name=f"{name}: p50", value=quantile(took, 0.5), unit="ms", shown="passes")
            mark = MARKS_MS.get(policy)
            yield Measured(name=f"{name}: p99", value=quantile(took, 0.99), unit="ms", most=mark, shown="passes")


def main() -> None:
    """Measure each policy without reservations and with some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policies", nargs="*", default=POLICIES, metavar="POLICY")
    parser.add_argument("--ends", type=int, default=ENDS, help="jobs that end, and so passes that are timed (1,000)")
    given = parser.parse_args()
    for value in measured(given.policies, given.ends):
        print(value, flush=True)


if __name__ == "__main__":
    main()
