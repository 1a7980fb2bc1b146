"""A master is killed with 10,000 jobs and 100 nodes, and starts again: when it serves, and when all are back.

    python benchmarks/restart.py

Meanwhile every tenth job has ended, so that there is room, and the last node comes back late: until it has, nothing may
be launched. Then the journal is folded once more as a master does that starts, and its CPU time is taken.
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
from ebbtide_core.cluster import Cluster
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.ledger import Ledger
from ebbtide_master.main import COLLECTED
from ebbtide_master.store.opening import open_store
from ebbtide_master.store.recovery import fold, recovered
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc, job_pb2
from marks import Measured
from masters import GPUS, Master, Node, reach, until

AT_ONCE: Final = 64
LATE_S: Final = 2.0
JOBS: Final = 10_000
NODES: Final = 100
MARKS: Final = {"serving_s": 5.0, "attached_s": 30.0}
"""In seconds; and nothing is launched too early."""
FOLD_S: Final = 0.5
"""The mark for the fold alone, in seconds of CPU time; it is no promise, and so no reason to fail."""


async def submit_all(ask: Any, count: int) -> None:
    """Submit that many jobs, some at once."""
    one = job_pb2.Share(numerator=1, denominator=1)
    spec = job_pb2.JobSpec(command=["python", "train.py"], workdir="/", gpus_min=one)
    limit = asyncio.Semaphore(AT_ONCE)

    async def submit() -> None:
        async with limit:
            await ask.Submit(client_pb2.SubmitRequest(spec=spec, user="ann"))

    await asyncio.gather(*(submit() for _ in range(count)))


async def measure(home: Path, jobs: int, count: int) -> dict[str, float]:
    """What was measured, in seconds, and how many launches came too early; the journal is left in ``home``."""
    nodes, first = [Node(f"n{number:03}") for number in range(count)], Master(home)
    try:
        async with reach(await first.address(), first.token) as channel:
            streams = [asyncio.create_task(node.attach(channel)) for node in nodes]
            await until(lambda: all(node.welcomed_at for node in nodes))
            await submit_all(client_pb2_grpc.ClientServiceStub(channel), jobs)
            await until(lambda: sum(len(node.running) for node in nodes) == min(jobs, count * GPUS))
            first.kill()
            await asyncio.gather(*streams)
    finally:
        first.kill()
    for node in nodes:
        node.ended = {job: node.running.pop(job) for job in [*node.running][::10]}
        node.launched_at, node.welcomed_at = [], 0.0
    second = Master(home)
    try:
        return await come_back(second, nodes, jobs)
    finally:
        second.kill()


def fold_s(home: Path) -> float:
    """The CPU time in which the journal of ``home`` becomes a cluster, as at a start of a master."""
    gc.set_threshold(*COLLECTED)
    store = open_store("", home)
    try:
        cluster = Cluster(create_policy("fitgpp", {}))
        kept = Ledger(cluster)
        began = time.process_time()
        recovered(store, lambda: fold(cluster, store))
        assert kept.known_since >= 0
        return time.process_time() - began
    finally:
        store.close()


async def come_back(master: Master, nodes: list[Node], jobs: int) -> dict[str, float]:
    """The restart."""
    async with reach(await master.address(), master.token) as channel:
        ask: Any = client_pb2_grpc.ClientServiceStub(channel)
        listed = await ask.ListJobs(client_pb2.ListJobsRequest(all=True))
        serving_s, cpu = time.monotonic() - master.began, psutil.Process(master.process.pid).cpu_times()
        assert len(listed.jobs) == jobs, f"{len(listed.jobs)} of {jobs} jobs are known"
        *early, late = nodes
        streams = [asyncio.create_task(node.attach(channel)) for node in early]
        await until(lambda: all(node.welcomed_at for node in early))
        await asyncio.sleep(LATE_S)
        too_early = sum(len(node.launched_at) for node in nodes)
        streams.append(asyncio.create_task(late.attach(channel)))
        while True:
            states = [node.state for node in (await ask.ListNodes(client_pb2.ListNodesRequest())).nodes]
            if states.count("up") == len(nodes):
                break
            await asyncio.sleep(0.01)
        attached_s = time.monotonic() - master.began
        await until(lambda: any(node.launched_at for node in nodes))
        master.kill()
        await asyncio.gather(*streams)
    return {
        "serving_s": serving_s,
        "serving_cpu_s": cpu.user + cpu.system,
        "attached_s": attached_s,
        "launched_too_early": too_early,
    }


def found(jobs: int, nodes: int) -> dict[str, float]:
    """All that was measured, in seconds, and how many launches came too early."""
    with tempfile.TemporaryDirectory(prefix="ebb-restart-") as folder:
        restart = asyncio.run(measure(Path(folder), jobs, nodes))
        return {**restart, "fold_cpu_s": fold_s(Path(folder))}


def measured(jobs: int = JOBS, nodes: int = NODES) -> Iterator[Measured]:
    """The same, beside the marks."""
    values, name = found(jobs, nodes), f"restart with {jobs:,} jobs and {nodes} nodes"
    yield Measured(name=f"{name}: serving", value=values["serving_s"], unit="s", most=MARKS["serving_s"])
    yield Measured(name=f"{name}: CPU until it serves", value=values["serving_cpu_s"], unit="s")
    yield Measured(name=f"{name}: CPU of the fold", value=values["fold_cpu_s"], unit="s", most=FOLD_S)
    yield Measured(name=f"{name}: all nodes back", value=values["attached_s"], unit="s", most=MARKS["attached_s"])
    yield Measured(name=f"{name}: launched too early", value=values["launched_too_early"], unit="jobs", most=0)


def main() -> int:
    """Print the figures; 1 if one of the `MARKS` is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--nodes", type=int, default=NODES)
    options = parser.parse_args()
    values = found(options.jobs, options.nodes)
    for name, value in values.items():
        mark = f" (mark: {MARKS[name]:g})" if name in MARKS else ""
        print(f"{name}: {value:.2f}{mark}" if name.endswith("_s") else f"{name}: {value:g} (mark: 0)")
    missed = [name for name, mark in MARKS.items() if values[name] > mark]
    return 1 if missed or values["launched_too_early"] else 0


if __name__ == "__main__":
    sys.exit(main())
