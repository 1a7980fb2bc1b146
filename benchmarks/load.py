"""Submits one by one, 500 of them a second, while 100,000 jobs wait and somebody asks for a status all the time.

    python benchmarks/load.py                # two minutes
    python benchmarks/load.py --seconds 10 --queued 10000

Every submit is durable when it is answered. First, how many a second there can be at all. Ten nodes of 8 GPUs are busy
all the time, so that whoever waits is looked at and passed over. Who submits is a process of its own.
"""

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from ebbtide_protos.v1 import client_pb2, client_pb2_grpc, job_pb2, user_pb2
from masters import GPUS, Master, Node, reach, until

NODES: Final = 10
AT_ONCE: Final = 64
TASKS: Final = 1000
ASK_S: Final = 0.01
SUBMITS_PER_S: Final = 500
MARK_MS: Final = 200
CONFIG: Final = "[limits]\ncalls_per_s = 100000\n"
"""It is the master that is measured, not what it lets one user have."""
ONE: Final = job_pb2.Share(numerator=1, denominator=1)
JOB: Final = job_pb2.JobSpec(command=["python", "train.py"], workdir="/", gpus_min=ONE)


async def submitting(address: str, token: str, per_s: float, seconds: float) -> None:
    """Submit that often; print how many were granted in time, and how long each took."""
    async with reach(address, token) as channel:
        stub, waits, free = client_pb2_grpc.ClientServiceStub(channel), list[float](), asyncio.Semaphore(AT_ONCE)
        began = time.monotonic()

        async def submit() -> None:
            asked = time.monotonic()
            await stub.Submit(client_pb2.SubmitRequest(spec=JOB), timeout=60.0)
            if time.monotonic() < began + seconds:
                waits.append(1000 * (time.monotonic() - asked))
            free.release()

        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                await asyncio.sleep(max(0.0, began + number / per_s - time.monotonic()))
                await free.acquire()
                if time.monotonic() >= began + seconds:
                    break
                group.create_task(submit())
    print(json.dumps({"per_s": len(waits) / seconds, "waits": sorted(waits)}))


async def submitted(address: str, token: str, per_s: float, seconds: float) -> dict[str, Any]:
    """The same, in a process of its own."""
    command = [sys.executable, __file__, "--submitting", address, token, str(per_s), "--seconds", str(seconds)]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"who submits ended with {process.returncode}")
    facts: dict[str, Any] = json.loads(out)
    return facts


@asynccontextmanager
async def busy_nodes(channel: Any, stub: Any) -> AsyncIterator[None]:
    """All GPUs are taken, by jobs of whom the stub speaks for."""
    nodes = [Node(f"n{number}") for number in range(NODES)]
    streams = [asyncio.create_task(node.attach(channel)) for node in nodes]
    await until(lambda: all(node.welcomed_at for node in nodes))
    for _ in range(NODES * GPUS):
        await stub.Submit(client_pb2.SubmitRequest(spec=JOB))
    await until(lambda: sum(len(node.running) for node in nodes) == NODES * GPUS)
    yield
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)


async def fill(stub: Any, queued: int) -> None:
    """Have that many jobs wait."""
    for first in range(0, queued, TASKS):
        wanted = client_pb2.SubmitRequest(spec=JOB)
        wanted.tasks.extend(client_pb2.ArrayTask(index=index) for index in range(min(TASKS, queued - first)))
        await stub.Submit(wanted)


async def asking(stub: Any, ended: asyncio.Event) -> list[float]:
    """How long a status takes, in milliseconds, again and again."""
    waits = list[float]()
    while not ended.is_set():
        began = time.monotonic()
        await stub.ShowJob(client_pb2.JobRequest(job_id="1"))
        waits.append(1000 * (time.monotonic() - began))
        await asyncio.sleep(ASK_S)
    return sorted(waits)


async def measure(master: Master, queued: int, seconds: float) -> bool:
    """All of it, printed; whether the marks are met."""
    address = await master.address()
    async with reach(address, master.token) as channel:
        stub: Any = client_pb2_grpc.ClientServiceStub(channel)
        token = await another_admin(stub)
        async with reach(address, token) as busy, busy_nodes(channel, client_pb2_grpc.ClientServiceStub(busy)):
            return await under_load(address, token, stub, queued, seconds)


async def another_admin(stub: Any) -> str:
    """Their token: one user alone may not have so many jobs."""
    await stub.AddUser(user_pb2.AddUserRequest(user=user_pb2.User(name="bob", role="admin")))
    return str((await stub.CreateToken(user_pb2.CreateTokenRequest(for_user="bob"))).text)


async def under_load(address: str, token: str, stub: Any, queued: int, seconds: float) -> bool:
    """The same, once all GPUs are taken."""
    most = (await submitted(address, token, 1e6, seconds))["per_s"]
    print(f"one by one, at most: {most:,.0f} durable submits a second over {seconds:g} s", flush=True)
    began = time.monotonic()
    await fill(stub, queued)
    rate = queued / (time.monotonic() - began)
    print(f"in arrays of {TASKS:,}, until {queued:,} wait: {rate:,.0f} jobs a second", flush=True)
    told("status, nothing else asked", await _for_a_while(stub, asyncio.sleep(seconds)))
    task = asyncio.create_task(submitted(address, token, SUBMITS_PER_S, seconds))
    p99 = told("status, under the load", await _for_a_while(stub, task))
    told("submits, under the load", task.result()["waits"])
    granted = task.result()["per_s"]
    print(f"granted_per_s: {granted:.0f} (mark: {SUBMITS_PER_S})\nstatus_p99_ms: {p99:.1f} (mark: {MARK_MS})")
    return p99 < MARK_MS and granted >= 0.99 * SUBMITS_PER_S


async def _for_a_while(stub: Any, what: Any) -> list[float]:
    ended = asyncio.Event()
    asker = asyncio.create_task(asking(stub, ended))
    await what
    ended.set()
    return await asker


def told(name: str, waits: list[float]) -> float:
    """Print how long somebody waited; the 99th percentile."""
    p50, p99 = (waits[int(len(waits) * share)] for share in (0.5, 0.99))
    print(f"{name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {waits[-1]:.0f} ms ({len(waits)} times)", flush=True)
    return p99


def main() -> int:
    """1 if a mark is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--submitting", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.submitting:
        address, token, per_s = options.submitting
        asyncio.run(submitting(address, token, float(per_s), options.seconds))
        return 0
    with tempfile.TemporaryDirectory(prefix="ebb-load-") as folder:
        (Path(folder) / "ebbtide.toml").write_text(CONFIG)
        master = Master(Path(folder))
        try:
            return 0 if asyncio.run(measure(master, options.queued, options.seconds)) else 1
        finally:
            master.kill()


if __name__ == "__main__":
    sys.exit(main())
