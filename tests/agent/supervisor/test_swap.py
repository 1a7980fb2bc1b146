"""A running attempt leaves its GPU for host memory and comes back, under its supervisor, whatever else happens."""

import asyncio
import json
import math
import signal

from ebbtide_agent.attempts import backstop
from ebbtide_agent.gpu import fake
from ebbtide_agent.gpu.profiles import FakeGpu, Profile
from ebbtide_agent.processes import procfs
from ebbtide_protos.v1 import agent_pb2, job_pb2

from tests.agent.supervisor.node import EXITED, GIB, RUNNING, python

SWAPPED = agent_pb2.ATTEMPT_PHASE_SWAPPED
COUNT = """
import itertools, time
for step in itertools.count():
    print(f"step {step}", flush=True)
    time.sleep(0.01)
"""
SAVES = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(85)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""
QUITS = "import os, time\nprint('ready', flush=True)\nwhile not os.path.exists('may-quit'):\n    time.sleep(0.01)"


class Gpu:
    """The node's one fake GPU."""

    def __init__(self, disk):
        self.dir = disk / "gpus"
        fake.set_up(self.dir, Profile((FakeGpu("A", 8 * GIB),)), keep=False)
        self._nvml = fake.FakeNvml(self.dir)
        self._handle = self._nvml.nvmlDeviceGetHandleByIndex(0)
        self.uuid = self._handle.uuid

    def allocation(self):
        whole = job_pb2.Share(numerator=1, denominator=1)
        return (job_pb2.GpuAllocation(uuid=self.uuid, share=whole, mem_bytes=8 * GIB),)

    def pids(self):
        return [entry.pid for entry in self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._handle)]

    def fault(self, **calls):
        (self.dir / "faults.json").write_text(json.dumps({"driver": calls}))


async def start(node, gpu, code, line, **options):
    await node.launch(python(code), gpus=gpu.allocation(), gpu_mem_bytes=GIB, **options)
    return await node.running(line=line)


async def swap(node, grace_s=30.0, swaps=0):
    await node.attempts.swap("1", 1, grace_s, swaps)


async def out(node):
    await node.until(lambda: node.status().phase == SWAPPED)
    return node.status()


async def back(node, swaps=1):
    await node.attempts.resume("1", 1, swaps)
    await node.until(lambda: node.status().phase == RUNNING)
    return node.status()


def test_an_attempt_leaves_its_gpu_stands_still_and_goes_on_where_it_was(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            status = await start(node, gpu, COUNT, "step 3")
            await swap(node)
            away = await out(node)
            assert (away.swaps, away.swapped_bytes, gpu.pids()) == (1, GIB, [])
            assert procfs.read_stat(status.pid).stopped
            lines = node.log().count("\n")
            again = await back(node)
            assert (again.pid, again.swaps, gpu.pids()) == (status.pid, 1, [status.pid])
            await node.until(lambda: node.log().count("\n") > lines + 3)
            steps = [int(line.split()[1]) for line in node.log().splitlines()]
            assert steps == list(range(len(steps)))

    asyncio.run(scenario())


def test_the_file_of_a_job_that_ends_while_it_is_out_has_all_that_it_printed(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            await start(node, gpu, COUNT, "step", output=str(disk / "1.out"))
            await swap(node)
            await out(node)
            await node.stop(0.0)
            assert (disk / "1.out").read_text() == node.log()

    asyncio.run(scenario())


def test_it_may_leave_again_and_an_order_that_comes_twice_or_late_does_nothing(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            await start(node, gpu, COUNT, "step")
            await swap(node)
            await out(node)
            await swap(node)
            await node.attempts.resume("1", 1, 0)
            await back(node)
            await swap(node)  # for the first stay
            await swap(node, swaps=1)
            await node.until(lambda: node.status().swaps == 2)
            assert node.status().phase == SWAPPED

    asyncio.run(scenario())


def test_one_that_is_to_leave_while_it_comes_back_leaves_as_soon_as_it_is_there(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            await start(node, gpu, COUNT, "step")
            await swap(node)
            await out(node)
            await node.attempts.resume("1", 1, 1)
            await swap(node, swaps=1)
            await node.until(lambda: node.status().swaps == 2)
            assert (node.status().phase, gpu.pids()) == (SWAPPED, [])

    asyncio.run(scenario())


def test_one_whose_supervisor_hangs_is_killed_when_its_time_to_leave_is_over(disk, agent, monkeypatch):
    monkeypatch.setattr(backstop, "KILL_S", 0.3)
    monkeypatch.setattr(backstop, "END_S", 0.6)

    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            await start(node, gpu, COUNT, "step")
            node.supervisor().signal(signal.SIGSTOP)
            await swap(node, grace_s=0.2)
            status = await node.end()
            assert (status.phase, status.lost, gpu.pids()) == (EXITED, True, [])
            assert not node.processes()

    asyncio.run(scenario())


def test_one_that_has_left_in_time_may_stay_out_for_any_time(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            await start(node, gpu, COUNT, "step")
            [attempt] = node.attempts.supervised()
            await swap(node)
            assert attempt._backstop._late_s() > -60.0
            await out(node)
            assert attempt._backstop._late_s() == -math.inf
            await back(node)
            assert attempt._backstop._late_s() == -math.inf

    asyncio.run(scenario())


def test_a_swapped_attempt_outlives_its_agent(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(leave=True, fake_gpus=True) as node:
            await start(node, gpu, COUNT, "step")
            await swap(node)
            await out(node)
        async with agent(fake_gpus=True) as node:
            assert (await out(node)).swaps == 1
            assert (await back(node)).swaps == 1

    asyncio.run(scenario())


def test_a_job_that_cannot_be_swapped_gets_its_signal_and_the_rest_of_its_grace(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            await start(node, gpu, SAVES, "ready")
            gpu.fault(lock=801)
            await swap(node)
            status = await node.end()
            assert (status.exit.exit_code, status.exit.killed, status.exit.stop_requested) == (85, False, True)
            assert "saved" in node.log()
            assert status.exit.swap_failure == (
                "could not be moved out to host memory: the driver failed to lock (a fault of the fake): "
                "not supported for this process (801)"
            )

    asyncio.run(scenario())


def test_a_job_that_breaks_on_its_way_out_is_killed(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            await start(node, gpu, SAVES, "ready")
            gpu.fault(checkpoint="hang")
            await swap(node, grace_s=15.0)
            status = await node.end()
            assert (status.exit.signal, status.exit.killed) == (signal.SIGKILL, True)
            assert "did not answer within 15 s, in step 'checkpoint'" in status.exit.swap_failure
            assert "saved" not in node.log()

    asyncio.run(scenario())


def test_a_job_that_cannot_come_back_is_killed(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            await start(node, gpu, COUNT, "step")
            await swap(node)
            await out(node)
            gpu.fault(restore=2)
            await node.attempts.resume("1", 1, 1)
            status = await node.end()
            assert status.exit.signal == signal.SIGKILL
            assert status.exit.swap_failure.startswith(
                "could not be moved back to its GPU: the driver failed to restore"
            )
            assert "out of memory (2)" in status.exit.swap_failure

    asyncio.run(scenario())


def test_a_job_whose_driver_does_not_start_stays_out_and_says_why(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            await start(node, gpu, COUNT, "step")
            await swap(node)
            await out(node)
            gpu.fault(initialise=3)
            await node.attempts.resume("1", 1, 1)
            await node.until(lambda: node.status().swaps == 2)
            assert node.status().phase == SWAPPED
            assert "not initialized (3)" in node.status().swap_note
            gpu.fault()
            assert (await back(node, swaps=2)).swap_note == ""

    asyncio.run(scenario())


def test_cancelling_a_swapped_attempt_kills_it_at_once_for_it_hears_no_signal(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            await start(node, gpu, SAVES, "ready")
            await swap(node)
            await out(node)
            status = await node.stop(grace_s=60)
            assert (status.phase, status.exit.signal) == (EXITED, signal.SIGKILL)
            assert status.exit.swap_failure == "ended while it was swapped out"

    asyncio.run(scenario())


def test_a_swapped_attempt_whose_process_dies_says_that_it_was_out(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            status = await start(node, gpu, COUNT, "step")
            await swap(node)
            await out(node)
            [job] = [process for process in node.jobs() if process.pid == status.pid]
            job.signal(signal.SIGKILL)
            status = await node.end()
            assert status.exit.swap_failure == "ended while it was swapped out"

    asyncio.run(scenario())


def test_a_job_that_ends_while_it_is_being_swapped_has_ended_and_nothing_else(disk, agent):
    async def scenario():
        gpu = Gpu(disk)
        async with agent(fake_gpus=True) as node:
            await start(node, gpu, QUITS, "ready", workdir=str(disk))
            gpu.fault(lock="hang")
            await swap(node)
            (disk / "may-quit").touch()
            status = await node.end()
            assert (status.exit.exit_code, status.exit.signal, status.exit.swap_failure) == (0, 0, "")

    asyncio.run(scenario())
