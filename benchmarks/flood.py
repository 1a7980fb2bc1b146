"""What others notice when one user floods the master: 1,000 submits a second and 100 streams, half of them never read.

    python benchmarks/flood.py               # four times 20 s
    python benchmarks/flood.py --seconds 10

A status (`ShowJob`) is asked for every 10 ms by one user; another floods from a process of their own. To tell what
the flood costs the master from what it costs the machine, on which the flooder runs as well, it goes to another
master first. Before that: what one user may submit at all, one by one and in arrays.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc, job_pb2, user_pb2
from masters import Master, reach

SUBMITS_PER_S: Final = 1000
STREAMS: Final = 100
ASK_S: Final = 0.01
JOB: Final = job_pb2.JobSpec(command=["python", "train.py"], workdir="/")


@contextmanager
def a_master(home: Path) -> Iterator[tuple[Master, str]]:
    """A master that does not outlive the block, and its address."""
    home.mkdir()
    master = Master(home)
    try:
        yield master, asyncio.run(master.address())
    finally:
        master.kill()


async def user(address: str, admin: str, name: str) -> str:
    """A new user's token."""
    async with reach(address, admin) as to_master:
        stub = client_pb2_grpc.ClientServiceStub(to_master)
        await stub.AddUser(user_pb2.AddUserRequest(user=user_pb2.User(name=name, role="user")))
        return str((await stub.CreateToken(user_pb2.CreateTokenRequest(for_user=name))).text)


async def submits_per_s(address: str, token: str, tasks: int, at_once: int, seconds: float) -> float:
    """Durable jobs a second, in arrays of that many tasks; 0: one by one."""
    async with reach(address, token) as to_master:
        stub, done, ends = client_pb2_grpc.ClientServiceStub(to_master), 0, time.monotonic() + seconds

        async def go() -> None:
            nonlocal done
            wanted = client_pb2.SubmitRequest(spec=JOB, hold=True)
            wanted.tasks.extend(client_pb2.ArrayTask(index=index) for index in range(tasks))
            while time.monotonic() < ends:
                try:
                    await stub.Submit(wanted)
                    done += max(1, tasks)
                except grpc.aio.AioRpcError as error:
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        raise
                    await asyncio.sleep(0.1)

        await asyncio.gather(*(go() for _ in range(at_once)))
        return done / seconds


async def waits_ms(address: str, token: str, seconds: float) -> list[float]:
    """How long somebody waits for a status, again and again."""
    async with reach(address, token) as to_master:
        stub, waits, ends = client_pb2_grpc.ClientServiceStub(to_master), [], time.monotonic() + seconds
        job = (await stub.Submit(client_pb2.SubmitRequest(spec=JOB, hold=True))).job_id
        while time.monotonic() < ends:
            began = time.monotonic()
            await stub.ShowJob(client_pb2.JobRequest(job_id=job))
            waits.append(1000 * (time.monotonic() - began))
            await asyncio.sleep(ASK_S)
        return sorted(waits)


async def flood(address: str, token: str) -> None:
    """Until this process is ended."""
    async with reach(address, token) as to_master:
        stub = client_pb2_grpc.ClientServiceStub(to_master)
        streams = [stub.WatchJobs(client_pb2.WatchJobsRequest()) for _ in range(STREAMS)]
        reading = [asyncio.create_task(_read(stream)) for stream in streams[: STREAMS // 2]]
        wanted = client_pb2.SubmitRequest(spec=JOB, hold=True)
        waiting, due = set[Any](), time.monotonic()
        while True:
            due += 1 / SUBMITS_PER_S
            call = stub.Submit(wanted, timeout=30.0)
            waiting.add(call)
            call.add_done_callback(waiting.discard)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            assert len(reading) == STREAMS // 2


async def _read(stream: Any) -> None:
    try:
        async for _ in stream:
            pass
    except grpc.aio.AioRpcError:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description="one user floods the master")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--flood", nargs=2, metavar=("ADDRESS", "TOKEN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.flood:
        asyncio.run(flood(*options.flood))
        return
    with tempfile.TemporaryDirectory(prefix="ebb-flood-") as folder:
        one, two = Path(folder) / "one", Path(folder) / "other"
        with a_master(one) as (master, address), a_master(two) as (other, its_address):
            eve = asyncio.run(user(its_address, other.token, "eve"))
            measure(master, address, (its_address, eve), options.seconds)


def measure(flooded: Master, address: str, other: tuple[str, str], seconds: float) -> None:
    """All of it, printed; ``other`` has the address of another master, and somebody's token there."""
    master = psutil.Process(flooded.process.pid)
    tokens = {name: asyncio.run(user(address, flooded.token, name)) for name in ("ann", "eve", "ida", "uma")}
    for name, tasks, at_once, words in (("ida", 0, 8, "one by one"), ("uma", 500, 2, "in arrays of 500")):
        rate = asyncio.run(submits_per_s(address, tokens[name], tasks, at_once, seconds))
        print(f"one user submits {words}: {rate:,.0f} durable jobs a second over {seconds:g} s", flush=True)
    told("nobody else there", asyncio.run(waits_ms(address, tokens["ann"], seconds)))
    with flooding(*other):
        beside = told("another master flooded", asyncio.run(waits_ms(address, tokens["ann"], seconds)))
    before, cpu_s = master.memory_info().rss, sum(master.cpu_times()[:2])
    with flooding(address, tokens["eve"]):
        under = told("this master flooded", asyncio.run(waits_ms(address, tokens["ann"], seconds)))
    grown, share = (master.memory_info().rss - before) / 2**20, (sum(master.cpu_times()[:2]) - cpu_s) / seconds
    print(f"p99 is {under / beside:.2f} times as long as beside the flood; mark: 2")
    print(f"meanwhile the master used {share:.0%} of a core, and grew by {grown:.0f} MiB")


@contextmanager
def flooding(address: str, token: str) -> Iterator[None]:
    """A flood of that master, for as long as the block lasts."""
    process = subprocess.Popen([sys.executable, __file__, "--flood", address, token], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def told(name: str, waits: list[float]) -> float:
    """Print how long somebody waited; the 99th percentile."""
    p50, p99 = (waits[int(len(waits) * share)] for share in (0.5, 0.99))
    print(f"status, {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms ({len(waits)} times)", flush=True)
    return p99


if __name__ == "__main__":
    main()
