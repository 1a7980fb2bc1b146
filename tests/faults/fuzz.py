"""Anything at all to every method of a master that serves others meanwhile.

    python -m tests.faults.fuzz --count 100000 --seed 7

Half of it is sent on behalf of users, half as agents; a third is bytes that are no message. Ends with 1 if the master
answered with what it must not, wrote a traceback, grew too large, or kept somebody else waiting.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final

import grpc
import psutil
from ebbtide_protos import home_socket
from ebbtide_protos.v1 import agent_pb2, client_pb2, client_pb2_grpc, job_pb2
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tests.faults import figures
from tests.faults.odd import Odd
from tests.master.methods import all_methods
from tests.proof import proven

ALLOWED: Final = frozenset(
    {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNAVAILABLE,  # a node that is not connected
        grpc.StatusCode.CANCELLED,  # a stream that went on, and of which enough was seen
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)
CUT_OFF: Final = "Internal error from Core"
"""What gRPC's client says itself when a call ended before all was sent; the master's own failures have other words."""
AT_ONCE: Final = 32
CALL_S: Final = 20.0
STREAM_S: Final = 0.1
"""How long a stream is read from; many go on for as long as they are wanted."""
READY_S: Final = 30.0
MAX_GROWTH_MIB: Final = 300
MAX_WAIT_S: Final = 5.0
CONFIG: Final = """
[limits]  # what comes in is to reach what is behind them
calls_per_s = 1000000
jobs_per_s = 1000000
reads_per_s = 1000000
"""
WHOLE_NODE: Final = agent_pb2.Hello(
    hostname="host", boot_id="boot", gpus=[agent_pb2.GpuInfo(uuid="n1-0", model="A100", mem_bytes=2**35, healthy=True)],
    cpus=8, mem_bytes=2**36, checkpoint_root_id="root", gpu_backend="fake",
)  # fmt: skip
JOB: Final = job_pb2.JobSpec(
    command=["python", "train.py"], workdir="/", gpus_min=job_pb2.Share(numerator=1, denominator=1)
)


def methods() -> list[MethodDescriptor]:
    """Every method there is."""
    return [method.descriptor for method in all_methods()]


@dataclass(slots=True)
class Seen:
    """What came of it."""

    sent: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)


class Fuzz:
    """Sends what a seed says."""

    def __init__(self, channel: Any, seed: int) -> None:
        self._channel = channel
        self._random = Random(seed)
        self._odd = Odd(self._random)
        self._nodes = 0
        self.seen = Seen()

    async def run(self, count: int) -> None:
        """Send that many messages, to each method as often."""
        targets = methods()
        waiting = set[asyncio.Task[None]]()
        turn = 0
        while self.seen.sent < count:
            method = targets[turn % len(targets)]
            turn += 1
            batch = self._messages(method)
            self.seen.sent += len(batch)
            waiting.add(asyncio.create_task(self._send(method, batch)))
            if len(waiting) >= AT_ONCE:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    one.result()
        await asyncio.gather(*waiting)

    def _messages(self, method: MethodDescriptor) -> list[bytes]:
        """What is sent in one call; a stream's first message is often one that lets the others be heard."""
        count = self._random.choice((1, 3, 12)) if method.client_streaming else 1
        made = [self._one(method) for _ in range(count)]
        if method.name == "Attach" and self._random.random() < 0.8:
            made.insert(0, agent_pb2.AgentMessage(hello=self._hello()).SerializeToString())
        return made

    def _one(self, method: MethodDescriptor) -> bytes:
        chance = self._random.random()
        if chance < 0.35:
            made: Message = self._odd.message(method.input_type)
        else:
            made = self._odd.near(self._plausible(method))
        data = made.SerializeToString()
        return self._odd.damaged(data) if self._random.random() < 0.3 else data

    def _plausible(self, method: MethodDescriptor) -> Message:
        """What could be asked for, mostly of jobs that there are."""
        job, number = str(self._random.randint(1, 40)), self._random.choice((1, 1, 2))
        made = GetMessageClass(method.input_type)()
        match method.name:
            case "Submit":
                made.spec.CopyFrom(JOB)
            case "Attach":
                phase = self._random.choice(agent_pb2.AttemptPhase.values())
                made.status.CopyFrom(agent_pb2.AttemptStatus(job_id=job, attempt=number, phase=phase, started_at=1.0))
            case "Connect":
                made.open.job_id = job
        for one, value in (("job_id", job), ("node", f"n{self._random.randint(1, 9)}"), ("user", "ann")):
            field = method.input_type.fields_by_name.get(one)
            if field is not None and field.type == field.TYPE_STRING:
                setattr(made, one, value)
        return made

    def _hello(self) -> agent_pb2.Hello:
        self._nodes += 1
        hello = agent_pb2.Hello()
        hello.CopyFrom(WHOLE_NODE)
        hello.node, hello.incarnation = f"n{self._nodes % 9 + 1}", str(self._nodes)
        return self._odd.near(hello) if self._random.random() < 0.3 else hello

    async def _send(self, method: MethodDescriptor, batch: list[bytes]) -> None:
        path = f"/{method.containing_service.full_name}/{method.name}"
        kinds = ["stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming)]
        timeout = STREAM_S if method.server_streaming else CALL_S
        begin = getattr(self._channel, "_".join(kinds))(path)
        call = begin(timeout=timeout) if method.client_streaming else begin(batch[0], timeout=timeout)
        code, words = await _ended(call, batch if method.client_streaming else [], streams=method.server_streaming)
        if words == CUT_OFF:
            self.seen.codes["ended while it was sent"] += 1
            return
        self.seen.codes[code.name] += 1
        if code not in ALLOWED or (code is grpc.StatusCode.DEADLINE_EXCEEDED and not method.server_streaming):
            self.seen.wrong.append(f"{method.name}: {code.name} {words}: {batch[0][:200].hex()}")

    async def ask_meanwhile(self, stub: Any) -> None:
        """What somebody else notices of it: how long they wait for a status, again and again."""
        while True:
            began = time.monotonic()
            await stub.ShowCluster(client_pb2.ShowClusterRequest(), timeout=CALL_S)
            self.seen.waits_s.append(time.monotonic() - began)
            await asyncio.sleep(0.02)


async def _ended(call: Any, batch: list[bytes], *, streams: bool) -> tuple[grpc.StatusCode, str]:
    # What it raises may be of a message that could not be sent any more; how it ended is what the master said.
    with suppress(grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
        for data in batch:
            await call.write(data)
        if batch:
            await call.done_writing()
    with suppress(grpc.aio.AioRpcError):
        if streams:
            async for _ in call:
                pass
        else:
            await call
    return await call.code(), await call.details() or ""


@asynccontextmanager
async def a_master(home: Path, log: Path) -> AsyncIterator[tuple[subprocess.Popen[bytes], str]]:
    """A master's process, and its address."""
    (home / "ebbtide.toml").write_text(CONFIG)
    program = "import sys; from pathlib import Path; from ebbtide_master.main import MasterOptions, run; "
    program += "sys.exit(run(MasterOptions(Path(sys.argv[1]))))"
    with log.open("ab") as file:
        process = subprocess.Popen([sys.executable, "-c", program, str(home)], stderr=file)
    try:
        async with asyncio.timeout(READY_S):
            while not (home / "master.json").exists():
                assert process.poll() is None, log.read_text()[-2000:]
                await asyncio.sleep(0.02)
        with home_socket.reached(home) as target:
            yield process, target
    finally:
        process.kill()
        process.wait()


async def fuzz(count: int, seed: int, home: Path) -> dict[str, Any]:
    """Send that many messages; the figures."""
    log = home / "master.log"
    async with a_master(home, log) as (process, address):
        master = psutil.Process(process.pid)
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with (
            grpc.aio.insecure_channel(address, options=options) as channel,
            grpc.aio.insecure_channel(address, options=options) as other,
        ):
            stub = client_pb2_grpc.ClientServiceStub(proven(other, home))
            for _ in range(40):
                await stub.Submit(client_pb2.SubmitRequest(spec=JOB), timeout=CALL_S)
            before, began = master.memory_info().rss, time.monotonic()
            fuzzing = Fuzz(proven(channel, home), seed)
            asking = asyncio.create_task(fuzzing.ask_meanwhile(stub))
            await fuzzing.run(count)
            asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled():
                asking.result()
            took_s, grown = time.monotonic() - began, master.memory_info().rss - before
            alive = process.poll() is None
    return _figures(fuzzing.seen, took_s, grown / 2**20, alive, log.read_text(errors="replace"))


def _figures(seen: Seen, took_s: float, grown_mib: float, alive: bool, log: str) -> dict[str, Any]:
    waits = sorted(seen.waits_s)
    counted = log.count("Traceback") + log.count(" ERROR ") + log.count(" CRITICAL ")
    return {
        "messages": seen.sent,
        "seconds": round(took_s, 1),
        "alive": alive,
        "wrong": len(seen.wrong),
        "examples": seen.wrong[:10],
        "tracebacks": counted,
        "failures": _failures(log) if counted else [],
        "log_bytes": len(log),
        "grown_mib": round(grown_mib, 1),
        "others_asked": len(waits),
        "others_p50_ms": round(1000 * statistics.median(waits), 1),
        "others_p99_ms": round(1000 * waits[len(waits) * 99 // 100], 1),
        "others_longest_ms": round(1000 * waits[-1], 1),
        "codes": dict(seen.codes),
    }


def holds(found: dict[str, Any]) -> bool:
    """Whether it is as promised."""
    return bool(
        found["alive"]
        and not found["wrong"]
        and not found["tracebacks"]
        and found["codes"].get("UNAUTHENTICATED", 0) < found["messages"] / 20  # else nothing got through
        and found["grown_mib"] <= MAX_GROWTH_MIB
        and found["others_longest_ms"] <= 1000 * MAX_WAIT_S
    )


def _failures(log: str) -> list[str]:
    """The lines of tracebacks, and of whatever is no mere note."""
    return [line for line in log.splitlines() if " INFO " not in line and " WARNING " not in line][-200:]


def main() -> int:
    parser = argparse.ArgumentParser(description="anything at all to every method")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, help="(default: by chance)")
    options = parser.parse_args()
    seed = SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"python -m tests.faults.fuzz --count {options.count} --seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="ebb-fuzz-") as folder:
        found = asyncio.run(fuzz(options.count, seed, Path(folder)))
    print(*found.pop("failures"), sep="\n")
    print(json.dumps(found))
    note(found, options.count)
    return 0 if holds(found) else 1


def note(found: dict[str, Any], count: int) -> None:
    """The figures of `make chaos`."""
    figures.at_least("fuzz: messages", found["messages"], count)
    figures.none("fuzz: deaths, wrong answers, tracebacks", (not found["alive"]) + found["wrong"] + found["tracebacks"])
    grown, longest = found["grown_mib"], found["others_longest_ms"]
    figures.record("fuzz: growth of the master, MiB", grown, f"≤ {MAX_GROWTH_MIB}", grown <= MAX_GROWTH_MIB)
    most = 1000 * MAX_WAIT_S
    figures.record("fuzz: longest wait of somebody else, ms", longest, f"≤ {most:,.0f}", longest <= most)


if __name__ == "__main__":
    sys.exit(main())
