"""Whatever state the directory is in, the fake and the C stub under the real binding say the same of it."""

import os
import subprocess
import threading

import pynvml
import pytest
from ebbtide_agent.gpu.backend import GpuProcess
from ebbtide_agent.gpu.fake import FakeNvml
from ebbtide_agent.gpu.nvml import NvmlBackend
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agent.gpu.stub.conftest import shut_down
from tests.agent.gpu.stub.state import GIB

_UUIDS = ("A", "B", "MIG-1", "C")
_GPUS = st.sampled_from(_UUIDS)
_CALLS = st.sampled_from(
    [
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetUUID",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTopologyCommonAncestor",
        "nvmlDeviceGetPersistenceMode",
        "nvmlEventSetWait_v2",
    ]
)
_CODES = st.sampled_from([2, 3, 4, 6, 7, 9, 12, 13, 15, 16, 18, 21, 25, 26, 27, 28, 999])
_ERRORS = st.dictionaries(_GPUS | st.just("*"), st.dictionaries(_CALLS, _CODES, max_size=2), max_size=2)
_FAULTS = st.fixed_dictionaries(
    {},
    optional={
        "lost": st.lists(_GPUS, max_size=2),
        "no_memory": st.lists(_GPUS, max_size=2),
        "errors": _ERRORS,
        "release_after_s": st.dictionaries(_GPUS, st.just(3600), max_size=2),
        "order": st.permutations(["A", "B", "C"]),
        "recovery": st.dictionaries(_GPUS, st.integers(0, 3), max_size=1),
    },
)
_HELD = st.dictionaries(_GPUS, st.none() | st.integers(0, 40 * GIB), max_size=3)
_STEPS = st.lists(st.tuples(_FAULTS, _HELD, st.booleans()), min_size=1, max_size=4)


@pytest.fixture
def node(state, load_stub, nvml_stub):
    numbers = {"reserved_bytes": GIB, "idle_bytes": 1 << 24, "persistence": True, "compute_mode": 0}
    state.describe(
        {"uuid": "A", "numa_node": 0, "mig": False, **numbers},
        {"uuid": "B", "numa_node": 1, "mig": True, **numbers},
        {"uuid": "MIG-1", "parent": "B", "idle_bytes": 1 << 24},
        {"uuid": "C", "numa_node": 1, "compute_capability": "9.0", "pci_bus_id": "00000000:C1:00.0"},
        nvlinks=[["A", "C"]],
        driver="580.65.06",
        cuda="13.0",
    )
    load_stub(nvml_stub)
    return state


@pytest.fixture
def idler():
    """The pid of a process that uses no CPU: what it is worth as utilisation would depend on the moment."""
    process = subprocess.Popen(["sleep", "600"])
    yield process.pid
    process.kill()
    process.wait()


def _everything(backend: NvmlBackend) -> list[object]:
    """All that a backend says, but for what depends on the moment."""
    said = [backend.gpus(), backend.links(), backend.driver()]
    for uuid in _UUIDS:
        said += [backend.settings(uuid), backend.read(uuid), backend.read(uuid)]
    return said


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS)
def test_fake_and_stub_agree_on_every_state(node, idler, steps):
    node.faults()
    shut_down()
    backends = [NvmlBackend(FakeNvml(node.directory)), NvmlBackend(pynvml)]
    for faults, held, mps in steps:
        node.register(idler, held, mps)
        node.faults(**faults)
        on_fake, on_stub = (_everything(backend) for backend in backends)
        assert on_fake == on_stub


def test_a_process_that_comes_and_goes_while_it_is_looked_at_breaks_no_reading(node):
    backends = [NvmlBackend(FakeNvml(node.directory), kind="fake"), NvmlBackend(pynvml)]

    def come_and_go() -> None:
        for _ in range(50):
            node.register(os.getpid(), {"A": GIB})
            node.register(os.getpid(), {"C": GIB})
            (node.directory / "processes" / f"{os.getpid()}.json").unlink()

    other = threading.Thread(target=come_and_go)
    other.start()
    readings = []
    while other.is_alive():
        readings += [backend.read("A") for backend in backends]
    assert all(reading.healthy for reading in readings)
    assert {reading.processes for reading in readings} <= {(), (GpuProcess(os.getpid(), GIB),)}
