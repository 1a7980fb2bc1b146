"""Which way the jobs on a GPU share it, by what the GPU is and by who is there; no job is really started."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from ebbtide_agent.contract.intent import AllocatedGpu as Part
from ebbtide_agent.gpu.backend import Gpu, GpuProcess, GpuReading, GpuSettings
from ebbtide_agent.mps import find_binary, sharing
from ebbtide_agent.mps.memory_limit import NotLimited
from ebbtide_agent.mps.sharing import GpuSharing, NotShared, SharingMode
from ebbtide_agent.processes.cgroup import group_name

from tests.agent.mps.test_environment import GIB, intent

UUID = "GPU-8a4f5b6c"
GPU = Gpu(UUID, 0, "A", 24 * GIB, compute_capability="9.0")


def job(id, uuid=UUID, **changes):
    return replace(intent({}), job_id=id, gpus=(Part(uuid, 1, 4, 6 * GIB),), **changes)


@asynccontextmanager
async def shared(place, binary, gpu=GPU, settings=None):
    found = GpuSharing(place / "node", binary, look_s=0.02)
    await found.set_gpus((gpu,), lambda _: settings or GpuSettings(), fake=False)
    yield found
    for id in "123":
        found.forget((id, 1))
    await found.close()


@pytest.mark.parametrize(
    ("gpu", "settings"),
    [
        (GPU, GpuSettings(mig=True)),
        (replace(GPU, uuid="MIG-8a4f5b6c", parent=UUID), None),
        (GPU, GpuSettings(compute_mode="prohibited")),
        (replace(GPU, compute_capability="6.1"), None),
    ],
    ids=["MIG", "a slice", "compute mode prohibited", "before Volta"],
)
async def test_a_gpu_that_can_have_no_server_is_time_sliced(place, binary, gpu, settings):
    async with shared(place, binary, gpu, settings) as ways:
        assert (await ways.prepare(job("1", gpu.uuid))).sharing is SharingMode.TIME_SLICING
        assert not ways.has_mps(gpu.uuid)


@pytest.mark.parametrize("program", ["", "/bin/false"], ids=["no program", "a daemon that does not start"])
async def test_without_a_daemon_it_is_time_sliced(place, program):
    async with shared(place, program) as ways:
        assert (await ways.prepare(job("1"))).sharing is SharingMode.TIME_SLICING


async def test_all_shares_go_one_way_even_if_the_other_becomes_possible(place, binary):
    async with shared(place, binary, settings=GpuSettings(mig=True)) as ways:
        await ways.prepare(job("1"))
        await ways.set_gpus((GPU,), lambda _: GpuSettings(), fake=False)
        assert (await ways.prepare(job("2"))).sharing is SharingMode.TIME_SLICING
        ways.forget(("1", 1))
        ways.forget(("2", 1))
        assert (await ways.prepare(job("3"))).sharing is SharingMode.MPS


async def test_a_job_that_swaps_is_no_client_and_keeps_others_from_it(place, binary):
    async with shared(place, binary) as ways:
        swap = await ways.prepare(job("1", swaps=True))
        assert (swap.sharing, swap.limited_by) == (SharingMode.TIME_SLICING, "")
        assert swap.sharing_env == {"CUDA_MPS_PIPE_DIRECTORY": f"{place}/node/mps/none"}
        assert (await ways.prepare(job("2"))).sharing is SharingMode.TIME_SLICING


async def test_a_job_that_swaps_is_refused_beside_clients(place, binary):
    async with shared(place, binary) as ways:
        client = await ways.prepare(job("1"))
        assert (client.sharing, client.limited_by) == (SharingMode.MPS, "mps")
        with pytest.raises(NotShared, match="the driver swaps no process while one runs"):
            await ways.prepare(job("2", swaps=True))


async def test_a_whole_gpu_and_none_are_not_shared(place, binary):
    async with shared(place, binary) as ways:
        whole = replace(intent({}), gpus=(Part(UUID, 1, 1, 24 * GIB),))
        assert await ways.prepare(whole) == whole
        assert (await ways.prepare(replace(whole, gpus=()))).sharing == ""


async def test_the_server_is_no_foreign_process(place, binary):
    async with shared(place, binary) as ways:
        await ways.prepare(job("1"))
        server, stranger = GpuProcess(ways._gpus[UUID].daemon.servers[0].pid, GIB), GpuProcess(1, GIB)
        assert ways.without_server(GpuReading(UUID, processes=(server, stranger))).processes == (stranger,)


@pytest.fixture
def groups(monkeypatch, place):
    """A directory that passes for the agent's own control group; returns what limits were set below it."""
    (place / "group").mkdir()
    monkeypatch.setattr(sharing, "parent_of_attempts", lambda: place / "group")
    limits = {}
    monkeypatch.setattr(sharing, "have_limit_set", lambda uuid, group, size: limits.update({group: (uuid, size)}))
    return limits


async def test_where_the_driver_can_it_limits_the_memory_of_the_attempts_control_group(place, groups):
    async with shared(place, "") as ways:
        limited = await ways.prepare(job("1"))
        assert groups == {place / "group" / group_name(limited.node_dir, "1.1"): (UUID, 6 * GIB)}
        assert (limited.sharing, limited.limited_by) == (SharingMode.TIME_SLICING, "driver")


async def test_a_driver_that_cannot_is_not_asked_again(place, groups, monkeypatch):
    asked = []

    def refuse(*limit):
        asked.append(limit)
        raise NotLimited("NVML: Not Supported")

    monkeypatch.setattr(sharing, "have_limit_set", refuse)
    async with shared(place, "") as ways:
        assert [(await ways.prepare(job(id))).limited_by for id in "12"] == ["", ""]
        assert len(asked) == 1
        assert list((place / "group").iterdir()) == []


def test_auto_finds_the_program_on_the_path_and_leaves_fake_gpus_alone(binary):
    assert find_binary("auto", fake=False) == binary
    assert find_binary("auto", fake=True) == ""
    assert find_binary(binary, fake=True) == binary
    assert find_binary("off", fake=False) == ""


def test_a_program_that_is_none_is_refused():
    with pytest.raises(ValueError, match="--mps: 'sometimes' is neither auto nor off, and no program"):
        find_binary("sometimes", fake=False)
