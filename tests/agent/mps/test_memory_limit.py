"""The driver's limit of GPU memory for a control group, with a library made by hand."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from ebbtide_agent.mps import memory_limit
from ebbtide_agent.mps.memory_limit import NotLimited, have_limit_set, set_limit

GROUP = Path("/sys/fs/cgroup/ebb/1.1")
GIB = 1 << 30


class NVMLError(Exception):
    pass


class Library:
    """As much of `pynvml` as it takes; `takes` is what the driver makes of a limit."""

    NVMLError = NVMLError
    c_nvmlSetMemoryLimits_v1_t = SimpleNamespace
    c_nvmlGetMemoryLimits_v1_t = SimpleNamespace

    def __init__(self, takes=lambda limit: limit, error=None):
        self.takes = takes
        self.error = error
        self.limits = {}

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceSetMemoryLimits_v1(self, handle, limits):
        if self.error:
            raise NVMLError(self.error)
        self.limits[handle, limits.nameSpace] = self.takes(limits.hardLimit)

    def nvmlDeviceGetMemoryLimits_v1(self, handle, limits):
        limits.hardLimit = self.limits[handle, limits.nameSpace]


def test_the_group_has_its_limit():
    library = Library()
    set_limit(library, "GPU-1", GROUP, 6 * GIB)
    assert library.limits == {("GPU-1", b"/sys/fs/cgroup/ebb/1.1"): 6 * GIB}


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (SimpleNamespace(), "this NVML binding has no nvmlDeviceSetMemoryLimits_v1"),
        (Library(error="Insufficient Permissions"), "NVML: Insufficient Permissions"),
        (Library(takes=lambda _: 0), "the driver took 6442450944 bytes and says 0"),
    ],
    ids=["an older binding", "no root", "a driver that does nothing"],
)
def test_where_there_is_none_it_says_why(library, reason):
    with pytest.raises(NotLimited) as refused:
        set_limit(library, "GPU-1", GROUP, 6 * GIB)
    assert str(refused.value) == reason


def test_without_a_driver_the_process_that_sets_it_says_so():
    with pytest.raises(NotLimited, match="NVML"):
        have_limit_set("GPU-1", GROUP, GIB)


def test_a_driver_call_that_never_returns_is_given_up(monkeypatch):
    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(memory_limit.subprocess, "run", hang)
    with pytest.raises(NotLimited, match="timed out after 10"):
        have_limit_set("GPU-1", GROUP, GIB)
