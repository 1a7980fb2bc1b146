"""The C stub of NVML itself: a wrong stub would prove wrong things of what is tested on it."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading

import pynvml
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.agent.gpu.cuda_process import OUT_OF_MEMORY, SUCCESS, CudaProcess
from tests.agent.gpu.stub.state import GIB

NO_FILE, BROKEN = 1, 2


@pytest.fixture
def echo(nvml_stub, tmp_path):
    """What the stub's reader of JSON makes of a text: its value, or why there is none."""
    library = ctypes.CDLL(str(nvml_stub))
    path = tmp_path / "file.json"

    def read(text: str | bytes) -> object:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        buffer = ctypes.create_string_buffer(1 << 16)
        result = library.stub_echo(str(path).encode(), buffer, ctypes.c_size_t(len(buffer)))
        if result:
            raise ValueError(result)
        return json.loads(buffer.value)

    return read


_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
_NUMBERS = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)
_UNHURRIED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, derandomize=True)


@_UNHURRIED
@given(value=_VALUES, escaped=st.booleans(), indent=st.sampled_from([None, 2]))
def test_json_that_python_writes_is_understood(echo, value, escaped, indent):
    assert echo(json.dumps(value, ensure_ascii=escaped, indent=indent)) == value


@_UNHURRIED
@given(text=st.text(st.sampled_from('{}[]:,"\\u0019dD-+.eE ntfalsr\t'), max_size=12))
def test_what_the_reader_takes_python_takes_too_and_otherwise(echo, text):
    try:
        expected = json.loads(text)
    except ValueError:
        expected = ValueError
    try:
        found = echo(text)
    except ValueError:
        found = ValueError
    assert found == expected or (expected is not ValueError and "\\u" in text)  # lone surrogates and NUL: no C string


@pytest.mark.parametrize(
    "text", ["", " ", "{", '{"a":1,}', "[1,]", "[1", '"', '"\\', "01", "1.", ".5", "+1", "nul", "1 2"]
)
def test_what_is_broken_is_refused(echo, text):
    with pytest.raises(ValueError, match=str(BROKEN)):
        echo(text)


@pytest.mark.parametrize(
    "text", ["\0", '{"a": 1}\0', '"\\ud800"', '"\\u0000"', "[" * 1000 + "]" * 1000, '"a\nb"', "NaN"]
)
def test_what_no_c_string_can_hold_or_is_too_deep_is_refused(echo, text):
    with pytest.raises(ValueError, match=str(BROKEN)):
        echo(text)


def test_a_file_that_is_not_there_is_told_from_one_that_is_broken(nvml_stub, tmp_path):
    library = ctypes.CDLL(str(nvml_stub))
    assert library.stub_echo(str(tmp_path / "none").encode(), None, 0) == NO_FILE


def test_a_large_file_is_read_whole(echo):
    assert echo(json.dumps(list(range(5000)))) == list(range(5000))


@pytest.fixture
def nvml(state, load_stub, nvml_stub):
    """The real `pynvml` on the stub, over a state directory that the test writes."""
    state.describe({"uuid": "GPU-a"})
    load_stub(nvml_stub)
    return state


def _describe(state, *gpus: dict, **node: object) -> list:
    """Make these the node's GPUs, and start; their handles."""
    state.describe(*gpus, **node)
    pynvml.nvmlInit()
    return [pynvml.nvmlDeviceGetHandleByUUID(gpu["uuid"]) for gpu in gpus]


def test_nothing_answers_before_it_is_started_and_after_it_is_ended(nvml):
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()


def test_the_last_of_two_equal_names_counts(nvml):
    (nvml.directory / "gpus.json").write_text('{"gpus": [], "driver": "1", "driver": "2"}')
    pynvml.nvmlInit()
    assert pynvml.nvmlSystemGetDriverVersion() == "2"


def test_without_a_state_directory_there_is_no_driver(nvml, monkeypatch):
    monkeypatch.setenv("EBB_STUB_NVML", "/nonexistent")
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()


def test_a_broken_description_or_broken_faults_are_an_unknown_error(nvml):
    (nvml.directory / "faults.json").write_text("{")
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlInit()


def test_memory_of_the_first_kind_counts_what_is_reserved_as_used(nvml):
    (handle,) = _describe(nvml, {"uuid": "GPU-a", "idle_bytes": GIB, "reserved_bytes": 2 * GIB})
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert (second.total, second.reserved, second.used, second.free) == (16 * GIB, 2 * GIB, GIB, 13 * GIB)
    first = pynvml.nvmlDeviceGetMemoryInfo(handle)
    assert (first.total, first.used, first.free) == (16 * GIB, 3 * GIB, 13 * GIB)


def test_another_version_of_a_struct_is_refused(nvml):
    (handle,) = _describe(nvml, {"uuid": "GPU-a"})
    with pytest.raises(pynvml.NVMLError) as refusal:
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=0x03000030)
    assert refusal.value.value == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH


def test_more_processes_than_there_is_room_for_are_refused_with_their_number(nvml):
    (handle,) = _describe(nvml, {"uuid": "GPU-a"})
    nvml.start({"GPU-a": GIB})
    nvml.start({"GPU-a": GIB})
    count = ctypes.c_uint(1)
    room = (pynvml.c_nvmlProcessInfo_v3_t * 1)()
    code = pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), room)
    assert (code, count.value) == (pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 2)
    assert len(pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)) == 2


def test_a_process_is_listed_where_it_computes_and_with_nothing_where_that_is_not_told(nvml):
    first, second = _describe(nvml, {"uuid": "GPU-a"}, {"uuid": "GPU-b"})
    mine = nvml.start({"GPU-a": 3 * GIB, "GPU-b": None})
    (found,) = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(first)
    assert (found.pid, found.usedGpuMemory) == (mine.pid, 3 * GIB)
    (found,) = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(second)
    assert (found.pid, found.usedGpuMemory) == (mine.pid, None)
    assert pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(first) == []
    assert pynvml.nvmlSystemGetProcessName(mine.pid).endswith("python")


def test_a_process_with_another_start_time_or_a_file_written_by_halves_holds_nothing(nvml):
    (handle,) = _describe(nvml, {"uuid": "GPU-a"})
    nvml.write(f"processes/{os.getpid()}.json", {"pid": os.getpid(), "starttime": 1, "gpus": {"GPU-a": GIB}})
    (nvml.directory / "processes" / "7.json").write_text('{"pid": 7')
    assert pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle) == []
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == 0


def test_what_ended_is_released_late_if_a_fault_says_so(nvml):
    (handle,) = _describe(nvml, {"uuid": "GPU-a"})
    nvml.faults(release_after_s={"GPU-a": 60})
    process = nvml.start({"GPU-a": 3 * GIB})
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == 3 * GIB
    nvml.end(process)
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == 3 * GIB
    assert pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle) == []
    nvml.faults()
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == 0


def test_a_gpu_that_is_lost_says_so_at_every_call_and_the_other_goes_on(nvml):
    lost, other = _describe(nvml, {"uuid": "GPU-a"}, {"uuid": "GPU-b"})
    nvml.faults(lost=["GPU-a"])
    for call in (pynvml.nvmlDeviceGetUUID, pynvml.nvmlDeviceGetMemoryInfo, pynvml.nvmlDeviceGetPowerUsage):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            call(lost)
        call(other)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(0)
    nvml.faults()
    assert pynvml.nvmlDeviceGetUUID(lost) == "GPU-a"


@pytest.mark.parametrize("code", [code for code in range(1, 31) if code != 12])
def test_a_call_fails_with_the_code_that_a_fault_names(nvml, code):
    one, other = _describe(nvml, {"uuid": "GPU-a"}, {"uuid": "GPU-b"})
    nvml.faults(errors={"GPU-a": {"nvmlDeviceGetPowerUsage": code}, "*": {"nvmlSystemGetDriverVersion": code}})
    with pytest.raises(pynvml.NVMLError) as on_device:
        pynvml.nvmlDeviceGetPowerUsage(one)
    with pytest.raises(pynvml.NVMLError) as of_all:
        pynvml.nvmlSystemGetDriverVersion()
    assert (on_device.value.value, of_all.value.value) == (code, code)
    assert str(on_device.value)
    assert pynvml.nvmlDeviceGetPowerUsage(other)


def test_a_fault_of_all_versions_and_a_fault_of_one(nvml):
    (handle,) = _describe(nvml, {"uuid": "GPU-a"})
    nvml.faults(errors={"*": {"nvmlDeviceGetMemoryInfo_v2": 3}})
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    pynvml.nvmlDeviceGetMemoryInfo(handle)
    nvml.faults(errors={"*": {"nvmlDeviceGetMemoryInfo": 3}})
    for version in (None, pynvml.nvmlMemory_v2):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetMemoryInfo(handle, version=version)


def test_an_old_driver_lacks_the_newer_functions(state, load_stub, old_nvml_stub):
    load_stub(old_nvml_stub)
    (handle,) = _describe(state, {"uuid": "GPU-a"})
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == 16 * GIB


def test_a_faulty_order_is_the_drivers_order(nvml):
    _describe(nvml, *({"uuid": f"GPU-{name}"} for name in "abc"))
    nvml.faults(order=["GPU-c", "GPU-nobody"])
    uuids = [pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(3)]
    assert uuids == ["GPU-c", "GPU-a", "GPU-b"]
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(3)


def test_a_slice_of_mig_is_found_below_its_gpu_and_answers_few_questions(nvml):
    gpu = {"uuid": "GPU-a", "mig": True, "pci_bus_id": "00000000:41:00.0"}
    whole, first, _ = _describe(nvml, gpu, *({"uuid": f"MIG-{n}", "parent": "GPU-a", "mem_bytes": GIB} for n in (0, 1)))
    assert pynvml.nvmlDeviceGetCount() == 1
    assert pynvml.nvmlDeviceGetMigMode(whole)[0] == 1
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(whole) == 7
    slices = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, index) for index in range(2)]
    assert [pynvml.nvmlDeviceGetUUID(handle) for handle in slices] == ["MIG-0", "MIG-1"]
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(whole, 2)
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(first)) == "GPU-a"
    assert pynvml.nvmlDeviceGetMemoryInfo(first).total == GIB
    for call in (pynvml.nvmlDeviceGetUtilizationRates, pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetPciInfo):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(first)
    assert (pynvml.nvmlDeviceGetPciInfo(whole).busId, pynvml.nvmlDeviceGetPciInfo(whole).bus) == (
        "00000000:41:00.0",
        65,
    )


def test_what_is_written_down_is_told_and_what_is_not_is_not_supported(nvml):
    bare, full = _describe(
        nvml,
        {"uuid": "GPU-a", "persistence": None, "pci_bus_id": ""},
        {"uuid": "GPU-b", "persistence": False, "compute_mode": 3, "mig": False, "compute_capability": "9.0"},
        driver="580.65.06",
        cuda="13.1",
    )
    asked = (
        pynvml.nvmlDeviceGetPersistenceMode,
        pynvml.nvmlDeviceGetComputeMode,
        pynvml.nvmlDeviceGetMigMode,
        pynvml.nvmlDeviceGetCudaComputeCapability,
    )
    for call in (*asked, pynvml.nvmlDeviceGetPciInfo):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            call(bare)
    assert [call(full) for call in asked] == [0, 3, [0, 0], (9, 0)]
    assert pynvml.nvmlSystemGetDriverVersion() == "580.65.06"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 13010


def test_a_gpu_asks_for_the_recovery_that_a_fault_names(nvml):
    (handle,) = _describe(nvml, {"uuid": "GPU-a"})
    fields = [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, pynvml.NVML_FI_DEV_MEMORY_TEMP]
    answers = pynvml.nvmlDeviceGetFieldValues(handle, fields)
    assert [answer.nvmlReturn for answer in answers] == [pynvml.NVML_ERROR_NOT_SUPPORTED] * 2
    nvml.faults(recovery={"GPU-a": 2})
    action, temperature = pynvml.nvmlDeviceGetFieldValues(handle, fields)
    assert (action.nvmlReturn, action.value.uiVal) == (0, pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT)
    assert temperature.nvmlReturn == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_how_gpus_reach_each_other(nvml):
    nodes = {"a": 0, "b": 0, "c": 1, "d": None, "e": 0}
    gpus = [{"uuid": f"GPU-{name}", "numa_node": node} for name, node in nodes.items()]
    a, b, c, d, e = _describe(nvml, *gpus, switches=[["GPU-a", "GPU-b"]], nvlinks=[["GPU-b", "GPU-c"]])
    levels = [pynvml.nvmlDeviceGetTopologyCommonAncestor(*pair) for pair in ((a, a), (a, b), (a, e), (a, c), (a, d))]
    assert levels == [
        pynvml.NVML_TOPOLOGY_INTERNAL,
        pynvml.NVML_TOPOLOGY_SINGLE,
        pynvml.NVML_TOPOLOGY_HOSTBRIDGE,
        pynvml.NVML_TOPOLOGY_SYSTEM,
        pynvml.NVML_TOPOLOGY_HOSTBRIDGE,
    ]
    nvlink = pynvml.NVML_P2P_CAPS_INDEX_NVLINK
    assert pynvml.nvmlDeviceGetP2PStatus(c, b, nvlink) == pynvml.NVML_P2P_STATUS_OK
    assert pynvml.nvmlDeviceGetP2PStatus(a, b, nvlink) == pynvml.NVML_P2P_STATUS_NOT_SUPPORTED


def test_an_xid_is_told_once_to_every_event_set_and_only_where_it_was_asked_for(nvml):
    one, _ = _describe(nvml, {"uuid": "GPU-a"}, {"uuid": "GPU-b"})
    events = pynvml.nvmlEventSetCreate()
    supported = pynvml.nvmlDeviceGetSupportedEventTypes(one)
    assert supported & pynvml.nvmlEventTypeXidCriticalError
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(one, pynvml.nvmlEventTypeGpuUnavailableError, events)
    pynvml.nvmlDeviceRegisterEvents(one, supported, events)
    nvml.faults(xids=[{"uuid": "GPU-b", "xid": 13, "number": 1}, {"uuid": "GPU-a", "xid": 79, "number": 2}])
    event = pynvml.nvmlEventSetWait_v2(events, 10_000)
    assert pynvml.nvmlDeviceGetUUID(event.device) == "GPU-a"
    assert (event.eventType, event.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 79)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 1)
    pynvml.nvmlEventSetFree(events)


def test_an_xid_ends_the_wait_for_it(nvml):
    (one,) = _describe(nvml, {"uuid": "GPU-a"})
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(one, pynvml.nvmlEventTypeXidCriticalError, events)
    waiting = threading.Thread(target=nvml.faults, kwargs={"xids": [{"uuid": "GPU-a", "xid": 48, "number": 1}]})
    waiting.start()
    assert pynvml.nvmlEventSetWait_v2(events, 30_000).eventData == 48
    waiting.join()
    pynvml.nvmlEventSetFree(events)


@pytest.mark.parametrize(("fault", "signum"), [("crash", signal.SIGSEGV), ("hang", signal.SIGALRM)])
def test_a_crash_is_a_crash_and_a_hang_a_hang(nvml, fault, signum):
    nvml.faults(**{fault: ["nvmlDeviceGetCount"]})
    alarm = "signal.setitimer(signal.ITIMER_REAL, 0.3)" if fault == "hang" else "pass"
    code = f"import pynvml, signal; pynvml.nvmlInit(); {alarm}; pynvml.nvmlDeviceGetCount()"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -signum


def test_a_process_of_cuda_takes_memory_as_far_as_there_is_room(nvml, cuda_stub, monkeypatch):
    (handle,) = _describe(nvml, {"uuid": "GPU-a"})
    monkeypatch.setenv("EBB_STUB_ROOM_BYTES", str(3 * GIB))
    process = CudaProcess("GPU-a")
    assert [process.start_code, process.allocate(GIB), process.allocate(2 * GIB)] == [SUCCESS, SUCCESS, OUT_OF_MEMORY]
    assert process.is_intact()
    (found,) = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    assert found.pid == process.pid
    assert GIB < found.usedGpuMemory < 2 * GIB
    process.end()
    assert pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle) == []
