"""What holds of any GPU, on three backends: the fake, the C stub under the real binding, and real hardware."""

import time
from itertools import combinations

import pynvml
import pytest
from ebbtide_agent.gpu.backend import DeviceLinkKind, Driver
from ebbtide_agent.gpu.fake import FakeNvml
from ebbtide_agent.gpu.nvml import NvmlBackend, open_nvml

from tests.agent.gpu.cuda_process import CudaProcess
from tests.agent.gpu.stub.state import GIB

# What a context of CUDA holds beside what its process asks for, at most.
_CONTEXT_BYTES = 2 * GIB
_PATIENCE_S = 20


class StateWorld:
    """Two GPUs of a state directory."""

    def __init__(self, state, open_backend) -> None:
        self._state = state
        self.backend = open_backend()

    def hold(self, uuid: str, mem_bytes: int):
        """A process that holds so much; it has a `pid`."""
        return self._state.start({uuid: mem_bytes})

    def end(self, process) -> None:
        self._state.end(process)

    def close(self) -> None:
        pass


class Hardware:
    """The GPUs of this machine."""

    def __init__(self) -> None:
        self._processes: list[CudaProcess] = []
        self.backend = open_nvml()

    def hold(self, uuid: str, mem_bytes: int) -> CudaProcess:
        process = CudaProcess(uuid)
        self._processes.append(process)
        assert (process.start_code, process.allocate(mem_bytes)) == (0, 0)
        return process

    def end(self, process: CudaProcess) -> None:
        process.end()

    def close(self) -> None:
        for process in self._processes:
            process.end()


@pytest.fixture
def fake(state):
    _describe(state)
    return StateWorld(state, lambda: NvmlBackend(FakeNvml(state.directory), kind="fake"))


@pytest.fixture
def on_stub(state, load_stub, nvml_stub):
    _describe(state)
    load_stub(nvml_stub)
    return StateWorld(state, lambda: NvmlBackend(pynvml))


@pytest.fixture
def on_both_stubs(state, load_stub, nvml_stub, cuda_stub):
    """What is asked on hardware, of stubs of NVML and of CUDA: so that it does not break unseen."""
    _describe(state)
    load_stub(nvml_stub)
    return Hardware()


@pytest.fixture
def hardware():
    return Hardware()


@pytest.fixture(params=["fake", "on_stub", "on_both_stubs", pytest.param("hardware", marks=pytest.mark.gpu)])
def world(request):
    world = request.getfixturevalue(request.param)
    yield world
    world.close()


def _describe(state) -> None:
    gpu = {"persistence": True, "compute_mode": 0, "mig": False, "compute_capability": "8.6", "idle_bytes": 1 << 24}
    numbered = [{"uuid": f"GPU-{n}", "pci_bus_id": f"00000000:{n}1:00.0", **gpu} for n in (1, 2)]
    state.describe(*numbered, driver="580.65.06", cuda="13.0")


def _await(holds) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_gpus_come_in_order_with_a_name_a_model_and_memory(world):
    gpus = world.backend.gpus()
    assert gpus
    assert [gpu.index for gpu in gpus] == sorted({gpu.index for gpu in gpus})
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)
    for gpu in gpus:
        assert gpu.uuid.startswith("MIG-" if gpu.parent else "GPU-")
        assert gpu.model != "unknown"
        assert gpu.mem_bytes > GIB
        assert gpu.parent or gpu.pci_bus_id
        assert float(gpu.compute_capability) >= 3


def test_a_reading_is_plausible(world):
    for gpu in world.backend.gpus():
        reading = world.backend.read(gpu.uuid)
        assert reading.healthy, reading
        assert reading.mem_total_bytes == gpu.mem_bytes
        assert 0 <= reading.mem_used_bytes <= gpu.mem_bytes
        assert reading.mem_reserved_bytes is None or 0 <= reading.mem_reserved_bytes < gpu.mem_bytes
        assert reading.utilisation is None or 0 <= reading.utilisation <= 1
        assert reading.temperature_c is None or 0 < reading.temperature_c < 120
        assert reading.power_w is None or 0 < reading.power_w < 2000
        assert reading.xids == ()


def test_a_process_shows_on_its_gpu_with_what_it_holds_until_it_ends(world):
    backend, (uuid, *others) = world.backend, [gpu.uuid for gpu in world.backend.gpus()]
    before = backend.read(uuid)
    process = world.hold(uuid, GIB)

    def entries(of: str):
        return [entry for entry in backend.read(of).processes if entry.pid == process.pid]

    _await(lambda: entries(uuid))
    (entry,) = entries(uuid)
    assert entry.mem_bytes is None or GIB <= entry.mem_bytes <= GIB + _CONTEXT_BYTES
    assert not entry.mps
    assert backend.read(uuid).mem_used_bytes >= before.mem_used_bytes + GIB
    assert not any(entries(other) for other in others)
    world.end(process)
    _await(lambda: not entries(uuid))
    _await(lambda: backend.read(uuid).mem_used_bytes < before.mem_used_bytes + GIB)


def test_links_join_whole_gpus_once_each(world):
    whole = [gpu.uuid for gpu in world.backend.gpus() if not gpu.parent]
    links = world.backend.links()
    pairs = [(link.one, link.other) for link in links]
    assert pairs == [pair for pair in combinations(whole, 2) if pair in pairs]
    assert all(isinstance(link.kind, DeviceLinkKind) for link in links)


def test_the_driver_tells_its_version_and_its_cuda(world):
    driver = world.backend.driver()
    assert isinstance(driver, Driver)
    assert int(driver.version.split(".")[0]) >= 400
    assert float(driver.cuda) >= 10


def test_settings_are_told(world):
    for gpu in world.backend.gpus():
        settings = world.backend.settings(gpu.uuid)
        assert isinstance(settings.persistence, bool)
        assert settings.compute_mode in ("default", "exclusive thread", "prohibited", "exclusive process")
        assert settings.mig in (None, bool(gpu.parent))


def test_a_gpu_that_is_not_there_is_told_from_one_that_is(world):
    reading = world.backend.read("GPU-00000000-0000-0000-0000-000000000000")
    assert reading.unhealthy_reason == "the driver does not know this GPU"
