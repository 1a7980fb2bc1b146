"""When the GPUs of an attempt that ended count as free."""

import asyncio
import os
import signal
import time
from functools import partial

import pytest
from ebbtide_agent.attempts.release import Release
from ebbtide_agent.gpu.backend import GpuReading
from ebbtide_agent.gpu.nvml import NvmlBackend
from ebbtide_agent.gpu.reader import GpuReader
from ebbtide_agent.gpu_use.attribution import Attribution
from ebbtide_agent.gpu_use.freeing import Freeing
from ebbtide_agent.gpu_use.idle_use import TOLERANCE_BYTES, IdleMemory
from ebbtide_protos.v1.job_pb2 import GpuAllocation, Share

from tests.agent.gpu import hand_nvml
from tests.agent.gpu.hand_nvml import HandNvml

GIB = 1 << 30
JOB = ("17", 1)
GONE = 2**22 + 1  # above every pid the kernel gives


@pytest.fixture
def immortal(monkeypatch):
    """Processes that no signal reaches, as if they hung in the driver."""
    monkeypatch.setattr("ebbtide_machine.process.Identity.signal", lambda *_: False)


class Attempts:
    """Records what is proven; `gpus` and `running` are set by the test."""

    def __init__(self) -> None:
        self.gpus: dict[tuple[str, int], tuple[GpuAllocation, ...]] = {}
        self.running: dict[tuple[str, int], tuple[int, ...]] = {}
        self.freed: dict[tuple[str, int], list[str]] = {}
        self.reasons: dict[str, str] = {}
        self.disk_full = False

    def pids(self):
        return self.running

    def is_over(self, job_id, attempt):
        return (job_id, attempt) in self.freed

    def note_freed(self, key, dirty):
        if self.disk_full:
            self.disk_full = False
            raise OSError("No space left on device")
        self.reasons |= dirty
        self.freed[key] = sorted(dirty)


class Bench:
    """Freeing over a backend."""

    def __init__(self, backend, idle_bytes=None, patience_s=10.0) -> None:
        self.attempts = Attempts()
        self.silent = False
        self.reader = GpuReader(backend)
        self.attribution = Attribution(self.attempts.pids)
        self.idle = IdleMemory()
        shown = (idle_bytes or {}).items()
        readings = {uuid: GpuReading(uuid, mem_used_bytes=used, processes=()) for uuid, used in shown}
        self.idle.learn(readings, held=(), now=0.0)
        self.freeing = Freeing(self.attempts.is_over, self.reader, self.attribution, self.idle, patience_s)

    def exited(self, key=JOB) -> Release:
        return Release(key, self.attempts.gpus[key], self, partial(self.attempts.note_freed, key))

    async def prove_free(self, key, allocation):
        if self.silent:
            self.silent = False
            raise RuntimeError("no answer")
        return await self.freeing.prove_free(key, allocation)

    async def outcome(self, key=JOB) -> list[str]:
        async with asyncio.timeout(30):
            while key not in self.attempts.freed:
                await asyncio.sleep(0.001)
        return self.attempts.freed[key]


def whole(*uuids):
    return tuple(GpuAllocation(uuid=uuid, share=Share(numerator=1, denominator=1)) for uuid in uuids)


def half(*uuids):
    return tuple(GpuAllocation(uuid=uuid, share=Share(numerator=1, denominator=2)) for uuid in uuids)


async def test_an_attempt_without_gpus_is_free_at_once(fake_node):
    bench = Bench(fake_node("1xT4").backend)
    bench.attempts.gpus[JOB] = ()
    bench.exited()
    assert await bench.outcome() == []


async def test_a_gpu_that_is_already_free_is_found_so_at_the_first_look():
    library = HandNvml()
    bench = Bench(NvmlBackend(library))
    bench.attempts.gpus[JOB] = whole("GPU-0", "GPU-1")
    looks = _count_calls(library, "nvmlDeviceGetMemoryInfo")
    bench.exited()
    assert await bench.outcome() == []
    assert looks == [0, 1]


@pytest.mark.parametrize("allocate", [whole, half])
async def test_an_attempt_is_freed_when_its_process_has_gone(fake_node, allocate, immortal):
    node = fake_node("2xT4")
    process = node.start({node.uuids[0]: 2 * GIB})
    bench = Bench(node.backend)
    bench.attempts.running[JOB] = (process.pid,)
    bench.attempts.gpus[JOB] = allocate(node.uuids[0])
    bench.exited()
    await asyncio.sleep(0.05)
    assert bench.attempts.freed == {}
    node.end(process)
    assert await bench.outcome() == []


async def test_memory_released_late_is_waited_for(fake_node):
    node = fake_node("2xT4")
    node.faults(release_after_s={node.uuids[1]: 0.4})
    process = node.start(dict.fromkeys(node.uuids, 2 * GIB))
    bench = Bench(node.backend)
    bench.attempts.gpus[JOB] = whole(*node.uuids)
    await bench.reader.read_all()
    node.end(process)
    ended = time.monotonic()
    bench.exited()
    assert await bench.outcome() == []
    assert time.monotonic() - ended >= 0.4


async def test_only_the_gpu_that_is_not_released_in_time_is_dirty(fake_node):
    node = fake_node("2xT4")
    stuck = node.uuids[1]
    node.faults(release_after_s={stuck: 60})
    process = node.start(dict.fromkeys(node.uuids, 2 * GIB))
    bench = Bench(node.backend, patience_s=0.2)
    bench.attempts.gpus[JOB] = whole(*node.uuids)
    await bench.reader.read_all()
    node.end(process)
    bench.exited()
    assert await bench.outcome() == [stuck]


async def test_a_gpu_that_is_lost_cannot_be_proven_free(fake_node):
    node = fake_node("2xT4")
    node.faults(lost=[node.uuids[0]])
    bench = Bench(node.backend, patience_s=0.05)
    bench.attempts.gpus[JOB] = whole(*node.uuids)
    bench.exited()
    assert await bench.outcome() == [node.uuids[0]]


async def test_memory_of_a_foreign_process_does_not_keep_a_gpu_from_being_free(fake_node):
    node = fake_node("1xT4")
    node.start({node.uuids[0]: 4 * GIB})
    bench = Bench(node.backend)
    bench.attempts.gpus[JOB] = whole(*node.uuids)
    bench.exited()
    assert await bench.outcome() == []


async def test_a_shared_gpu_is_free_though_its_other_job_goes_on(fake_node):
    node = fake_node("1xT4")
    neighbour, ours = (node.start({node.uuids[0]: GIB}) for _ in range(2))
    bench = Bench(node.backend)
    bench.attempts.running = {("18", 1): (neighbour.pid,), JOB: (ours.pid,)}
    bench.attempts.gpus[JOB] = half(*node.uuids)
    node.end(ours)
    bench.exited()
    assert await bench.outcome() == []


@pytest.mark.parametrize(("above_idle", "free"), [(TOLERANCE_BYTES, True), (TOLERANCE_BYTES + 1, False)])
async def test_an_exclusive_gpu_may_keep_half_a_gib_above_what_it_shows_when_idle(above_idle, free):
    library = HandNvml()
    idle = 300 << 20
    library.memory(0, used=idle + above_idle)
    bench = Bench(NvmlBackend(library), idle_bytes={"GPU-0": idle}, patience_s=0.02)
    bench.attempts.gpus[JOB] = whole("GPU-0")
    bench.exited()
    assert await bench.outcome() == ([] if free else ["GPU-0"])


async def test_a_dead_process_that_the_driver_still_lists_holds_its_memory():
    library = HandNvml()
    library.memory(0, used=4 * GIB)
    library.processes(0, (GONE, 4 * GIB))
    bench = Bench(NvmlBackend(library))
    bench.attempts.gpus[JOB] = whole("GPU-0")
    bench.exited()
    await asyncio.sleep(0.05)
    assert bench.attempts.freed == {}
    library.memory(0, used=4 << 20)
    library.processes(0)
    assert await bench.outcome() == []


async def test_without_memory_figures_the_processes_decide(immortal):
    library = HandNvml()
    for version in ("memory v2", "memory v1"):
        library.answer(version, 0, hand_nvml.NOT_SUPPORTED)
    library.processes(0, (os.getpid(), None))
    bench = Bench(NvmlBackend(library))
    bench.attempts.running[JOB] = (os.getpid(),)
    bench.attempts.gpus[JOB] = whole("GPU-0")
    bench.exited()
    await asyncio.sleep(0.05)
    assert bench.attempts.freed == {}
    library.processes(0)
    assert await bench.outcome() == []


async def test_with_neither_memory_nor_processes_nothing_is_proven():
    library = HandNvml()
    for function in ("memory v2", "memory v1", "nvmlDeviceGetComputeRunningProcesses_v3"):
        library.answer(function, 0, hand_nvml.NOT_SUPPORTED)
    bench = Bench(NvmlBackend(library), patience_s=0.02)
    bench.attempts.gpus[JOB] = whole("GPU-0")
    bench.exited()
    assert await bench.outcome() == ["GPU-0"]


async def test_a_full_disk_delays_the_proof_and_does_not_lose_it(fake_node, monkeypatch):
    monkeypatch.setattr("ebbtide_agent.attempts.release._NOTE_AGAIN_S", 0.01)
    bench = Bench(fake_node("1xT4").backend)
    bench.attempts.gpus[JOB] = ()
    bench.attempts.disk_full = True
    bench.exited()
    assert await bench.outcome() == []


async def test_a_question_that_fails_is_asked_again(fake_node, monkeypatch):
    monkeypatch.setattr("ebbtide_agent.attempts.release._ASK_AGAIN_S", 0.01)
    bench = Bench(fake_node("1xT4").backend)
    bench.attempts.gpus[JOB] = ()
    bench.silent = True
    bench.exited()
    assert await bench.outcome() == []


async def test_closing_leaves_the_unproven_for_the_next_agent(fake_node, immortal):
    node = fake_node("1xT4")
    ours = node.start({node.uuids[0]: GIB})
    bench = Bench(node.backend)
    bench.attempts.running = {JOB: (ours.pid,)}
    bench.attempts.gpus[JOB] = whole(*node.uuids)
    release = bench.exited()
    await asyncio.sleep(0.02)
    await release.close()
    assert bench.attempts.freed == {}


async def test_a_process_of_the_job_that_is_left_on_the_gpu_is_killed(fake_node):
    node = fake_node("1xT4")
    left = node.start({node.uuids[0]: 10 * GIB})
    bench = Bench(node.backend)
    bench.attempts.running[JOB] = (left.pid,)
    bench.attempts.gpus[JOB] = whole(*node.uuids)
    bench.exited()
    assert await bench.outcome() == []
    assert left.wait() == -signal.SIGKILL


async def test_nobody_elses_process_is_killed(fake_node):
    node = fake_node("1xT4")
    foreign, neighbour, ours = (node.start({node.uuids[0]: GIB}) for _ in range(3))
    bench = Bench(node.backend)
    bench.attempts.running = {("18", 1): (neighbour.pid,), JOB: (ours.pid,)}
    bench.attempts.gpus[JOB] = half(*node.uuids)
    bench.exited()
    assert await bench.outcome() == []
    assert ours.wait() == -signal.SIGKILL
    assert (foreign.poll(), neighbour.poll()) == (None, None)


async def test_memory_that_no_process_has_makes_a_shared_gpu_dirty_and_the_reason_says_so(fake_node):
    node = fake_node("1xT4")
    node.faults(release_after_s={node.uuids[0]: 60})
    neighbour, ours = node.start({node.uuids[0]: GIB}), node.start({node.uuids[0]: 3 * GIB})
    bench = Bench(node.backend, {node.uuids[0]: 16 << 20}, patience_s=0.05)
    bench.attempts.running = {("18", 1): (neighbour.pid,)}
    bench.attempts.gpus[JOB] = half(*node.uuids)
    await bench.reader.read_all()
    node.end(ours)
    bench.exited()
    assert await bench.outcome() == node.uuids
    assert bench.attempts.reasons == {node.uuids[0]: "3.0 GiB are in use, and no process has them"}


async def test_a_process_that_cannot_be_ended_makes_the_gpu_dirty_and_is_named(fake_node, immortal):
    node = fake_node("1xT4")
    ours = node.start({node.uuids[0]: GIB})
    bench = Bench(node.backend, patience_s=0.05)
    bench.attempts.running = {JOB: (ours.pid,)}
    bench.attempts.gpus[JOB] = whole(*node.uuids)
    bench.exited()
    assert await bench.outcome() == node.uuids
    assert bench.attempts.reasons == {node.uuids[0]: f"its process {ours.pid} does not end"}


async def test_a_gpu_that_is_lost_for_certain_is_told_at_once(fake_node):
    node = fake_node("2xT4")
    node.faults(lost=[node.uuids[0]])
    bench = Bench(node.backend, patience_s=1000.0)
    bench.attempts.gpus[JOB] = whole(*node.uuids)
    bench.exited()
    assert await bench.outcome() == [node.uuids[0]]
    assert bench.attempts.reasons == {node.uuids[0]: "the GPU is gone: GPU is lost"}


def _count_calls(library, function):
    calls = []
    answer = getattr(library, function)

    def counted(index, **options):
        calls.append(index)
        return answer(index, **options)

    setattr(library, function, counted)
    return calls
