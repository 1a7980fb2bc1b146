"""A master is killed with 10,000 jobs and 100 nodes, and starts again: when it serves, and when all are back.

    python benchmarks/restart.py

The master is a process of its own; the agents are streams of this one, which say what agents say. Meanwhile every tenth
job has ended, so that there is room, and the last node comes back late: until it has, nothing may be launched.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import psutil
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc, client_pb2, client_pb2_grpc, job_pb2

GPUS: Final = 8
GIB: Final = 2**30
AT_ONCE: Final = 64
LATE_S: Final = 2.0
MARKS: Final = {"serving_s": 5.0, "attached_s": 30.0}


@dataclass
class Node:
    """One node: what runs there by job, and when it was told to start something."""

    name: str
    running: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    launched_at: list[float] = field(default_factory=list)
    welcomed_at: float = 0.0

    def hello(self) -> agent_pb2.Hello:
        """What it is, and what it has."""
        gpus = [
            agent_pb2.GpuInfo(uuid=f"{self.name}-{i}", index=i, model="A100", mem_bytes=40 * GIB, healthy=True)
            for i in range(GPUS)
        ]
        attempts = [status(job, number, agent_pb2.ATTEMPT_PHASE_RUNNING) for job, number in self.running.items()]
        attempts += [status(job, number, agent_pb2.ATTEMPT_PHASE_FREED) for job, number in self.ended.items()]
        return agent_pb2.Hello(
            node=self.name, hostname=self.name, boot_id="boot", incarnation="first", gpus=gpus, cpus=64.0,
            mem_bytes=512 * GIB, checkpoint_root_id="root", gpu_backend="fake", version="0", attempts=attempts,
        )  # fmt: skip

    async def attach(self, channel: grpc.aio.Channel) -> None:
        """Serve one stream until it breaks."""
        call: Any = agent_pb2_grpc.AgentServiceStub(channel).Attach()
        await call.write(agent_pb2.AgentMessage(hello=self.hello()))
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (message := await call.read()) is not grpc.aio.EOF:
                match message.WhichOneof("body"):
                    case "welcome":
                        self.welcomed_at = time.monotonic()
                    case "launch":
                        self.launched_at.append(time.monotonic())
                        launch = message.launch
                        self.running[launch.job_id] = launch.attempt
                        told = status(launch.job_id, launch.attempt, agent_pb2.ATTEMPT_PHASE_RUNNING)
                        await call.write(agent_pb2.AgentMessage(status=told))
                    case "forget":
                        self.ended.pop(message.forget.job_id, None)
                    case _:
                        pass


def status(job: str, attempt: int, phase: int) -> agent_pb2.AttemptStatus:
    """What a node says of an attempt; one that is over has completed."""
    over = agent_pb2.ExitRecord(ended_at=time.time()) if phase == agent_pb2.ATTEMPT_PHASE_FREED else None
    return agent_pb2.AttemptStatus(job_id=job, attempt=attempt, phase=phase, pid=100, started_at=time.time(), exit=over)  # type: ignore[arg-type]  # an enum's value is an int


class Master:
    """A master process, and how to talk to it."""

    def __init__(self, home: Path) -> None:
        self.began = time.monotonic()
        (home / "master.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "ebbtide_cli.main", "master"]
        with (home / "master.log").open("ab") as log:
            self.process = subprocess.Popen(command, env={**os.environ, "EBB_HOME": str(home)}, stderr=log)
        self.home = home

    async def channel(self) -> grpc.aio.Channel:
        """Once it serves."""
        while self.process.poll() is None:
            with suppress(FileNotFoundError):
                port = json.loads((self.home / "master.json").read_text())["port"]
                call = grpc.access_token_call_credentials((self.home / "token").read_text().strip())
                proof = grpc.composite_channel_credentials(grpc.local_channel_credentials(), call)
                options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
                return grpc.aio.secure_channel(f"127.0.0.1:{port}", proof, options=options)
            await asyncio.sleep(0.01)
        raise SystemExit(f"the master ended: see {self.home / 'master.log'}")

    def kill(self) -> None:
        """As by kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


async def submit_all(ask: Any, count: int) -> None:
    """Submit that many jobs, some at once."""
    one = job_pb2.Share(numerator=1, denominator=1)
    spec = job_pb2.JobSpec(command=["python", "train.py"], workdir="/", gpus_min=one)
    limit = asyncio.Semaphore(AT_ONCE)

    async def submit() -> None:
        async with limit:
            await ask.Submit(client_pb2.SubmitRequest(spec=spec, user="ann"))

    await asyncio.gather(*(submit() for _ in range(count)))


async def until(what: Any, seconds: float = 120.0) -> None:
    """Wait until ``what()`` is true."""
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.01)


async def measure(home: Path, jobs: int, count: int) -> dict[str, float]:
    """All of it; what was measured, in seconds, and how many launches came too early."""
    nodes, first = [Node(f"n{number:03}") for number in range(count)], Master(home)
    channel = await first.channel()
    streams = [asyncio.create_task(node.attach(channel)) for node in nodes]
    await until(lambda: all(node.welcomed_at for node in nodes))
    began = time.monotonic()
    await submit_all(client_pb2_grpc.ClientServiceStub(channel), jobs)
    submitted_s = time.monotonic() - began
    await until(lambda: sum(len(node.running) for node in nodes) == min(jobs, count * GPUS))
    first.kill()
    await asyncio.gather(*streams)
    await channel.close()
    for node in nodes:
        node.ended = {job: node.running.pop(job) for job in [*node.running][::10]}
        node.launched_at, node.welcomed_at = [], 0.0
    try:
        return {"submitted_s": submitted_s, **await come_back(Master(home), nodes, jobs)}
    finally:
        print(f"journal: {(home / 'journal.db').stat().st_size / 1e6:.0f} MB")


async def come_back(master: Master, nodes: list[Node], jobs: int) -> dict[str, float]:
    """The restart."""
    channel = await master.channel()
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
    await channel.close()
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
