"""Every code of NVML has its stated behaviour, whoever says it: the table of docs/explanation/gpu-notes.md."""

import pynvml
import pytest
from ebbtide_agent.gpu.fake import FakeNvml
from ebbtide_agent.gpu.nvml import NvmlBackend, NvmlUnavailable

NO_VALUE = (3, 4, 6, 7, 13, 21, 25, 26, 27)
GONE = {15: "GPU is lost", 16: "GPU requires restart", 28: "GPU not found"}
NO_DRIVER = {9: "Driver Not Loaded", 12: "NVML Shared Library Not Found"}
DRIVER_CHANGED = 18
KNOWN = {*NO_VALUE, *GONE, *NO_DRIVER, DRIVER_CHANGED}
TROUBLE = [*(code for code in range(1, 31) if code not in KNOWN), 999]
# What a reading asks, and what is not known without it.
ASKED = {
    "nvmlDeviceGetMemoryInfo": "mem_used_bytes",
    "nvmlDeviceGetComputeRunningProcesses": "processes",
    "nvmlDeviceGetUtilizationRates": "utilisation",
    "nvmlDeviceGetTemperature": "temperature_c",
    "nvmlDeviceGetPowerUsage": "power_w",
}


# What is asked of a GPU when it is found, and without which it has no name to be told under.
FOUND_BY = (
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetP2PStatus",
    "nvmlDeviceGetPersistenceMode",
)
NAMED_BY = ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID")


@pytest.fixture(params=["fake", "C stub"])
def node(request, state, load_stub, nvml_stub):
    """Two idle GPUs, A and B; `open_backend` opens one of the backends on them."""
    state.describe({"uuid": "A"}, {"uuid": "B"})
    if request.param == "fake":
        state.open_backend = lambda: NvmlBackend(FakeNvml(state.directory), kind="fake")
    else:
        load_stub(nvml_stub)
        state.open_backend = lambda: NvmlBackend(pynvml)
    return state


def _failing(*calls: str, code: int) -> dict[str, int]:
    """What makes these fail, and their newer kind, which is asked where the older one has no answer."""
    return dict.fromkeys([*calls, *(f"{call}V" for call in calls)], code)


@pytest.mark.parametrize("code", NO_VALUE)
def test_a_value_that_is_not_available_is_none_and_nothing_is_wrong(node, code):
    backend = node.open_backend()
    for call, value in ASKED.items():
        node.faults(errors={"A": _failing(call, code=code)})
        reading = backend.read("A")
        assert reading.healthy
        assert {name for name in ASKED.values() if getattr(reading, name) is None} == {value}
        assert None not in [getattr(backend.read("B"), name) for name in ASKED.values()]


@pytest.mark.parametrize(("code", "reason"), GONE.items())
def test_a_gpu_that_is_gone_is_offline_with_the_reason_and_its_return_is_noticed(node, code, reason):
    backend = node.open_backend()
    node.faults(errors={"A": _failing(*ASKED, "nvmlDeviceGetHandleByUUID", code=code)})
    for _ in range(2):
        reading = backend.read("A")
        assert (reading.healthy, reading.gone, reading.unhealthy_reason) == (False, True, reason)
        assert backend.read("B").healthy
    node.faults()
    assert backend.read("A").healthy


def test_whichever_call_finds_out_that_a_gpu_is_gone(node):
    backend = node.open_backend()
    for call in ASKED:
        node.faults(errors={"A": _failing(call, code=15)})
        assert (backend.read("A").gone, backend.read("B").healthy) == (True, True)


@pytest.mark.parametrize(("code", "reason"), NO_DRIVER.items())
def test_without_a_driver_there_are_no_gpus_and_the_reason_is_told(node, code, reason):
    node.faults(errors={"*": {"nvmlInit": code}})
    with pytest.raises(NvmlUnavailable, match=reason):
        node.open_backend()
    node.faults()
    assert len(node.open_backend().gpus()) == 2


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetCount"])
def test_whatever_keeps_nvml_from_starting_is_told_as_that(node, call):
    for code in (*NO_VALUE, *GONE, *NO_DRIVER, DRIVER_CHANGED, *TROUBLE):
        node.faults(errors={"*": {call: code}})
        with pytest.raises(NvmlUnavailable) as told:
            node.open_backend()
        assert str(told.value)


@pytest.mark.parametrize("code", [3, 9, 15, 18, 25, 28, 999])
def test_what_cannot_be_asked_of_one_gpu_when_it_is_found_hides_no_other(node, code):
    for call in (*FOUND_BY, *NAMED_BY):
        node.faults(errors={"A": {call: code}})
        backend = node.open_backend()
        found = [gpu.uuid for gpu in backend.gpus()]
        assert found == (["A", "B"] if call in FOUND_BY else ["B"]), call
        backend.links()
        backend.settings("A")
        assert backend.read("B").healthy


def test_a_driver_that_was_upgraded_under_us_takes_all_gpus_offline_and_says_what_to_do(node):
    backend = node.open_backend()
    node.faults(errors={"*": _failing(*ASKED, code=DRIVER_CHANGED)})
    readings = [backend.read(uuid) for uuid in "AB"]
    assert {reading.unhealthy_reason for reading in readings} == {
        "the driver was upgraded under us: reload it or reboot"
    }
    assert not any(reading.gone for reading in readings)
    node.faults(errors={"*": {"nvmlInit": DRIVER_CHANGED}})
    with pytest.raises(NvmlUnavailable, match="upgraded under us"):
        node.open_backend()


@pytest.mark.parametrize("code", TROUBLE)
def test_any_other_code_makes_this_reading_unhealthy_and_no_more(node, code):
    backend = node.open_backend()
    node.faults(errors={"A": _failing(*ASKED, code=code)})
    reading = backend.read("A")
    assert (reading.healthy, reading.gone) == (False, False)
    assert reading.unhealthy_reason
    assert backend.read("B").healthy
    node.faults()
    assert backend.read("A").healthy


def test_every_code_of_the_binding_is_among_these():
    codes = {getattr(pynvml, name) for name in vars(pynvml) if name.startswith("NVML_ERROR_")}
    assert codes <= {*KNOWN, *TROUBLE}
