"""Masters and nodes for benchmarks: a master is a process of its own; nodes are streams that say what agents say."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from ebbtide_cli.masters.credentials import ProvenChannel
from ebbtide_protos.flow import FLOW_OPTIONS
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc

GPUS: Final = 8
GIB: Final = 2**30
OPTIONS: Final = [*FLOW_OPTIONS, ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]


class Master:
    """A master process, of the home that it is given."""

    def __init__(self, home: Path) -> None:
        self.began = time.monotonic()
        (home / "master.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "ebbtide_cli.main", "master"]
        with (home / "master.log").open("ab") as log:
            self.process = subprocess.Popen(command, env={**os.environ, "EBB_HOME": str(home)}, stderr=log)
        self.home = home

    async def address(self) -> str:
        """Once it serves."""
        while self.process.poll() is None:
            if (self.home / "master.json").exists():
                return f"unix:{self.home}/run/master.sock"
            await asyncio.sleep(0.01)
        raise SystemExit(f"the master ended: {(self.home / 'master.log').read_text()}")

    @property
    def token(self) -> str:
        """The admin's."""
        return (self.home / "token").read_text().strip()

    def kill(self) -> None:
        """As by kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@asynccontextmanager
async def reach(address: str, token: str) -> AsyncIterator[Any]:
    """A connection of its own, as whoever has that token."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        yield ProvenChannel(channel, token)


@dataclass
class Node:
    """One node: what runs there by job, and when it was told to start something."""

    name: str
    running: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    launched_at: list[float] = field(default_factory=list)
    welcomed_at: float = 0.0
    call: Any = None
    """The stream that is open, once there is one."""
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def send(self, **body: Any) -> None:
        """Say something on the stream, which takes one message at a time."""
        async with self._writing:
            await self.call.write(agent_pb2.AgentMessage(**body))

    async def end(self, job: str) -> None:
        """A job that runs here has completed, or has left when it was told to."""
        self.ended[job] = attempt = self.running.pop(job)
        await self.send(status=status(job, attempt, agent_pb2.ATTEMPT_PHASE_FREED))

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

    async def attach(self, channel: Any) -> None:
        """Serve one stream until it breaks."""
        self.call = call = agent_pb2_grpc.AgentServiceStub(channel).Attach()
        await self.send(hello=self.hello())
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (message := await call.read()) is not grpc.aio.EOF:
                match message.WhichOneof("body"):
                    case "welcome":
                        self.welcomed_at = time.monotonic()
                    case "launch":
                        self.launched_at.append(time.monotonic())
                        launch = message.launch
                        self.running[launch.job_id] = launch.attempt
                        await self.send(status=status(launch.job_id, launch.attempt, agent_pb2.ATTEMPT_PHASE_RUNNING))
                    case "stop":
                        if message.stop.job_id in self.running:
                            await self.end(message.stop.job_id)
                    case "forget":
                        self.ended.pop(message.forget.job_id, None)
                    case _:
                        pass


def status(job: str, attempt: int, phase: int) -> agent_pb2.AttemptStatus:
    """What a node says of an attempt; one that is over has completed."""
    over = agent_pb2.ExitRecord(ended_at=time.time()) if phase == agent_pb2.ATTEMPT_PHASE_FREED else None
    return agent_pb2.AttemptStatus(job_id=job, attempt=attempt, phase=phase, pid=100, started_at=time.time(), exit=over)  # type: ignore[arg-type]  # an enum's value is an int


async def until(what: Any, seconds: float = 120.0) -> None:
    """Wait until ``what()`` is true."""
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.01)
