"""A whole agent on the C stub: real binding, real supervisor, a job that says itself what it holds of its GPU."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from ebbtide_agent.processes import procfs
from ebbtide_protos.v1 import agent_pb2
from ebbtide_protos.v1.job_pb2 import GpuAllocation, JobSpec, Share

from tests.agent.gpu.stub import library
from tests.agent.gpu.stub.state import GIB
from tests.agent.link.conftest import Master
from tests.proof import publish

_AGENT = """
import sys
from pathlib import Path
from ebbtide_agent.accounts.accounts import AllowedAccounts
from ebbtide_agent.main import AgentOptions, run
sys.exit(run(AgentOptions(home=Path(sys.argv[1]), name="n1", gpus="auto", warm=0, allowed=AllowedAccounts(0))))
"""
# A process of its own tells the driver, in place of CUDA, what it holds; then it works until it is told to end.
_JOB = """
import json, os, signal, sys, time
pid, uuid = os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]
starttime = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
entry = {"pid": pid, "starttime": starttime, "gpus": {uuid: 3 << 30}}
path = f"{sys.argv[1]}/processes/{pid}.json"
open(path + ".draft", "w").write(json.dumps(entry))
os.rename(path + ".draft", path)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def agent(tmp_path, state, nvml_stub, monkeypatch):
    """An agent over two GPUs of the stub; ended after the test, with whatever it launched."""
    state.describe({"uuid": "GPU-a"}, {"uuid": "GPU-b"}, driver="580.65.06", cuda="13.0")
    monkeypatch.setenv("EBB_STUB_NVML", str(state.directory))
    library.found_by_children(nvml_stub, monkeypatch)
    agent = subprocess.Popen([sys.executable, "-c", _AGENT, str(tmp_path)], stderr=subprocess.PIPE, text=True)
    yield agent
    for pid in _registered(state):
        os.kill(pid, signal.SIGKILL)
    agent.terminate()
    _, log = agent.communicate(timeout=20)
    assert agent.returncode == 0, log
    assert "Traceback" not in log


async def test_an_agent_on_the_stub_runs_a_job_sees_a_stranger_and_outlives_its_driver(tmp_path, state, agent):
    async with _master(tmp_path) as master:
        conversation = await master.attached()
        hello = await conversation.welcome(heartbeat_s=0.05)
        assert hello.gpu_backend == "nvml"
        assert [(gpu.uuid, gpu.mem_bytes, gpu.healthy) for gpu in hello.gpus] == [
            ("GPU-a", 16 * GIB, True),
            ("GPU-b", 16 * GIB, True),
        ]
        await conversation.send(launch=_launch(state, tmp_path))
        job = await _phase(conversation, agent_pb2.ATTEMPT_PHASE_RUNNING)
        stranger = state.start({"GPU-b": GIB})
        seen = await _heartbeat(conversation, lambda *gpus: all(gpu.processes for gpu in gpus))
        ((ours,), (foreign,)) = (gpu.processes for gpu in seen)
        assert (ours.job_id, ours.attempt, ours.mem_bytes) == ("17", 1, 3 * GIB)
        assert (foreign.job_id, foreign.pid, foreign.mem_bytes) == ("", stranger.pid, GIB)

        state.faults(errors={"*": {"nvmlDeviceGetMemoryInfo": 18}})
        offline = await _heartbeat(conversation, lambda *gpus: not any(gpu.healthy for gpu in gpus))
        assert {gpu.unhealthy_reason for gpu in offline} == {"the driver was upgraded under us: reload it or reboot"}
        assert procfs.read_stat(job.pid).alive

        state.faults()
        await _heartbeat(conversation, lambda *gpus: all(gpu.healthy for gpu in gpus))
        await conversation.send(stop=agent_pb2.Stop(job_id="17", attempt=1, grace_s=10))
        freed = await _phase(conversation, agent_pb2.ATTEMPT_PHASE_FREED)
        assert list(freed.dirty_gpus) == []


def _registered(state) -> list[int]:
    """Pids of the jobs that live."""
    entries = [json.loads(path.read_text()) for path in (state.directory / "processes").glob("*.json")]
    return [entry["pid"] for entry in entries if _starttime(entry["pid"]) == entry["starttime"]]


def _starttime(pid: int) -> int | None:
    stat = procfs.read_stat(pid)
    return None if stat is None or not stat.alive else stat.starttime


def _launch(state, home):
    whole = Share(numerator=1, denominator=1)
    return agent_pb2.Launch(
        job_id="17",
        attempt=1,
        spec=JobSpec(
            command=[sys.executable, "-Sc", _JOB, str(state.directory)],
            workdir=str(home),
            gpus_min=whole,
            gpus_max=whole,
            cpus=1,
            grace_s=10,
            signal="SIGTERM",
        ),
        gpus=[GpuAllocation(uuid="GPU-a", share=whole, mem_bytes=16 * GIB)],
        num_nodes=1,
        world_size=1,
    )


@asynccontextmanager
async def _master(home):
    """A master that the agent finds."""
    master = Master(home)
    await master.start()
    publish(home)
    try:
        yield master
    finally:
        await master.stop()


async def _phase(conversation, phase):
    while (status := await conversation.receive("status")).phase != phase:
        assert status.phase != agent_pb2.ATTEMPT_PHASE_REFUSED, status.refusal
    return status


async def _heartbeat(conversation, holds):
    """The GPUs of the first heartbeat of which this holds."""
    async with asyncio.timeout(30):
        while not holds(*(gpus := (await conversation.receive("heartbeat")).gpus)):
            pass
    return gpus
