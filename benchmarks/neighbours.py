"""How long another user's `ebb ls` takes while one user calls each method at its bounds, one after the other.

Before and behind them stands what it takes beside no call at all: on a machine that does other things, too, that tells
how much of the rest is the machine's.

    python benchmarks/neighbours.py                 # 100,000 jobs wait; arrays of 10,000 tasks
    python benchmarks/neighbours.py --queued 2000 --tasks 500

Who attacks is an admin, so that no rate and no role stands in the way; who asks has a job of their own.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
from ebbtide_protos.v1 import booking_pb2, client_pb2, client_pb2_grpc, job_pb2, usage_pb2, user_pb2
from load import JOB, another_admin
from masters import GPUS, Master, Node, reach, until

MARK_MS: Final = 200
NODE: Final = "n1"
ASK_S: Final = 0.02
CONTROL_S: Final = 10.0
LEAST: Final = 3
LONGEST_S: Final = 300.0
OPTIONS: Final = {"timeout": LONGEST_S}

Call = Callable[[], Awaitable[Any]]


def array(tasks: int, job: job_pb2.JobSpec = JOB, params: int = 0) -> client_pb2.SubmitRequest:
    """An array of so many, each with so many params."""
    own = [{f"p{number}": str(index) for number in range(params)} for index in range(tasks)]
    return client_pb2.SubmitRequest(
        spec=job, tasks=[client_pb2.ArrayTask(index=index, params=own[index]) for index in range(tasks)]
    )


def changed(**fields: Any) -> job_pb2.JobSpec:
    """The usual job, but for these ``fields``."""
    job = job_pb2.JobSpec(**fields)
    if "gpus_min" not in fields:
        job.gpus_min.CopyFrom(JOB.gpus_min)
    if "command" not in fields:
        job.command.extend(JOB.command)
    job.workdir = JOB.workdir
    return job


async def reserve(stub: Any, count: int) -> None:
    """Make so many reservations of all GPUs of the node, one after another, which keep out who may not be suspended."""
    begin, length_s = time.time() + 3600.0, 120.0
    for number in range(count):
        start = begin + number * 2 * length_s
        await stub.ReserveGpus(
            booking_pb2.ReserveGpusRequest(
                user=f"u{number % 50}", by="admin", gpus=GPUS, start=start, end=start + length_s
            ),
            **OPTIONS,
        )


async def cancel_reservations(stub: Any) -> None:
    """Cancel all."""
    reply = await stub.ListReservations(booking_pb2.ListReservationsRequest(), **OPTIONS)
    for one in reply.reservations:
        request = booking_pb2.CancelReservationRequest(reservation_id=one.reservation_id, by="admin")
        await stub.CancelReservation(request, **OPTIONS)


async def make_story(stub: Any, id: str, events: int) -> None:
    """Hold and release that job until it has a story of so many events."""
    for _ in range(events // 2):
        await stub.Hold(client_pb2.JobRequest(job_id=id), **OPTIONS)
        await stub.Release(client_pb2.JobRequest(job_id=id), **OPTIONS)


def with_reservations(stub: Any, tasks: int, count: int) -> dict[str, Call]:
    """What is done with so many reservations, and beside them."""
    listing, kept_out = booking_pb2.ListReservationsRequest(), changed(suspend=job_pb2.SUSPEND_MODE_NONE)
    return {
        f"ReserveGpus, {count} times": lambda: reserve(stub, count),
        "ListReservations, of all of these": lambda: stub.ListReservations(listing, **OPTIONS),
        "Submit, an array that they keep out": lambda: stub.Submit(array(tasks, kept_out), **OPTIONS),
        "nothing, beside them": lambda: asyncio.sleep(CONTROL_S),
        "CancelReservation, all": lambda: cancel_reservations(stub),
    }


def calls(stub: Any, id: str, tasks: int) -> dict[str, Call]:
    """What one user can ask for, with the largest array ``id`` and the longest lists; in this order."""
    job = client_pb2.JobRequest(job_id=id)
    after = [
        job_pb2.Dependency(job_id=f"{id}.{number}", kind=job_pb2.AFTER_KIND_ANY) for number in range(min(tasks, 100))
    ]
    waiting, dry = changed(after=after), array(tasks, params=16)
    dry.dry_run = True
    long, longest = (changed(command=["x" * size] * 8) for size in (1_000, 120_000))
    ranges = [f"{id}.{low}-{low + 19}" for low in range(min(tasks, 9_900))]

    def watch(**fields: Any) -> Call:
        return lambda: _some(stub.WatchJobs(client_pb2.WatchJobsRequest(**fields), **OPTIONS))

    return {
        "ListJobs, all": lambda: stub.ListJobs(client_pb2.ListJobsRequest(all=True), **OPTIONS),
        "ListJobs, folded": lambda: stub.ListJobs(client_pb2.ListJobsRequest(folded=True), **OPTIONS),
        "ListJobs, one id 10,000 times": lambda: stub.ListJobs(
            client_pb2.ListJobsRequest(job_ids=[id] * 10_000, folded=True), **OPTIONS
        ),
        "ListJobs, ranges": lambda: stub.ListJobs(client_pb2.ListJobsRequest(job_ids=ranges), **OPTIONS),
        "WatchJobs, all": watch(),
        "WatchJobs, ranges": watch(job_ids=ranges),
        "ShowJob": lambda: stub.ShowJob(job, **OPTIONS),
        "Explain": lambda: stub.Explain(client_pb2.ExplainRequest(job_id=f"{id}.{tasks - 1}", priority=50), **OPTIONS),
        "ShowStory": lambda: stub.ShowStory(client_pb2.JobRequest(job_id=f"{id}.1"), **OPTIONS),
        "WatchEvents": lambda: _some(stub.WatchEvents(client_pb2.WatchEventsRequest(), **OPTIONS), 20_000),
        "Usage": lambda: _some(stub.Usage(usage_pb2.UsageRequest(edges=[0.0, time.time()], by=["user"]), **OPTIONS)),
        "ListNodes": lambda: stub.ListNodes(client_pb2.ListNodesRequest(), **OPTIONS),
        "ListReservations": lambda: stub.ListReservations(booking_pb2.ListReservationsRequest(), **OPTIONS),
        "ListUsers": lambda: stub.ListUsers(user_pb2.ListUsersRequest(), **OPTIONS),
        "ImportUsers, 5,000": lambda: stub.ImportUsers(
            user_pb2.ImportUsersRequest(users=[user_pb2.User(name=f"u{n}", role="user") for n in range(5_000)]),
            **OPTIONS,
        ),
        "ListUsers, 5,000": lambda: stub.ListUsers(user_pb2.ListUsersRequest(), **OPTIONS),
        "ListTokens": lambda: stub.ListTokens(user_pb2.ListTokensRequest(all=True), **OPTIONS),
        "Submit, an array": lambda: stub.Submit(array(tasks), **OPTIONS),
        "Submit, with params": lambda: stub.Submit(array(tasks, params=16), **OPTIONS),
        "Submit, after 100 others": lambda: stub.Submit(array(tasks, waiting), **OPTIONS),
        "Submit, as a trial": lambda: stub.Submit(dry, **OPTIONS),
        "Submit, of 8 KB each": lambda: stub.Submit(array(tasks, long), **OPTIONS),
        "Submit, of 1 MB each": lambda: stub.Submit(array(tasks, longest), **OPTIONS),
        "ListJobs, all of these": lambda: stub.ListJobs(client_pb2.ListJobsRequest(all=True), **OPTIONS),
        "Hold": lambda: stub.Hold(job, **OPTIONS),
        "Release": lambda: stub.Release(job, **OPTIONS),
        "Suspend": lambda: stub.Suspend(job, **OPTIONS),
        "Resume": lambda: stub.Resume(job, **OPTIONS),
        "Resize": lambda: stub.Resize(
            client_pb2.ResizeRequest(job_id=id, gpus_min=JOB.gpus_min, gpus_max=JOB.gpus_min), **OPTIONS
        ),
        "Change, priority": lambda: stub.Change(client_pb2.ChangeRequest(job_id=id, priority=50), **OPTIONS),
        "Change, 1 at a time": lambda: stub.Change(client_pb2.ChangeRequest(job_id=id, max_concurrent=1), **OPTIONS),
        "Change, any at a time": lambda: stub.Change(client_pb2.ChangeRequest(job_id=id, max_concurrent=0), **OPTIONS),
        "Cancel": lambda: stub.Cancel(client_pb2.CancelRequest(job_id=id), **OPTIONS),
        "Requeue": lambda: stub.Requeue(client_pb2.RequeueRequest(job_id=id), **OPTIONS),
        "DrainNode": lambda: stub.DrainNode(client_pb2.DrainNodeRequest(node=NODE, deadline_s=3600.0), **OPTIONS),
        "WatchNode": lambda: _some(stub.WatchNode(client_pb2.NodeRequest(node=NODE), **OPTIONS), 1),
        "ResumeNode": lambda: stub.ResumeNode(client_pb2.NodeRequest(node=NODE), **OPTIONS),
        "Quiesce": lambda: _some(stub.Quiesce(client_pb2.QuiesceRequest(kill=True), **OPTIONS), 1_000_000),
    }


async def _some(stream: Any, most: int = 200) -> None:
    """Read that many messages of it, or all if there are fewer."""
    async for _ in stream:
        if (most := most - 1) == 0:
            break
    stream.cancel()


class Neighbour:
    """A process that asks for a list of one job again and again: what the attacker does with its answers is not its."""

    def __init__(self, address: str, token: str, id: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--ask", address, id],
            env={**os.environ, "EBB_TOKEN": token},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    async def begin(self) -> None:
        """Measure from now on."""
        await self._say(b"begin\n")

    async def end(self) -> list[float]:
        """How long it waited each time, in milliseconds, the shortest first."""
        return sorted(json.loads(await self._say(b"end\n")))

    def kill(self) -> None:
        """It is not needed any more."""
        self._process.kill()
        self._process.wait()

    async def _say(self, word: bytes) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(word)
        self._process.stdin.flush()
        return await asyncio.to_thread(self._process.stdout.readline)


async def ask(address: str, id: str) -> None:
    """Be the neighbour, until nobody is at the other end of the standard input."""
    async with reach(address, os.environ["EBB_TOKEN"]) as channel:
        stub: Any = client_pb2_grpc.ClientServiceStub(channel)
        waits: list[float] = []
        said = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        while True:
            if said.done():
                word = said.result()
                if not word:
                    return
                while word == "end\n" and len(waits) < LEAST:
                    waits.append(await _asked(stub, id))
                print(json.dumps(waits if word == "end\n" else None), flush=True)
                waits = []
                said = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
            waits.append(await _asked(stub, id))
            await asyncio.sleep(ASK_S)


async def _asked(stub: Any, id: str) -> float:
    began = time.monotonic()
    await stub.ListJobs(client_pb2.ListJobsRequest(job_ids=[id]), **OPTIONS)
    return 1000 * (time.monotonic() - began)


async def measure(master: Master, arguments: argparse.Namespace) -> bool:
    """All of it, printed; whether the mark is met by each."""
    address, tasks = await master.address(), arguments.tasks
    async with reach(address, master.token) as channel:
        neighbour: Any = client_pb2_grpc.ClientServiceStub(channel)
        async with reach(address, await another_admin(neighbour)) as other:
            stub, node = client_pb2_grpc.ClientServiceStub(other), Node(NODE)
            stream = asyncio.create_task(node.attach(channel))
            await until(lambda: node.welcomed_at)
            own = (await neighbour.Submit(client_pb2.SubmitRequest(spec=JOB, hold=True))).job_id

            gpuless = changed(gpus_min=job_pb2.Share(denominator=1))

            async def start() -> None:
                await stub.Submit(array(tasks, gpuless), **OPTIONS)
                await until(lambda: len(node.running) == tasks)

            async def start_at_once() -> None:
                await stub.ResumeNode(client_pb2.NodeRequest(node=NODE), **OPTIONS)
                await until(lambda: len(node.running) == 2 * tasks)

            asker = Neighbour(address, master.token, own)
            try:
                worst = await beside(asker, "Submit, an array that starts", start)
                await stub.DrainNode(client_pb2.DrainNodeRequest(node=NODE, deadline_s=3600.0), **OPTIONS)
                await stub.Submit(array(tasks, gpuless), **OPTIONS)
                worst = max(worst, await beside(asker, "ResumeNode, an array starts", start_at_once))
                for _ in range(max(1, arguments.queued // tasks)):
                    id = (await stub.Submit(array(tasks), **OPTIONS)).job_id
                await beside(asker, "nothing", lambda: asyncio.sleep(CONTROL_S))
                told = (await stub.Submit(client_pb2.SubmitRequest(spec=JOB, hold=True))).job_id
                await make_story(stub, told, arguments.events)
                story: Call = lambda: stub.ShowStory(client_pb2.JobRequest(job_id=told), **OPTIONS)  # noqa: E731
                worst = max(worst, await beside(asker, f"ShowStory, of {arguments.events} events", story))
                for name, call in with_reservations(stub, tasks, arguments.reservations).items():
                    worst = max(worst, await beside(asker, name, call))
                for name, call in calls(stub, id, tasks).items():
                    worst = max(worst, await beside(asker, name, call))
                await beside(asker, "nothing, once more", lambda: asyncio.sleep(CONTROL_S))
            finally:
                asker.kill()
            stream.cancel()
    print(f"worst_p99_ms: {worst:.1f} (mark: {MARK_MS})")
    return worst < MARK_MS


async def beside(neighbour: Neighbour, name: str, call: Call) -> float:
    """Make the call; the 99th percentile of what another user waited meanwhile, in milliseconds."""
    await neighbour.begin()
    began, outcome = time.monotonic(), ""
    try:
        await call()
    except grpc.aio.AioRpcError as error:  # a refusal is an answer, too
        outcome = f" ({error.details()})"
    took_s = time.monotonic() - began
    waits = await neighbour.end()
    p99 = waits[int(len(waits) * 0.99)]
    print(f"{name}: {took_s:.2f} s; ls meanwhile p99 {p99:.0f} ms, {len(waits)} times{outcome[:100]}", flush=True)
    return p99


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=90_000)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--reservations", type=int, default=1000)
    parser.add_argument("--events", type=int, default=50_000, help="of one job's story")
    parser.add_argument("--ask", nargs=2, metavar=("ADDRESS", "ID"), help="be the one who asks")
    arguments = parser.parse_args()
    if arguments.ask:
        asyncio.run(ask(*arguments.ask))
        return 0
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "ebbtide.toml").write_text("[limits]\njobs_per_s = 1000000\nqueued = 200000\n")
        master = Master(Path(home))
        try:
            return 0 if asyncio.run(measure(master, arguments)) else 1
        finally:
            master.kill()


if __name__ == "__main__":
    raise SystemExit(main())
