"""kill -9 of a real master around submits that it acknowledges: none is lost, none is there twice.

    python -m tests.faults.kills --count 1000 --seed 7

Clients submit without pause, each under an operation id of its own, and ask again after every failure; now and then one
asks again for what it has been granted, as a client does whose reply was lost. The master dies at random moments. A
kill counts if a reply came since the last one, or a request was on its way.
"""

import argparse
import contextlib
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import grpc
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc, job_pb2

from tests.faults import figures
from tests.faults.daemons import Daemon, end_all_of, published
from tests.faults.interrupt import EXIT_INTERRUPTED, until_interrupted
from tests.faults.mould import Cast, Mould
from tests.proof import reach

CLIENTS = 4
KILLS_PER_HOME = 100
LONGEST_LIFE_S = 0.06
USEFUL = 0.8
"""Of the masters, so many live until somebody had a reply."""
PAUSE_S = 0.004
"""Of a client between two submits: of the journal's length comes the time of a start."""
AGAIN = 0.1
PLAIN_EVERY = 10
"""Of so many masters one is started as from a shell, the others out of a mould."""
OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 10),
    ("grpc.min_reconnect_backoff_ms", 10),
    ("grpc.max_reconnect_backoff_ms", 20),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@dataclass
class Tally:
    """What clients know: the job of each operation id that was acknowledged, and what went wrong."""

    acknowledged: dict[str, str] = field(default_factory=dict)
    asked_again: int = 0
    wrong: list[str] = field(default_factory=list)
    replies: int = 0
    waiting: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Client(threading.Thread):
    """Submits until told to stop; what it has begun it ends."""

    def __init__(self, number: int, home: Path, tally: Tally, seed: int) -> None:
        super().__init__(name=f"client {number}", daemon=True)
        self.number, self.tally = number, tally
        self.home = home
        self.dice = random.Random(f"{seed} {number}")
        self.stop = threading.Event()

    def run(self) -> None:
        with reach(self.home, OPTIONS) as channel:
            submit = client_pb2_grpc.ClientServiceStub(channel).Submit
            for last in count(1):
                if self.stop.wait(self.dice.uniform(0, 2 * PAUSE_S)):
                    return
                operation = f"{self.number}-{last}"
                self.note(operation, self.submit(submit, operation))
                if self.dice.random() < AGAIN:
                    operation = f"{self.number}-{self.dice.randint(max(1, last - 20), last)}"
                    self.tally.asked_again += 1
                    self.note(operation, self.submit(submit, operation))

    def submit(self, submit: Any, operation: str) -> str:
        """The job's id, however many masters it takes."""
        spec = job_pb2.JobSpec(
            name=operation, command=["true"], workdir="/", gpus_min=job_pb2.Share(numerator=1, denominator=1)
        )
        request = client_pb2.SubmitRequest(spec=spec, hold=True, operation_id=operation)
        while True:
            with self.tally.lock:
                self.tally.waiting += 1
            try:
                reply = submit(request, timeout=20, wait_for_ready=True)
                return str(reply.job_id)
            except grpc.RpcError as error:
                if error.code() not in AWAY:
                    raise
            finally:
                with self.tally.lock:
                    self.tally.waiting -= 1

    def note(self, operation: str, job: str) -> None:
        with self.tally.lock:
            self.tally.replies += 1
            before = self.tally.acknowledged.setdefault(operation, job)
            if before != job:
                self.tally.wrong.append(f"operation {operation} is job {before}, and asked again it is job {job}")


@dataclass(frozen=True)
class Outcome:
    """Of one home, or of all: ``lost`` and ``duplicated`` say which."""

    kills: int = 0
    acknowledged: int = 0
    asked_again: int = 0
    lost: tuple[str, ...] = ()
    duplicated: tuple[str, ...] = ()

    def __add__(self, other: "Outcome") -> "Outcome":
        return Outcome(
            self.kills + other.kills,
            self.acknowledged + other.acknowledged,
            self.asked_again + other.asked_again,
            self.lost + other.lost,
            self.duplicated + other.duplicated,
        )


def kill_around_submits(home: Path, kills: int, seed: int) -> Outcome:
    """So many kills of the master of a new home; what its journal holds then is compared with what clients know."""
    tally = Tally()
    try:
        with Mould() as mould, Daemon(home, "master", "master") as plain:
            plain.start()
            published(home, plain)
            with submitting(home, tally, seed):
                _kill_again_and_again(plain, Cast(mould, home, "master"), random.Random(seed), tally, kills)
            return compare(jobs_of(home), tally, kills)
    finally:
        end_all_of(home)


def _kill_again_and_again(plain: Daemon, cast: Cast, dice: random.Random, tally: Tally, kills: int) -> None:
    """Each master lives for a moment, but for the last one; the first is ``plain``, and started."""
    master: Daemon | Cast = plain
    counted = 0
    for number in count(1):
        replies = tally.replies
        if dice.random() < USEFUL:  # others do not live to see their first submit
            _wait_for_reply(tally, replies)
        time.sleep(dice.uniform(0, LONGEST_LIFE_S))
        master.kill()
        with tally.lock:
            counted += tally.replies > replies or tally.waiting > 0
        master = cast if number % PLAIN_EVERY else plain
        master.start()
        published(plain.home, master)
        if counted == kills:
            return


def _wait_for_reply(tally: Tally, before: int) -> None:
    """Until one more reply came; a busy machine may take its time, and a kill counts all the same."""
    deadline = time.monotonic() + 1.0
    while tally.replies <= before and time.monotonic() < deadline:
        time.sleep(0.001)


@contextlib.contextmanager
def submitting(home: Path, tally: Tally, seed: int) -> Iterator[None]:
    """While this lasts, clients submit; in the end all have their replies."""
    clients = [Client(number, home, tally, seed) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        for client in clients:
            client.stop.set()
    for client in clients:
        client.join(60)
        assert not client.is_alive(), f"{client.name} does not get its reply"


def jobs_of(home: Path) -> list[tuple[str, str]]:
    """Operation, which is the name here, and id of each job that the master has."""
    with reach(home, (*OPTIONS, ("grpc.max_receive_message_length", -1))) as channel:
        stub = client_pb2_grpc.ClientServiceStub(channel)
        reply = stub.ListJobs(client_pb2.ListJobsRequest(all=True), timeout=30, wait_for_ready=True)
    return [(job.spec.name, job.job_id) for job in reply.jobs]


def compare(jobs: list[tuple[str, str]], tally: Tally, kills: int) -> Outcome:
    """What was acknowledged against what is there."""
    there = dict(jobs)
    lost = tuple(
        f"operation {operation} was acknowledged as job {job}, and is {there.get(operation, 'not there')}"
        for operation, job in tally.acknowledged.items()
        if there.get(operation) != job
    )
    names, ids = (Counter(column) for column in zip(*jobs, strict=True))
    twice = [f"{what} is there {times} times" for what, times in (names + ids).items() if times > 1]
    return Outcome(kills, len(tally.acknowledged), tally.asked_again, lost, (*twice, *tally.wrong))


def run(wanted: int, seed: int, tell: Any = print) -> Outcome:
    """So many kills, over several homes; fails no test by itself."""
    total, began = Outcome(), time.monotonic()
    while total.kills < wanted:
        kills = min(KILLS_PER_HOME, wanted - total.kills)
        with tempfile.TemporaryDirectory(prefix="ebb-") as folder:
            total += kill_around_submits(Path(folder), kills, seed + total.kills)
        rate = total.kills / (time.monotonic() - began)
        tell(f"{total.kills} kills, {total.acknowledged} acknowledged, {rate:.1f} kills/s")
    return total


def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 of the master around submits")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    print(f"seed {options.seed}: python -m tests.faults.kills --count {options.count} --seed {options.seed}")
    outcome = run(options.count, options.seed)
    print("\n".join((*outcome.lost, *outcome.duplicated)))
    figures.at_least("kill -9 of the master around submits", outcome.kills, options.count)
    figures.record("acknowledged submits", outcome.acknowledged, "", held=True)
    figures.none("lost jobs", len(outcome.lost))
    figures.none("duplicated jobs", len(outcome.duplicated))
    return 1 if outcome.lost or outcome.duplicated else 0


if __name__ == "__main__":
    with until_interrupted():
        sys.exit(main())
    sys.exit(EXIT_INTERRUPTED)
