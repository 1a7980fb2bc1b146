"""What a job's processes hold of fake GPUs: as much as they say, and no more than there is."""

import json
import sys
from pathlib import Path

import ebbtide
import pytest
from ebbtide_agent.gpu.fake import FakeNvml
from ebbtide_protos.v1 import job_pb2

from tests.agent.supervisor.node import GIB, gpus

CODE = """
import os, sys, time
sys.path.insert(0, {sdk!r})
import ebbtide
GIB = 1 << 30
def say(what):
    print(what, flush=True)
{body}
time.sleep(600)
"""


@pytest.fixture
def driver(disk):
    """NVML of two GPUs of 8 GiB."""
    directory = disk / "gpus"
    (directory / "processes").mkdir(parents=True)
    described = [{"uuid": f"GPU-{n}", "model": "A", "mem_bytes": 8 * GIB, "idle_bytes": 0} for n in range(2)]
    (directory / "gpus.json").write_text(json.dumps({"gpus": described}))
    return FakeNvml(directory)


def job(body: str) -> list[str]:
    sdk = str(Path(ebbtide.__file__).parents[1])
    return [sys.executable, "-S", "-c", CODE.format(sdk=sdk, body=body)]


def held(driver, uuid: str) -> dict[int, int | None]:
    listed = driver.nvmlDeviceGetComputeRunningProcesses_v3(driver.nvmlDeviceGetHandleByUUID(uuid))
    return {process.pid: process.usedGpuMemory for process in listed}


async def test_a_process_holds_what_it_said_when_the_call_returns(agent, driver):
    async with agent(fake_gpus=True) as node:
        body = (
            "say(ebbtide.fake_allocate(3 * GIB))\nsys.stdin.close()\nsay(ebbtide.fake_allocate(GIB, gpu=1))\nsay('set')"
        )
        await node.launch(job(body), gpus=gpus(2), gpu_mem_bytes=2 * GIB)
        pid = (await node.running(line="set")).pid
        assert node.log() == "True\nTrue\nset\n"
        assert held(driver, "GPU-0") == {pid: 3 * GIB}
        assert held(driver, "GPU-1") == {pid: GIB}
        await node.stop(0.0)
        assert held(driver, "GPU-0") == {}


async def test_more_than_is_free_is_out_of_memory_and_changes_nothing(agent, driver):
    body = """
try:
    ebbtide.fake_allocate(9 * GIB, gpu=0)
except RuntimeError as error:
    say(f"{type(error).__name__}: {error}")
"""
    async with agent(fake_gpus=True) as node:
        await node.launch(job(body), gpus=gpus(1), gpu_mem_bytes=2 * GIB)
        pid = (await node.running(line="OutOfMemory")).pid
        said = (
            "CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 8.00 GiB"
        )
        assert said in node.log()
        assert held(driver, "GPU-0") == {pid: 2 * GIB}


async def test_a_child_of_the_launched_process_holds_memory_of_its_own(agent, driver):
    body = """
child = os.fork()
if child == 0:
    say(ebbtide.fake_allocate(5 * GIB))
"""
    async with agent(fake_gpus=True) as node:
        await node.launch(job(body), gpus=gpus(1), gpu_mem_bytes=GIB)
        pid = (await node.running(line="True")).pid
        (child,) = held(driver, "GPU-0").keys() - {pid}
        assert held(driver, "GPU-0") == {pid: GIB, child: 5 * GIB}


async def test_a_rank_holds_memory_on_its_own_gpu(agent, driver):
    body = "say(ebbtide.fake_allocate((1 + int(os.environ['LOCAL_RANK'])) * GIB))"
    async with agent(fake_gpus=True) as node:
        await node.launch(job(body), gpus=gpus(2), launch=job_pb2.LAUNCH_MODE_DDP)
        await node.until(lambda: node.log().count("True") == 2)
        assert [list(held(driver, uuid).values()) for uuid in ("GPU-0", "GPU-1")] == [[GIB], [2 * GIB]]


async def test_a_gpu_that_the_job_does_not_have_is_refused(agent, driver):
    body = """
try:
    ebbtide.fake_allocate(GIB, gpu=1)
except ValueError as error:
    say(error)
"""
    async with agent(fake_gpus=True) as node:
        await node.launch(job(body), gpus=gpus(1))
        await node.running(line="gpu must be 0 to 0, got 1")


async def test_on_real_gpus_nothing_happens(agent):
    async with agent() as node:
        await node.launch(job("say(ebbtide.fake_allocate(GIB))"), gpus=gpus(1))
        await node.running(line="False")
