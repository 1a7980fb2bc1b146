"""Whether the driver keeps a control group to its limit of GPU memory, with and without an MPS server: recorded."""

import os
import shutil
import tempfile
from pathlib import Path

import pynvml
import pytest
from ebbtide_agent.mps import daemon as daemons
from ebbtide_agent.mps.control import BINARY, MpsControl
from ebbtide_agent.mps.memory_limit import NotLimited, have_limit_set
from ebbtide_agent.processes.cgroup import ControlGroup, own_group

from tests.agent.gpu.cuda_process import OUT_OF_MEMORY, SUCCESS, CudaProcess
from tests.hardware.results import record

pytestmark = pytest.mark.gpu

GIB = 1 << 30
# Run in a shell that first enters a control group.
_ENTER = 'echo $$ > "$0"/cgroup.procs && exec "$@"'


@pytest.fixture
def uuid():
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))


@pytest.fixture
def mps(uuid):
    """The environment of a client of an MPS daemon for the first GPU alone."""
    binary = shutil.which(BINARY)
    assert binary, f"{BINARY} is not installed: it comes with the driver's compute utilities"
    with tempfile.TemporaryDirectory(prefix="ebb-") as directory:  # a short one: paths of sockets are below it
        daemon = daemons.start(MpsControl(binary, uuid, Path(directory, "mps")))
        yield daemon.control.environment
        assert daemons.end(daemon) == ()


@pytest.fixture
def group():
    """A control group below our own."""
    own = own_group(Path("/proc/self"))
    assert own is not None, "no control groups of version 2 are mounted"
    group = ControlGroup.create(own, f"ebb-test-{os.getpid()}")
    assert group is not None, f"not allowed to make a control group in {own}"
    yield group
    group.kill()
    assert group.is_empty_within(20)
    group.remove()


@pytest.fixture
def start(uuid):
    """Starts processes on the first GPU, and ends them."""
    started = []

    def start(**options) -> CudaProcess:
        started.append(CudaProcess(uuid, **options))
        return started[-1]

    yield start
    for process in started:
        process.end()


def test_without_mps_the_limit_holds_if_the_driver_offers_it(uuid, group, start):
    _limit_holds_if_offered("memory limit by control group, without MPS", uuid, group, start, {})


def test_under_mps_the_limit_holds_if_the_driver_offers_it(uuid, mps, group, start):
    _limit_holds_if_offered("memory limit by control group, under MPS", uuid, group, start, mps)


def _limit_holds_if_offered(name, uuid, group, start, environment) -> None:
    try:
        have_limit_set(uuid, group.path, 3 * GIB)
    except NotLimited as refusal:
        record(name, offered=False, reason=str(refusal))
        return
    inside = start(under=("/bin/sh", "-c", _ENTER, str(group.path)), **environment)
    outside = start(**environment)
    assert (inside.start_code, inside.allocate(GIB)) == (SUCCESS, SUCCESS)
    refused = inside.allocate(3 * GIB)
    now = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=os.fsencode(group.path))
    pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByIndex(0), now)
    record(name, offered=True, enforced=refused == OUT_OF_MEMORY, code=refused, used_bytes=now.currentUsed)
    assert refused == OUT_OF_MEMORY
    assert GIB <= now.currentUsed <= now.hardLimit == 3 * GIB
    assert inside.is_intact()
    assert outside.allocate(4 * GIB) == SUCCESS
