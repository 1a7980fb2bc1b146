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
import gc
import itertools
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import grpc
import psutil
from ebbtide_agent.link.deltas import Deltas
from ebbtide_core.model.spec import JobSpec
from ebbtide_core.model.types import WHOLE, JobClass, SuspendMode
from ebbtide_master.main import COLLECTED
from ebbtide_master.nodes.agents import NODE_SILENCE_S
from ebbtide_master.nodes.heartbeats import interval_s
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc, client_pb2, client_pb2_grpc, job_pb2
from masters import GIB, GPUS, Master, Node, reach, status, until
from policy_pass import FullCluster

NODES: Final = (1000, 2000, 5000)
WAITING: Final = 10_000
SECONDS: Final = 30.0
AT_ONCE: Final = 64
"""Agents that introduce themselves at the same time."""
AGAIN_S: Final = 1.0
"""Seconds until an agent whose stream broke opens another one."""
BEATS: Final = 101
"""Heartbeats in the script of an agent."""
FLEETS: Final = 2
"""Processes that the agents are in."""
ENDS: Final = 500
"""Passes that are timed, each after the end of a job."""
POLICY: Final = "fitgpp"
TASKS: Final = 1000
SETTLE_S: Final = 5.0
MARKS: Final = {
    "heartbeat_core": (0.5, "cores"),
    "registered_s": (10.0, "s"),
    "lost_s": (5.0, "s"),
    "pass_p99_ms": (10.0, "ms"),
    "rss_with_jobs_mib": (1024.0, "MiB"),
}
"""What each figure should be below, with 5,000 nodes on two cores."""


# --- the agents ---


class Script:
    """What every agent says in turn, written down once: the heartbeats of a node whose GPUs are busy.

    An agent's own heartbeats differ from these only in its name, which is as long as the one in here, and a number.
    With ``whole``, they are those of an agent from before heartbeats were deltas.
    """

    NAME: Final = "n00000"

    def __init__(self, whole: bool) -> None:
        dice, deltas = random.Random(1), Deltas()
        self.beats = list[bytes]()
        for _ in range(BEATS):
            beat = agent_pb2.Heartbeat(gpus=[_reading(f"{self.NAME}-{index}", dice) for index in range(GPUS)])
            if not whole:
                deltas.shorten(beat)
            self.beats.append(beat.SerializeToString())

    def beat(self, name: str, number: int) -> agent_pb2.AgentMessage:
        """Return a node's heartbeat of that number, which begins with 1; the first one is complete."""
        turn = number - 1 if number <= BEATS else 1 + (number - 2) % (BEATS - 1)
        heartbeat = agent_pb2.Heartbeat.FromString(self.beats[turn].replace(self.NAME.encode(), name.encode()))
        heartbeat.beat = number
        return agent_pb2.AgentMessage(heartbeat=heartbeat)


def _reading(uuid: str, dice: random.Random) -> agent_pb2.GpuReading:
    return agent_pb2.GpuReading(
        uuid=uuid,
        mem_used_bytes=30 * GIB,
        utilisation=0.93 + 0.04 * dice.random(),
        healthy=True,
        mem_reserved_bytes=GIB // 2,
        temperature_c=60 + dice.randrange(3),
        power_w=300.0 + 20.0 * dice.random(),
        idle_bytes=0,
        processes=[agent_pb2.GpuProcess(pid=4711, mem_bytes=30 * GIB, job_id="1", attempt=1)],
    )


@dataclass
class Agent(Node):
    """A node that sends heartbeats, and tells nothing else but what becomes of its attempts."""

    script: Script = field(kw_only=True)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    welcomed: asyncio.Event = field(default_factory=asyncio.Event)
    heard_at: float = 0.0
    pause_s: float = 0.0

    async def attach(self, channel: Any) -> None:
        """Serve one stream until it breaks."""
        call: Any = agent_pb2_grpc.AgentServiceStub(channel).Attach()
        await call.write(agent_pb2.AgentMessage(hello=self.hello()))
        beating = None
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                match message.WhichOneof("body"):
                    case "welcome":
                        self.welcomed.set()
                        self.pause_s = message.welcome.heartbeat_s
                        beating = asyncio.create_task(self._beat(call))
                    case "heard":
                        self.heard_at = self.heard_at or time.monotonic()
                        self.pause_s = message.heard.heartbeat_s or self.pause_s
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

    async def _beat(self, call: Any) -> None:
        # The second heartbeat comes after a part of the pause, for agents do not start all at once.
        due = time.monotonic() - self.pause_s * random.Random(self.name).random()
        for number in itertools.count(1):
            async with self.writing:
                await call.write(self.script.beat(self.name, number))
            due += self.pause_s
            await asyncio.sleep(due - time.monotonic())


async def fleet(address: str, token: str, numbers: range, whole: bool) -> None:
    """Be these nodes until the process is killed; print when all were heard, in seconds after the first Hello."""
    script = Script(whole)
    agents = [Agent(f"n{number:05}", script=script) for number in numbers]
    free, began = asyncio.Semaphore(AT_ONCE), time.monotonic()

    async def serve(agent: Agent) -> None:
        async with reach(address, token) as channel:
            while True:  # as agents do: one whose Hello a busy machine brings too late comes again
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await agent.attach(channel)
                await asyncio.sleep(AGAIN_S)

    async def introduce() -> None:
        for agent in agents:
            await free.acquire()
            streams.create_task(serve(agent))
            streams.create_task(agent.welcomed.wait()).add_done_callback(lambda _: free.release())

    async with asyncio.TaskGroup() as streams:
        streams.create_task(introduce())
        await until(lambda: all(agent.heard_at for agent in agents), 600.0)
        print(json.dumps({"registered_s": max(agent.heard_at for agent in agents) - began}), flush=True)


# --- the passes ---


class ElasticCluster(FullCluster):
    """A cluster that is full of elastic jobs, while more of them wait."""

    def __init__(self, policy: str, nodes: int, waiting: int) -> None:
        self.begin(policy, nodes, 0)
        for _ in range(nodes * GPUS // 2 + waiting):
            self.submit()
        self.settle()
        self.fill(waiting)

    def submit(self) -> None:
        """Submit an elastic job of a random user and size."""
        least, most = self.random.choice([(1, 2), (1, 8), (2, 8), (4, 8)])
        self.submit_job(
            JobSpec(
                command=("train",),
                workdir="/",
                gpus_min=least * WHOLE,
                gpus_max=most * WHOLE,
                job_class=JobClass.BEST_EFFORT,
                grace_s=30.0,
                suspend=SuspendMode.CHECKPOINT,
            )
        )


@dataclass(frozen=True, slots=True)
class Passes:
    """CPU milliseconds of a pass after the end of a job, and what was there."""

    pass_p50_ms: float
    pass_p99_ms: float
    running: int
    waiting: int


def passes(nodes: int, waiting: int) -> Passes:
    """Time passes of the policy; each follows the end of a job, in place of which another one is submitted."""
    gc.set_threshold(*COLLECTED)  # as in the master
    cluster = ElasticCluster(POLICY, nodes, waiting)
    cuts = quantiles([seconds * 1e3 for seconds in cluster.ends(ENDS)], n=100)
    return Passes(cuts[49], cuts[98], len(cluster.running), cluster.waiting)


# --- the master ---


@dataclass(frozen=True, slots=True)
class Load:
    """What a master was seen to need for so many nodes; CPU is its own."""

    nodes: int
    registered_s: float
    registered_cpu_s: float
    heartbeat_core: float
    """The share of a core that it uses while nothing comes but heartbeats."""
    heartbeat_ms: float
    rss_mib: float
    rss_with_jobs_mib: float
    """The same once jobs wait; all of them are elastic."""
    lost_s: float
    """Until all nodes were lost, beyond the seconds of silence."""
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


def lost(home: Path) -> int:
    """Return how many nodes the master has said to be lost, in its log."""
    return (home / "master.log").read_text().count(" lost: silent for ")


async def submit(stub: Any, least: int, count: int) -> None:
    """Submit so many jobs of ``least`` to 8 GPUs."""
    sizes = [job_pb2.Share(numerator=size, denominator=1) for size in (least, GPUS)]
    spec = job_pb2.JobSpec(command=["train"], workdir="/", gpus_min=sizes[0], gpus_max=sizes[1], grace_s=30.0)
    for first in range(0, count, TASKS):
        wanted = client_pb2.SubmitRequest(spec=spec)
        wanted.tasks.extend(client_pb2.ArrayTask(index=index) for index in range(min(TASKS, count - first)))
        await stub.Submit(wanted, timeout=120.0)


async def measured(home: Path, nodes: int, waiting: int, seconds: float, whole: bool) -> Load:
    """Start a master and its nodes, and measure."""
    master, fleets = Master(home), list[asyncio.subprocess.Process]()
    try:
        address = await master.address()
        process = psutil.Process(master.process.pid)
        before = cpu_s(process)
        for number in range(FLEETS):
            command = [sys.executable, __file__, "--fleet", address, master.token, str(number), "--nodes", str(nodes)]
            command += ["--whole"] * whole
            fleets.append(await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE))
        said = [json.loads(await each.stdout.readline()) for each in fleets if each.stdout is not None]
        registered_cpu_s = cpu_s(process) - before
        await asyncio.sleep(SETTLE_S)
        before, began = cpu_s(process), time.monotonic()
        await asyncio.sleep(seconds)
        core = (cpu_s(process) - before) / (time.monotonic() - began)
        rss = process.memory_info().rss
        async with reach(address, master.token) as channel:
            stub = client_pb2_grpc.ClientServiceStub(channel)
            await submit(stub, GPUS, nodes)  # one has all GPUs of each node, so that those that come later wait
            await submit(stub, 1, waiting)
        with_jobs = process.memory_info().rss
        before = cpu_s(process)
        for each in fleets:
            each.kill()
        silent_at = time.monotonic()
        await asyncio.sleep(NODE_SILENCE_S)
        while lost(home) < nodes:
            await asyncio.sleep(0.1)
        async with reach(address, master.token) as channel:  # whatever is before it in the queue is done by then
            await client_pb2_grpc.ClientServiceStub(channel).ListJobs(client_pb2.ListJobsRequest(limit=1))
        lost_s = time.monotonic() - silent_at - NODE_SILENCE_S
        return Load(
            nodes=nodes,
            registered_s=max(each["registered_s"] for each in said),
            registered_cpu_s=registered_cpu_s,
            heartbeat_core=core,
            heartbeat_ms=1e3 * core * interval_s(nodes) / nodes,
            rss_mib=rss / 2**20,
            rss_with_jobs_mib=with_jobs / 2**20,
            lost_s=lost_s,
            lost_cpu_s=cpu_s(process) - before,
        )
    finally:
        for each in fleets:
            with suppress(ProcessLookupError):
                each.kill()
            await each.wait()
        master.kill()


def loaded(nodes: int, waiting: int, seconds: float, whole: bool) -> Load:
    """Do the same with a master of its own."""
    with tempfile.TemporaryDirectory(prefix="ebb-scale-") as folder:
        (Path(folder) / "ebbtide.toml").write_text("[limits]\ncalls_per_s = 100000\njobs_per_s = 1000000\n")
        return asyncio.run(measured(Path(folder), nodes, waiting, seconds, whole))


# --- the whole ---


def draw(found: list[dict[str, float]], path: Path) -> None:
    """Draw the figures against the number of nodes, each with the bound that it should be below."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(MARKS), figsize=(4 * len(MARKS), 3.2), layout="constrained")
    for panel, (name, (mark, unit)) in zip(panels, MARKS.items(), strict=True):
        panel.plot([each["nodes"] for each in found], [each[name] for each in found], marker="o")
        panel.axhline(mark, linestyle="--", color="grey")
        panel.set(title=f"{name} ({unit})", xlabel="nodes of 8 GPUs", ylim=(0, None), xlim=(0, None))
    figure.savefig(path)


def main() -> int:
    """Measure each number of nodes; return 1 if a mark is missed with any of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES)
    parser.add_argument("--waiting", type=int, default=WAITING, help="jobs that wait (%(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for which heartbeats are measured")
    parser.add_argument("--whole", action="store_true", help="agents that send whole heartbeats")
    parser.add_argument("--only", choices=("passes", "load"), help="measure only this")
    parser.add_argument("--plot", type=Path, help="draw the figures into this file")
    parser.add_argument("--fleet", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.fleet:
        address, token, number = given.fleet
        asyncio.run(fleet(address, token, range(int(number), given.nodes[0], FLEETS), given.whole))
        return 0
    found, missed = list[dict[str, float]](), False
    for nodes in given.nodes:
        figures: dict[str, float] = {"nodes": nodes}
        if given.only != "passes":
            figures |= asdict(loaded(nodes, given.waiting, given.seconds, given.whole))
        if given.only != "load":
            figures |= asdict(passes(nodes, given.waiting))
        found.append(figures)
        print(*(f"{name}: {value:,.2f}" for name, value in figures.items()), sep=", ", flush=True)
        over = [name for name, (mark, _) in MARKS.items() if figures.get(name, 0.0) >= mark]
        print(f"marks missed: {', '.join(over) or 'none'}", flush=True)
        missed = missed or bool(over)
    if given.plot:
        draw(found, given.plot)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
