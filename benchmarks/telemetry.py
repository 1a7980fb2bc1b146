"""What it costs to look at 8 GPUs every 2 s: CPU of an idle agent and of the process in which it asks NVML.

    python benchmarks/telemetry.py              # fake GPUs, then the C stub of NVML; 60 s each
    python benchmarks/telemetry.py --seconds 20

Every GPU holds one process, of which the agent must find out whose it is. Beside the agent on the stub, a bare loop
makes the same calls with `nvidia-ml-py`: their ratio is what Ebbtide adds. The master is a stand-in that only listens.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
from ebbtide_agent.processes import procfs
from ebbtide_protos import home_socket
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc

REPOSITORY: Final = Path(__file__).resolve().parents[1]
GPUS: Final = 8
POLL_S: Final = 2.0
MARK_PERCENT: Final = 1.0
WARM_UP_S: Final = 6.0
"""Imports and the first answers of a driver are paid once."""
PROFILE: Final = f"{GPUS}xA100-80GB"
AGENT: Final = """
import sys
from pathlib import Path
from ebbtide_agent.main import AgentOptions, run
sys.exit(run(AgentOptions(home=Path(sys.argv[1]), name="n1", gpus=sys.argv[2], warm=0, master="unix:" + sys.argv[1])))
"""
BARE: Final = """
import sys, time
import pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
while True:
    for handle in handles:
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle)
        pynvml.nvmlDeviceGetUtilizationRates(handle)
        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
        pynvml.nvmlDeviceGetPowerUsage(handle)
    time.sleep(float(sys.argv[1]))
"""


@dataclass(frozen=True)
class Cost:
    """CPU of a process, and of all below it, in percent of one core."""

    name: str
    own: float
    below: float

    @property
    def percent(self) -> float:
        """Of both."""
        return self.own + self.below

    def __str__(self) -> str:
        return f"{self.name:<24}{self.percent:6.2f} % of a core: itself {self.own:.2f}, below it {self.below:.2f}"


class Listener(agent_pb2_grpc.AgentServiceServicer):
    """Welcomes an agent and counts its heartbeats."""

    def __init__(self) -> None:
        self.heartbeats = 0
        self.gpus: list[str] = []

    def Attach(self, messages: Iterator[Any], context: Any) -> Iterator[Any]:
        for message in messages:
            match message.WhichOneof("body"):
                case "hello":
                    self.gpus = [gpu.uuid for gpu in message.hello.gpus]
                    welcome = agent_pb2.Welcome(cluster_id="benchmark", epoch=1, heartbeat_s=POLL_S)
                    yield agent_pb2.MasterMessage(welcome=welcome)
                case "heartbeat":
                    self.heartbeats += 1


@contextmanager
def listening(home: Path) -> Iterator[Listener]:
    """A master that the home's agent finds."""
    listener = Listener()  # type: ignore[abstract]
    server = grpc.server(futures.ThreadPoolExecutor(2))
    agent_pb2_grpc.add_AgentServiceServicer_to_server(listener, server)
    with home_socket.made(home) as target:
        server.add_insecure_port(target)
        server.start()
        try:
            yield listener
        finally:
            server.stop(grace=None).wait()


@contextmanager
def running(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is ended at the end."""
    process = subprocess.Popen(
        [sys.executable, *command], env={**os.environ, **environment}, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def occupy(state: Path, closing: ExitStack) -> None:
    """Let one process hold something of each GPU."""
    for gpu in json.loads((state / "gpus.json").read_text())["gpus"]:
        process = closing.enter_context(running("-Sc", "input()"))
        stat = procfs.read_stat(process.pid)
        assert stat is not None
        entry = {"pid": process.pid, "starttime": stat.starttime, "gpus": {gpu["uuid"]: 1 << 30}}
        (state / "processes" / f"{process.pid}.json").write_text(json.dumps(entry))


def cpu_s(pid: int) -> tuple[float, float]:
    """CPU time of the process, and of all below it, those that have ended too."""
    process = psutil.Process(pid)
    own = process.cpu_times()
    below = (sum(child.cpu_times()[:4]) for child in process.children(recursive=True))
    return own.user + own.system, own.children_user + own.children_system + sum(below)


def measure(name: str, pid: int, seconds: float) -> Cost:
    """What the process uses from now on."""
    time.sleep(WARM_UP_S)
    began, before = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    elapsed_s = time.monotonic() - began
    own, below = (100 * (now - then) / elapsed_s for now, then in zip(cpu_s(pid), before, strict=True))
    return Cost(name, own, below)


def agent_cost(name: str, gpus: str, state: Path, home: Path, seconds: float, **environment: str) -> Cost:
    """What an idle agent costs that looks at these GPUs."""
    with ExitStack() as closing:
        listener = closing.enter_context(listening(home))
        agent = closing.enter_context(running("-c", AGENT, str(home), gpus, **environment))
        while len(listener.gpus) < GPUS:
            assert agent.poll() is None, "the agent has ended"
            time.sleep(0.05)
        occupy(state, closing)
        cost = measure(name, agent.pid, seconds)
        assert listener.heartbeats >= seconds / POLL_S, f"only {listener.heartbeats} heartbeats came"
    return cost


def bare_cost(seconds: float, **environment: str) -> Cost:
    """What the same calls cost without Ebbtide."""
    with running("-c", BARE, str(POLL_S), **environment) as loop:
        return measure("bare nvidia-ml-py loop", loop.pid, seconds)


def on_stub(directory: Path, state: Path, seconds: float) -> list[Cost]:
    """Both on the C stub of NVML, over the state directory that the fake has set up."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.agent.gpu.stub.library import compile_library

    library = compile_library(directory)
    environment = {"LD_LIBRARY_PATH": str(library.parent), "EBB_STUB_NVML": str(state)}
    home = directory / "stub"
    home.mkdir()
    ours = agent_cost("agent, C stub of NVML", "auto", state, home, seconds, **environment)
    with ExitStack() as closing:
        occupy(state, closing)
        return [ours, bare_cost(seconds, **environment)]


def main() -> int:
    """Measure, say so, and return 1 if the mark was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each is measured (60)")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="ebb-telemetry-") as name:
        home = Path(name)
        state = home / "nodes" / "n1" / "gpus"
        costs = [agent_cost("agent, fake GPUs", PROFILE, state, home, seconds)]
        costs += on_stub(home, state, seconds)
    print(*costs, sep="\n")
    bare = costs[-1].percent
    print(f"agent by bare loop       {costs[-2].percent / bare if bare else float('inf'):6.1f}")
    print(f"mark: under {MARK_PERCENT:g} % of a core with {GPUS} GPUs at a poll every {POLL_S:g} s")
    return int(any(cost.percent >= MARK_PERCENT for cost in costs))


if __name__ == "__main__":
    sys.exit(main())
