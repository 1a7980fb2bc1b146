"""What the sums of ``ebb usage`` cost while 100,000 jobs are folded, and what a question costs then.

    python benchmarks/usage.py               # a few minutes
    python benchmarks/usage.py --jobs 10000

Mark: each answer takes at most a second of CPU time.

All is CPU time of this process. The events are those of 100 users in two pools on 64 GPUs;
some jobs fail, and some are suspended.
"""

import argparse
import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.commands import Launch, Record, Stop
from ebbtide_core.events import Event
from ebbtide_core.model.settings import DEFAULT_POOL, PoolSettings, Settings
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, Checkpointed, ExitFacts, JobId
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.gpu_time import Dimension, Periods
from ebbtide_core.views.ledger import Ledger
from ebbtide_master.api.usage import _reply
from ebbtide_master.main import COLLECTED
from ebbtide_sim.engine import registration
from ebbtide_sim.workloads.nodes import SimNode
from marks import Measured

JOBS: Final = 100_000
USERS: Final = 100
NODES: Final = 8
GPUS: Final = 8
BEGAN: Final = 1.7e9
DAY_S: Final = 86400.0
ROUNDS: Final = 3
MARK_S: Final = 1.0
POOLS: Final = {DEFAULT_POOL: PoolSettings(), "other": PoolSettings(policy="fifo")}
SAVED: Final = ExitFacts(exit_code=85, stop_requested=True, delivered=True, checkpointed=Checkpointed.YES)
Journal = list[tuple[float, Event]]


def new_cluster() -> Cluster:
    """A cluster that has heard of nothing."""
    return Cluster(create_policy("fifo", {}), settings=Settings(pools=POOLS))


class UsageHistory:
    """A cluster in which jobs come as fast as others end; a tenth fails, and a tenth is suspended once."""

    def __init__(self, jobs: int) -> None:
        self.journal: Journal = []
        self._cluster = new_cluster()
        self._random = random.Random(1)
        self._now = BEGAN
        self._running: list[tuple[JobId, int]] = []
        for number in range(NODES):
            node = registration(SimNode(name=f"n{number}", gpus=GPUS))
            self._tell(replace(node, pool=[*POOLS][number % 2]))
        for number in range(1, jobs + 1):
            self._submit(JobId(str(number)))
            while len(self._cluster.state.unfinished) > 2 * NODES * GPUS:
                self._end_one()

    def _submit(self, id: JobId) -> None:
        pool, user = self._random.choice([*POOLS]), f"user{self._random.randrange(USERS)}"
        spec = JobSpec(command=("x",), workdir="/", gpus_min=WHOLE, gpus_max=WHOLE, pool=pool)
        self._tell(e.JobSubmitted(id, spec, user))

    def _end_one(self) -> None:
        job, attempt = self._running.pop(self._random.randrange(len(self._running)))
        chance = self._random.random()
        if chance < 0.1 and attempt == 1:
            self._tell(e.SuspendRequested(job))
            self._tell(e.ResumeRequested(job))
        else:
            self._tell(e.AttemptExited(job, attempt, ExitFacts(exit_code=int(chance > 0.9))))
            self._tell(e.AttemptFreed(job, attempt))

    def _tell(self, event: Event) -> None:
        self._now += self._random.random() * 5
        waiting: list[Event] = [event, e.SchedulingDue()]
        while waiting:
            for command in self._cluster.handle(waiting.pop(0), self._now):
                match command:
                    case Record(event=recorded):
                        self.journal.append((self._now, recorded))
                    case Launch(job=job, attempt=attempt):
                        self._running.append((job, attempt))
                        waiting.append(e.AttemptStarted(job, attempt, 100))
                    case Stop(job=job, attempt=attempt):
                        waiting += [e.AttemptExited(job, attempt, SAVED), e.AttemptFreed(job, attempt)]
                        waiting.append(e.SchedulingDue())


def timed(what: Callable[[], Any]) -> tuple[float, Any]:
    """The CPU seconds that it takes, and what it returns."""
    gc.collect()
    began = time.process_time()
    result = what()
    return time.process_time() - began, result


def fold(journal: Journal, cluster: Cluster) -> None:
    """As a master that starts."""
    gc.disable()
    for now, event in journal:
        cluster.replay(event, now)
    gc.enable()


def question(ledger: Ledger, edges: tuple[float, ...], by: Iterable[Dimension], now: float) -> Callable[[], Any]:
    """The whole answer, as a message."""

    def answer() -> Any:
        parts = ledger.usage(Periods(edges), by, None, now)
        try:
            while True:
                next(parts)
        except StopIteration as last:
            return _reply(last.value, now, 0.0)

    return answer


def questions(now: float) -> Iterator[tuple[tuple[float, ...], tuple[Dimension, ...]]]:
    """What is asked: the edges of the periods, and by what."""
    week, month = (now - 7 * DAY_S - 1234.5, now), tuple(now - day * DAY_S for day in range(30, -1, -1))
    yield week, (Dimension.USER,)
    yield week, (Dimension.USER, Dimension.POOL)
    yield month, (Dimension.USER, Dimension.DAY)
    yield (BEGAN, now), (Dimension.JOB,)


def measured(journal: Journal, jobs: int) -> Iterator[Measured]:
    """The CPU seconds of each answer, of three tries the best; sets the collector up."""
    gc.set_threshold(*COLLECTED)  # as in the master
    cluster = new_cluster()
    ledger = Ledger(cluster)
    fold(journal, cluster)
    gc.freeze()
    now = journal[-1][0]
    for edges, by in questions(now):
        took = [timed(question(ledger, edges, by, now)) for _ in range(ROUNDS)]
        reply = took[-1][1]
        assert not reply.problems, reply.problems
        name = f"usage of {jobs:,} jobs by {', '.join(dimension.value for dimension in by)}"
        yield Measured(name=name, value=min(seconds for seconds, _ in took), unit="s", most=MARK_S)


def shares(journal: Journal, jobs: int) -> None:
    """Print how much longer a fold takes with a ledger, and what is kept of each job."""
    plain_s, _ = timed(lambda: fold(journal, new_cluster()))
    cluster = new_cluster()
    kept = Ledger(cluster)
    whole_s, _ = timed(lambda: fold(journal, cluster))
    print(f"fold: {plain_s:.2f} s; with a ledger {whole_s / plain_s:.2f} times as long")
    tracemalloc.start()
    again = new_cluster()
    kept = Ledger(again)
    fold(journal, again)
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/views/*")])
    ours = sum(trace.size for trace in snapshot.traces)
    print(f"memory: {ours / jobs:.0f} bytes a job, of {tracemalloc.get_traced_memory()[0] / jobs:.0f}")
    del kept


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=JOBS)
    options = parser.parse_args()
    journal = UsageHistory(options.jobs).journal
    print(f"{options.jobs:,} jobs, {len(journal):,} events")
    for value in measured(journal, options.jobs):
        print(value, flush=True)
    shares(journal, options.jobs)


if __name__ == "__main__":
    main()
