"""How a master bears thousands of nodes: scripted agents over the real protocol, without a process for any job.

    python benchmarks/scale.py                              # 1,000, 2,000 and 5,000 nodes of 8 GPUs
    python benchmarks/scale.py --nodes 1000 --waiting 1000  # less
    python benchmarks/scale.py --plot scale.png

For each number of nodes a master of its own is started, and a process that holds one connection for each node. Measured
are the time until all have registered, the master's CPU for heartbeats at the real interval, its memory, the time until
all nodes that fell silent together are lost, beyond the silence itself, and, in a process of its own, passes of a
policy over as many nodes while elastic jobs wait.
"""

import argparse
import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc, client_pb2, client_pb2_grpc, job_pb2
from masters import GIB, GPUS, Master, Node, reach, status

NODES: Final = (1000, 2000, 5000)
WAITING: Final = 10_000
SECONDS: Final = 30.0
AT_ONCE: Final = 64
"""Agents that introduce themselves at the same time."""
TASKS: Final = 1000
SETTLE_S: Final = 5.0
SILENCE_S: Final = 20.0
"""Seconds for which a node is silent before it counts as lost."""
ONE: Final = job_pb2.Share(numerator=1, denominator=1)
EIGHT: Final = job_pb2.Share(numerator=GPUS, denominator=1)


# --- the agents ---


@dataclass
class Agent(Node):
    """A node that sends heartbeats: its GPUs are busy, and each reading differs a little from the one before."""

    dice: random.Random = field(default_factory=random.Random)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    heard_at: float = 0.0
    beats: int = 0

    async def attach(self, channel: Any) -> None:
        """Serve one stream until it breaks."""
        call: Any = agent_pb2_grpc.AgentServiceStub(channel).Attach()
        await call.write(agent_pb2.AgentMessage(hello=self.hello()))
        beating = None
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                match message.WhichOneof("body"):
                    case "welcome":
                        self.welcomed_at = time.monotonic()
                        beating = asyncio.create_task(self._beat(call, message.welcome.heartbeat_s))
                    case "heard":
                        self.heard_at = time.monotonic()
                        self.beats += 1
                    case "launch":
                        self.running[message.launch.job_id] = message.launch.attempt
                        await self._tell(call, message.launch, agent_pb2.ATTEMPT_PHASE_RUNNING)
                    case "stop" if self.running.pop(message.stop.job_id, None) is not None:
                        self.ended[message.stop.job_id] = message.stop.attempt
                        await self._tell(call, message.stop, agent_pb2.ATTEMPT_PHASE_FREED)
                    case "forget":
                        self.ended.pop(message.forget.job_id, None)
                    case _:
                        pass
        finally:
            if beating is not None:
                beating.cancel()

    async def _tell(self, call: Any, order: Any, phase: int) -> None:
        async with self.writing:
            await call.write(agent_pb2.AgentMessage(status=status(order.job_id, order.attempt, phase)))

    async def _beat(self, call: Any, pause_s: float) -> None:
        number = 0
        while True:
            number += 1
            beat = agent_pb2.Heartbeat(gpus=[self._reading(index) for index in range(GPUS)], beat=number)
            async with self.writing:
                await call.write(agent_pb2.AgentMessage(heartbeat=beat))
            # The agents' clocks do not agree, so the second heartbeat comes after a part of the pause.
            await asyncio.sleep(pause_s if number > 1 else pause_s * self.dice.random())

    def _reading(self, index: int) -> agent_pb2.GpuReading:
        return agent_pb2.GpuReading(
            uuid=f"{self.name}-{index}",
            mem_used_bytes=30 * GIB,
            utilisation=0.9 + 0.1 * self.dice.random(),
            healthy=True,
            mem_reserved_bytes=GIB // 2,
            temperature_c=60 + self.dice.randrange(3),
            power_w=300.0 + 20 * self.dice.random(),
            idle_bytes=0,
        )


async def fleet(address: str, token: str, count: int) -> None:
    """Be so many nodes until the process is killed; print when all were heard, in seconds after the first Hello."""
    agents = [Agent(f"n{number:05}", dice=random.Random(number)) for number in range(count)]
    free, began = asyncio.Semaphore(AT_ONCE), time.monotonic()

    async def serve(agent: Agent) -> None:
        async with reach(address, token) as channel:
            stream = asyncio.create_task(agent.attach(channel))
            while not agent.welcomed_at and not stream.done():
                await asyncio.sleep(0.005)
            free.release()
            await stream

    async def introduce() -> None:
        for agent in agents:
            await free.acquire()
            streams.create_task(serve(agent))

    async with asyncio.TaskGroup() as streams:
        streams.create_task(introduce())
        while not all(agent.heard_at for agent in agents):
            await asyncio.sleep(0.05)
        print(json.dumps({"registered_s": max(agent.heard_at for agent in agents) - began}), flush=True)


# --- the master ---


@dataclass
class Result:
    """What was measured with so many nodes; CPU is the master's, in seconds, and memory its resident set."""

    nodes: int
    registered_s: float
    registered_cpu_s: float
    heartbeat_core: float
    heartbeat_ms: float
    rss_mib: float
    filled_rss_mib: float
    lost_s: float
    lost_cpu_s: float


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds that the process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def nodes_down(port: int) -> int:
    """Return how many nodes the master counts as silent."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60.0) as page:
        lines = page.read().decode().splitlines()
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith('ebbtide_nodes{') and '"down"' in line)


async def submit(stub: Any, count: int) -> None:
    """Have so many elastic jobs wait."""
    spec = job_pb2.JobSpec(command=["train"], workdir="/", gpus_min=ONE, gpus_max=EIGHT, grace_s=30.0)
    for first in range(0, count, TASKS):
        wanted = client_pb2.SubmitRequest(spec=spec)
        wanted.tasks.extend(client_pb2.ArrayTask(index=index) for index in range(min(TASKS, count - first)))
        await stub.Submit(wanted, timeout=120.0)


async def measure(home: Path, nodes: int, waiting: int, seconds: float, port: int) -> Result:
    """Start a master and its nodes, and measure."""
    master = Master(home)
    agents = None
    try:
        address = await master.address()
        process = psutil.Process(master.process.pid)
        before = cpu_s(process)
        agents = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--fleet", address, master.token, str(nodes), stdout=subprocess.PIPE
        )
        assert agents.stdout is not None
        registered = json.loads(await agents.stdout.readline())
        registered_cpu_s = cpu_s(process) - before
        await asyncio.sleep(SETTLE_S)
        before, began = cpu_s(process), time.monotonic()
        await asyncio.sleep(seconds)
        used, took = cpu_s(process) - before, time.monotonic() - began
        rss = process.memory_info().rss
        async with reach(address, master.token) as channel:
            await submit(client_pb2_grpc.ClientServiceStub(channel), waiting)
        filled = process.memory_info().rss
        before = cpu_s(process)
        agents.kill()
        silent_at = time.monotonic()
        await asyncio.sleep(SILENCE_S)
        while await asyncio.to_thread(nodes_down, port) < nodes:
            await asyncio.sleep(0.1)
        return Result(
            nodes=nodes,
            registered_s=registered["registered_s"],
            registered_cpu_s=registered_cpu_s,
            heartbeat_core=used / took,
            heartbeat_ms=1000 * used / took / (nodes / 2.0),
            rss_mib=rss / 2**20,
            filled_rss_mib=filled / 2**20,
            lost_s=time.monotonic() - silent_at - SILENCE_S,
            lost_cpu_s=cpu_s(process) - before,
        )
    finally:
        if agents is not None:
            with suppress(ProcessLookupError):
                agents.kill()
            await agents.wait()
        master.kill()


def main() -> int:
    """Measure each number of nodes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--waiting", type=int, default=WAITING)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--fleet", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fleet:
        address, token, count = options.fleet
        asyncio.run(fleet(address, token, int(count)))
        return 0
    for nodes in options.nodes:
        with tempfile.TemporaryDirectory(prefix="ebb-scale-") as folder:
            port = free_port()
            (Path(folder) / "ebbtide.toml").write_text(f"[limits]\ncalls_per_s = 100000\n[metrics]\nport = {port}\n")
            result = asyncio.run(measure(Path(folder), nodes, options.waiting, options.seconds, port))
        print(json.dumps(asdict(result)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
