"""What keeps a process from taking more GPU memory than it was given: MPS, and the driver by control group."""

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pynvml
import pytest
from ebbtide_agent.gpu.nvml import open_nvml
from ebbtide_agent.supervisor.cgroup import Group, own_group

from tests.agent.gpu.cuda_process import OUT_OF_MEMORY, SUCCESS, CudaProcess
from tests.hardware.results import record

pytestmark = pytest.mark.gpu

GIB = 1 << 30
_CONTROL = "nvidia-cuda-mps-control"
# Run in a shell that first enters a control group.
_ENTER = 'echo $$ > "$0"/cgroup.procs && exec "$@"'


@pytest.fixture
def uuid():
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))


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


@pytest.fixture
def mps(uuid):
    """The environment of a client of an MPS daemon for the first GPU alone."""
    assert shutil.which(_CONTROL), f"{_CONTROL} is not installed: it comes with the driver's compute utilities"
    with tempfile.TemporaryDirectory(prefix="ebb-mps-") as name:  # short: a socket's path is below it
        client = {"CUDA_MPS_PIPE_DIRECTORY": name, "CUDA_MPS_LOG_DIRECTORY": name}
        environment = {**os.environ, **client, "CUDA_VISIBLE_DEVICES": uuid}
        subprocess.run([_CONTROL, "-d"], env=environment, check=True, timeout=30)
        yield client
        subprocess.run([_CONTROL], input="quit\n", text=True, env=environment, check=True, timeout=60)


def test_a_client_of_mps_gets_no_more_than_its_limit_and_its_neighbour_notices_nothing(mps, start):
    limited = start(**mps, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2G")
    neighbour = start(**mps)
    assert (limited.start_code, neighbour.start_code) == (SUCCESS, SUCCESS)
    assert neighbour.allocate(GIB) == SUCCESS
    assert limited.allocate(GIB) == SUCCESS
    assert limited.allocate(2 * GIB) == OUT_OF_MEMORY
    assert limited.is_intact()
    assert neighbour.allocate(GIB) == SUCCESS
    assert neighbour.is_intact()
    record("MPS memory limit", offered=True, limit_bytes=2 * GIB)


def test_clients_of_mps_are_told_as_such_and_its_server_is_nobodys(mps, start, uuid):
    client = start(**mps)
    assert (client.start_code, client.allocate(GIB)) == (SUCCESS, SUCCESS)
    processes = {process.pid: process.mps for process in open_nvml().read(uuid).processes}
    assert processes[client.pid]
    ask = {"input": "get_server_list\n", "text": True, "timeout": 30, "check": True, "env": {**os.environ, **mps}}
    servers = subprocess.run([_CONTROL], stdout=subprocess.PIPE, **ask).stdout
    pids = [int(word) for word in servers.split() if word.isdigit()]
    assert pids
    assert not set(pids) & processes.keys()


@pytest.fixture
def group():
    """A control group below our own, or below the root of all groups."""
    own = own_group(Path("/proc/self"))
    assert own is not None, "no control groups of version 2 are mounted"
    group = Group.create(own, f"ebb-test-{os.getpid()}")
    assert group is not None, f"not allowed to make a control group in {own}"
    yield group
    group.kill()
    group.is_empty_within(20)
    with suppress(OSError):
        group.path.rmdir()


def test_a_limit_by_control_group_holds_if_the_driver_offers_it(start, group):
    _limit_by_group("memory limit by control group, without MPS", start, group, {})


def test_a_limit_by_control_group_holds_under_mps_if_the_driver_offers_it(mps, start, group):
    _limit_by_group("memory limit by control group, under MPS", start, group, mps)


def _limit_by_group(name, start, group, environment):
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    path = str(group.path).encode()
    refusal = _refusal(handle, pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=path, softLimit=0, hardLimit=3 * GIB))
    if refusal:
        record(name, offered=False, code=refusal)
        # Function not found and not supported by older drivers; without root nobody is permitted.
        assert refusal in (3, 4, 13)
        return
    inside = start(under=("/bin/sh", "-c", _ENTER, str(group.path)), **environment)
    outside = start(**environment)
    assert (inside.start_code, inside.allocate(GIB)) == (SUCCESS, SUCCESS)
    refused = inside.allocate(3 * GIB)
    now = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=path)
    pynvml.nvmlDeviceGetMemoryLimits_v1(handle, now)
    record(name, offered=True, enforced=refused == OUT_OF_MEMORY, code=refused, used_bytes=now.currentUsed)
    assert now.hardLimit == 3 * GIB
    assert now.currentUsed >= GIB
    assert refused == OUT_OF_MEMORY
    assert inside.is_intact()
    assert outside.allocate(4 * GIB) == SUCCESS


def _refusal(handle, limits) -> int:
    """NVML's code, 0 if the limits are set."""
    try:
        pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)
    except pynvml.NVMLError as error:
        return error.value
    return 0
