"""A master is killed with 10,000 jobs and 100 nodes, and starts again: when it serves, and when all are back.

    python benchmarks/restart.py

Meanwhile every tenth job has ended, so that there is room, and the last node comes back late: until it has, nothing may
be launched.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import psutil
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc, job_pb2
from masters import GPUS, Master, Node, reach, until

AT_ONCE: Final = 64
LATE_S: Final = 2.0
MARKS: Final = {"serving_s": 5.0, "attached_s": 30.0}


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
    """All of it; what was measured, in seconds, and how many launches came too early."""
    nodes, first = [Node(f"n{number:03}") for number in range(count)], Master(home)
    async with reach(await first.address(), first.token) as channel:
        streams = [asyncio.create_task(node.attach(channel)) for node in nodes]
        await until(lambda: all(node.welcomed_at for node in nodes))
        began = time.monotonic()
        await submit_all(client_pb2_grpc.ClientServiceStub(channel), jobs)
        submitted_s = time.monotonic() - began
        await until(lambda: sum(len(node.running) for node in nodes) == min(jobs, count * GPUS))
        first.kill()
        await asyncio.gather(*streams)
    for node in nodes:
        node.ended = {job: node.running.pop(job) for job in [*node.running][::10]}
        node.launched_at, node.welcomed_at = [], 0.0
    try:
        return {"submitted_s": submitted_s, **await come_back(Master(home), nodes, jobs)}
    finally:
        print(f"journal: {(home / 'journal.db').stat().st_size / 1e6:.0f} MB")


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
    measured = {"serving_s": serving_s, "serving_cpu_s": cpu.user + cpu.system}
    return {**measured, "attached_s": attached_s, "launched_too_early": too_early}


def main() -> int:
    """Print the figures; 1 if a mark is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ebb-restart-") as folder:
        found = asyncio.run(measure(Path(folder), options.jobs, options.nodes))
    for name, value in found.items():
        mark = f" (mark: {MARKS[name]:g})" if name in MARKS else ""
        print(f"{name}: {value:.2f}{mark}" if name.endswith("_s") else f"{name}: {value:g} (mark: 0)")
    missed = [name for name, mark in MARKS.items() if found[name] > mark]
    return 1 if missed or found["launched_too_early"] else 0


if __name__ == "__main__":
    sys.exit(main())
