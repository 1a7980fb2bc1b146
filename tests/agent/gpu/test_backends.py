"""One set of expectations for every backend, and what each has of its own."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pynvml
import pytest
from ebbtide_agent.gpu import fake, opening
from ebbtide_agent.gpu.backend import GpuProcess, NoGpus
from ebbtide_agent.gpu.nvml import NvmlBackend, NvmlUnavailable, has_real_gpus
from ebbtide_agent.gpu.profiles import parse_profile
from ebbtide_agent.processes import procfs

from tests.agent.gpu import hand_nvml
from tests.agent.gpu.hand_nvml import HandNvml

GIB = 1 << 30


class FakeWorld:
    """Two GPUs of the fake."""

    def __init__(self, node) -> None:
        self.node = node
        self.backend = node.backend

    def hold(self, index: int, mem_bytes: int) -> int:
        return self.node.start({self.node.uuids[index]: mem_bytes}).pid

    def lose(self, index: int) -> None:
        self.node.faults(lost=[self.node.uuids[index]])


class HandWorld:
    """Two GPUs of the hand-made library."""

    def __init__(self) -> None:
        self.library = HandNvml()
        self.backend = NvmlBackend(self.library)

    def hold(self, index: int, mem_bytes: int) -> int:
        self.library.memory(index, used=mem_bytes + (4 << 20))
        self.library.processes(index, (os.getpid(), mem_bytes))
        return os.getpid()

    def lose(self, index: int) -> None:
        for function in ("memory v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetUtilizationRates"):
            self.library.answer(function, index, hand_nvml.GPU_IS_LOST)


@pytest.fixture(params=["fake", "by hand"])
def world(request, fake_node):
    return FakeWorld(fake_node("2xRTX3090")) if request.param == "fake" else HandWorld()


def test_gpus_come_in_order_with_model_and_memory(world):
    gpus = world.backend.gpus()
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert len({gpu.uuid for gpu in gpus}) == 2
    assert all(gpu.uuid.startswith("GPU-") and "RTX" in gpu.model and gpu.mem_bytes == 24 * GIB for gpu in gpus)


def test_an_idle_gpu_is_healthy_and_nearly_empty(world):
    reading = world.backend.read(world.backend.gpus()[0].uuid)
    assert reading.healthy
    assert reading.processes == ()
    assert reading.mem_total_bytes == 24 * GIB
    assert 0 < reading.mem_used_bytes < GIB
    assert reading.utilisation == 0


def test_a_process_shows_on_its_gpu_with_its_memory_and_on_no_other(world):
    first, second = (gpu.uuid for gpu in world.backend.gpus())
    pid = world.hold(0, 3 * GIB)
    busy = world.backend.read(first)
    assert busy.processes == (GpuProcess(pid, 3 * GIB),)
    assert 3 * GIB < busy.mem_used_bytes < 4 * GIB
    assert world.backend.read(second).processes == ()


def test_a_lost_gpu_is_unhealthy_with_its_reason_and_the_others_go_on(world):
    first, second = (gpu.uuid for gpu in world.backend.gpus())
    world.lose(0)
    lost = world.backend.read(first)
    assert (lost.healthy, lost.unhealthy_reason) == (False, "GPU is lost")
    assert (lost.mem_used_bytes, lost.processes, lost.utilisation) == (None, None, None)
    assert world.backend.read(second).healthy


def test_an_unknown_gpu_is_unhealthy(world):
    assert not world.backend.read("GPU-nobody").healthy


# What real drivers do besides.


def test_memory_that_is_not_available_is_none_while_the_rest_is_told():
    library = HandNvml()
    for version in ("memory v2", "memory v1"):
        library.answer(version, 0, hand_nvml.NOT_SUPPORTED)
    library.processes(0, (7, None))
    reading = NvmlBackend(library).read("GPU-0")
    assert reading.healthy
    assert (reading.mem_used_bytes, reading.mem_total_bytes) == (None, None)
    assert reading.processes == (GpuProcess(7, None),)


@pytest.mark.parametrize("refusal", [hand_nvml.FUNCTION_NOT_FOUND, hand_nvml.VERSION_MISMATCH])
def test_an_old_driver_is_asked_for_memory_the_old_way(refusal):
    library = HandNvml()
    library.answer("memory v2", 0, refusal)
    library.answer("memory v1", 0, SimpleNamespace(total=24 * GIB, used=5 * GIB, free=0))
    assert NvmlBackend(library).read("GPU-0").mem_used_bytes == 5 * GIB


def test_processes_that_come_through_mps_are_told_once():
    library = HandNvml()
    library.processes(0, (7, GIB), (8, GIB))
    through_mps = [SimpleNamespace(pid=8, usedGpuMemory=GIB), SimpleNamespace(pid=9, usedGpuMemory=GIB)]
    library.answer("nvmlDeviceGetMPSComputeRunningProcesses_v3", 0, through_mps)
    assert [process.pid for process in NvmlBackend(library).read("GPU-0").processes] == [7, 8, 9]


def test_processes_are_not_available_rather_than_none_where_the_driver_cannot_list_them():
    library = HandNvml()
    library.answer("nvmlDeviceGetComputeRunningProcesses_v3", 0, hand_nvml.NOT_SUPPORTED)
    reading = NvmlBackend(library).read("GPU-0")
    assert reading.healthy
    assert reading.processes is None


def test_a_driver_without_mps_still_lists_the_others():
    library = HandNvml()
    library.processes(0, (7, GIB))
    library.answer("nvmlDeviceGetMPSComputeRunningProcesses_v3", 0, hand_nvml.FUNCTION_NOT_FOUND)
    assert NvmlBackend(library).read("GPU-0").processes == (GpuProcess(7, GIB),)


def test_a_process_cannot_hold_more_than_the_gpu_has():
    library = HandNvml()
    library.processes(0, (7, 1 << 60))
    assert NvmlBackend(library).read("GPU-0").processes == (GpuProcess(7, None),)


def test_a_gpu_that_is_lost_from_the_start_does_not_hide_the_other():
    library = HandNvml()
    library.answer("nvmlDeviceGetHandleByIndex", 0, hand_nvml.GPU_IS_LOST)
    assert [gpu.uuid for gpu in NvmlBackend(library).gpus()] == ["GPU-1"]


def test_a_gpu_that_can_only_be_named_is_listed_and_unhealthy():
    library = HandNvml()
    for version in ("memory v2", "memory v1"):
        library.answer(version, 0, hand_nvml.UNKNOWN)
    backend = NvmlBackend(library)
    assert [gpu.mem_bytes for gpu in backend.gpus()] == [0, 24 * GIB]
    assert backend.read("GPU-0").unhealthy_reason == "Unknown Error"


def test_a_driver_that_does_not_start_says_why():
    library = HandNvml()
    library.init_error = hand_nvml.NVMLError(9, "Driver Not Loaded")
    with pytest.raises(NvmlUnavailable, match="Driver Not Loaded"):
        NvmlBackend(library)


def test_without_an_nvml_library_the_backend_is_none_with_no_gpus(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "open_nvml", _no_library)
    backend = opening.open_backend("auto", tmp_path, in_use=False)
    assert (backend.kind, backend.gpus()) == ("none", ())


def test_pynvml_itself_is_understood_when_its_library_is_missing(monkeypatch):
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", _pynvml_without_library)
    assert not has_real_gpus()


def test_gpus_none_means_none_even_where_there_are_some(tmp_path):
    assert isinstance(opening.open_backend("none", tmp_path, in_use=False), NoGpus)


def test_pynvml_is_not_imported_for_fake_gpus(tmp_path):
    code = (
        "import sys; from pathlib import Path; from ebbtide_agent.gpu import opening; "
        f"opening.open_backend('1xT4', Path({str(tmp_path)!r}), in_use=False); print('pynvml' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


# What the fake has of its own.


def test_fake_gpus_keep_their_uuids_when_the_agent_restarts(tmp_path):
    before, after = (opening.open_backend("4xA100-40GB", tmp_path, in_use=False).gpus() for _ in range(2))
    assert before == after


def test_another_profile_makes_other_gpus_when_nothing_runs_on_them(tmp_path):
    before = opening.open_backend("2xRTX4090", tmp_path, in_use=False).gpus()
    after = opening.open_backend("2xRTX3090", tmp_path, in_use=False).gpus()
    assert [gpu.model for gpu in after] == ["RTX3090"] * 2
    assert not {gpu.uuid for gpu in before} & {gpu.uuid for gpu in after}


def test_another_profile_waits_while_attempts_are_live(tmp_path):
    before = opening.open_backend("2xRTX4090", tmp_path, in_use=True).gpus()
    assert opening.open_backend("8xH200", tmp_path, in_use=True).gpus() == before


def test_a_broken_state_directory_is_named(tmp_path):
    (tmp_path / "gpus.json").write_text('{"gpus": [{"uuid": "GPU-1"}]}')
    with pytest.raises(ValueError, match=r"gpus\.json"):
        fake.set_up(tmp_path, parse_profile("1xT4"), keep=False)


def test_a_process_that_ended_holds_nothing_though_its_file_is_still_there(fake_node):
    node = fake_node("1xT4")
    process = node.start({node.uuids[0]: GIB})
    assert len(node.backend.read(node.uuids[0]).processes) == 1
    node.end(process)
    reading = node.backend.read(node.uuids[0])
    assert reading.processes == ()
    assert reading.mem_used_bytes < GIB


def test_a_file_of_an_older_process_with_the_same_pid_says_nothing(fake_node):
    node = fake_node("1xT4")
    node.write(f"processes/{os.getpid()}.json", {"pid": os.getpid(), "starttime": 1, "gpus": {node.uuids[0]: GIB}})
    assert node.backend.read(node.uuids[0]).processes == ()


def test_a_file_that_is_not_whole_registers_nobody(fake_node):
    node = fake_node("1xT4")
    (node.state_dir / "processes" / "77.json").write_text('{"pid": 77, "sta')
    assert node.backend.read(node.uuids[0]).healthy


def test_memory_can_be_released_late_and_shows_no_process_meanwhile(fake_node):
    node = fake_node("2xT4")
    late, prompt = node.uuids
    node.faults(release_after_s={late: 0.3})
    process = node.start({late: GIB, prompt: GIB})
    assert node.backend.read(late).mem_used_bytes > GIB
    (node.state_dir / "processes" / f"{process.pid}.json").unlink()
    node.end(process)
    lingering = node.backend.read(late)
    assert (lingering.mem_used_bytes > GIB, lingering.processes) == (True, ())
    assert node.backend.read(prompt).mem_used_bytes < GIB
    _wait_until(lambda: node.backend.read(late).mem_used_bytes < GIB)


def test_utilisation_follows_what_the_process_and_its_children_compute(fake_node):
    node = fake_node("2xT4")
    busy, idle = node.uuids
    shell = "import subprocess, sys; subprocess.run([sys.executable, '-Sc', 'while True: pass'])"
    process = node.start({busy: GIB}, code=shell)
    try:
        # Where others compute, a busy process may get a few percent of a core; one that sleeps has 0.
        _wait_until(lambda: node.backend.read(busy).utilisation > 0.02, timeout_s=60)
        assert node.backend.read(busy).utilisation <= 1
        assert node.backend.read(idle).utilisation == 0
    finally:
        _end_children(process.pid)


def _no_library():
    raise NvmlUnavailable("NVML Shared Library Not Found")


def _pynvml_without_library():
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def _end_children(pid):
    _wait_until(lambda: procfs.children(pid))
    for child in procfs.children(pid):
        os.kill(child, signal.SIGKILL)


def _wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
