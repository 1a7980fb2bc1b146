"""The same on hardware: NVIDIA's own daemon and server, clients that use the driver, limits that hold, a real fault.

Needs a GPU of Volta or newer in the default compute mode, and nvidia-cuda-mps-control.
"""

import os
import shutil
import subprocess
import sys

import pytest
from ebbtide_agent.contract.intent import AllocatedGpu
from ebbtide_agent.gpu.nvml import open_nvml
from ebbtide_agent.mps import daemon as daemons
from ebbtide_agent.mps.control import BINARY, MpsControl
from ebbtide_agent.mps.daemon import FAULT
from ebbtide_agent.mps.environment import mps_environment
from ebbtide_agent.mps.memory_limit import NotLimited, have_limit_set
from ebbtide_agent.processes.cgroup import ControlGroup, delegated

pytestmark = pytest.mark.gpu

GIB = 1 << 30
MIB = 1 << 20
# Says "ready" with a context on the GPU, then obeys: a number allocates so many MiB, "fault" writes where nothing is,
# "sync" waits for the GPU. Each answer is the driver's code, 0 for success.
CLIENT = r"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def check(code):
    if code:
        sys.exit(f"CUDA error {code}")
device, context = ctypes.c_int(), ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
PTX = b'''.version 6.0
.target sm_70
.address_size 64
.visible .entry bad() { .reg .b64 %a; .reg .b32 %v; mov.u64 %a, 16; mov.u32 %v, 1; st.global.u32 [%a], %v; ret; }
'''
count = ctypes.c_int()
check(cuda.cuDeviceGetAttribute(ctypes.byref(count), 16, device))
print(f"ready {count.value}", flush=True)
for line in sys.stdin:
    word = line.strip()
    if word == "sync":
        print(cuda.cuCtxSynchronize(), flush=True)
    elif word == "fault":
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
        check(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"bad"))
        cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        print(cuda.cuCtxSynchronize(), flush=True)
    else:
        at = ctypes.c_uint64()
        print(cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(word) << 20)), flush=True)
"""
OUT_OF_MEMORY = 2


@pytest.fixture
def gpu():
    """The first GPU of this machine, as an allocation of a quarter with 2 GiB."""
    return AllocatedGpu(open_nvml().gpus()[0].uuid, 1, 4, 2 * GIB)


@pytest.fixture
def daemon(gpu, place):
    found = shutil.which(BINARY)
    assert found is not None, f"{BINARY} is not installed"
    started = daemons.start(MpsControl(found, gpu.uuid, place / "mps" / "1"))
    yield started
    assert daemons.end(started) == ()


@pytest.fixture
def client(gpu, daemon):
    """Starts clients of the daemon; returns the process and how many multiprocessors it sees."""
    processes = []

    def start():
        environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": gpu.uuid}
        library = {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            env=environment | library | mps_environment(daemon.control, gpu, 1),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        processes.append(process)
        word, count = process.stdout.readline().split()
        assert word == "ready"
        return process, int(count)

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def tell(process, word):
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return int(process.stdout.readline())


def test_a_process_with_the_environment_is_a_client_and_the_servers_memory_is_not_its(client, daemon, gpu):
    process, _ = client()
    assert daemon.clients() == (process.pid,)
    listed = {found.pid for found in open_nvml().read(gpu.uuid).processes}
    assert process.pid in listed
    assert daemon.failure() == ""


def test_memory_beyond_the_limit_is_refused_and_the_neighbour_has_its_own(client, gpu):
    one, _ = client()
    two, _ = client()
    assert tell(one, 1024) == 0
    assert tell(one, 2048) == OUT_OF_MEMORY
    assert tell(two, 1024) == 0


def test_a_client_has_its_share_of_the_multiprocessors(client, gpu):
    _, few = client()
    whole = [sys.executable, "-c", CLIENT]
    environment = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": gpu.uuid}
    environment |= {name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"}
    environment["CUDA_MPS_PIPE_DIRECTORY"] = "/nonexistent"
    done = subprocess.run(whole, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    every = int(done.stdout.split()[1])
    assert 0 < few <= every // 4 + 2  # they come in pairs, or larger groups


def test_a_fatal_fault_of_one_client_is_that_of_all_and_the_daemon_says_so(client, daemon):
    bad, _ = client()
    neighbour, _ = client()
    assert tell(bad, "fault") != 0
    assert tell(neighbour, "sync") != 0
    assert daemon.failure() in (FAULT, "its server died")


def test_after_a_fault_a_new_daemon_serves_again(client, daemon):
    bad, _ = client()
    assert tell(bad, "fault") != 0
    bad.kill()
    bad.wait()
    assert daemons.end(daemon) == ()
    again = daemons.start(daemon.control)
    process, _ = client()
    assert tell(process, 16) == 0
    process.kill()
    process.wait()
    assert daemons.end(again) == ()


def test_the_driver_limits_a_control_group_or_says_why_not(gpu):
    parent = delegated()
    group = None if parent is None else ControlGroup.create(parent, "ebb-test-limit")
    if group is None:
        pytest.fail("needs a delegated control group (v2)")
    try:
        have_limit_set(gpu.uuid, group.path, 2 * GIB)
        reason = ""
    except NotLimited as error:
        reason = str(error)
    group.remove()
    assert reason == "" or reason.startswith(("NVML: ", "this NVML binding"))
