"""What a node's GPUs are besides memory and processes: links, slices, settings, numbers that drivers may lack."""

from types import SimpleNamespace

import pytest
from ebbtide_agent.gpu.backend import DeviceLinkKind, Driver, GpuSettings
from ebbtide_agent.gpu.nvml import NvmlBackend, numa_node_of
from ebbtide_agent.processes import procfs

from tests.agent.gpu import hand_nvml
from tests.agent.gpu.hand_nvml import HandNvml, NVMLError

GIB = 1 << 30


def _kinds(backend):
    places = {gpu.uuid: gpu.index for gpu in backend.gpus()}
    return {(places[link.one], places[link.other]): link.kind for link in backend.links()}


def test_gpus_behind_nvlink_switches_reach_each_other_by_nvlink(fake_node):
    kinds = _kinds(fake_node("dgx-h100").backend)
    assert len(kinds) == 28
    assert set(kinds.values()) == {DeviceLinkKind.NVLINK}


def test_bridged_pairs_are_told_from_the_rest(fake_node):
    kinds = _kinds(fake_node("4xRTX3090-nvlink").backend)
    assert kinds[0, 1] == kinds[2, 3] == DeviceLinkKind.NVLINK
    assert kinds[1, 2] == DeviceLinkKind.HOST_BRIDGE


def test_switches_and_numa_nodes_order_the_rest(tmp_path, fake_node):
    profile = tmp_path / "node.toml"
    halves = "".join(f'[[gpu]]\nmodel = "T4"\ncount = 2\nnuma_node = {node}\n' for node in (0, 1))
    profile.write_text("switches = [[0, 1]]\n" + halves)
    node = fake_node(str(profile))
    kinds = _kinds(node.backend)
    assert (kinds[0, 1], kinds[2, 3], kinds[1, 2]) == (
        DeviceLinkKind.SWITCH,
        DeviceLinkKind.HOST_BRIDGE,
        DeviceLinkKind.SYSTEM,
    )
    found = node.library
    assert [found.numa_node(gpu.pci_bus_id) for gpu in node.backend.gpus()] == [0, 0, 1, 1]


def test_a_driver_that_knows_nothing_of_links_says_none():
    backend = NvmlBackend(HandNvml())
    assert (backend.links(), backend.driver()) == ((), Driver())
    assert backend.settings("GPU-0") == GpuSettings()
    gpu = backend.gpus()[0]
    assert (gpu.pci_bus_id, gpu.numa_node, gpu.compute_capability, gpu.parent) == ("", None, "", "")


@pytest.mark.parametrize("level", [0, 10, 20, 30, 40, 50])
def test_every_level_of_a_topology_has_its_kind(level):
    library = HandNvml()
    library.nvmlDeviceGetTopologyCommonAncestor = lambda one, other: level
    library.nvmlDeviceGetP2PStatus = lambda one, other, index: 5
    (link,) = NvmlBackend(library).links()
    assert (link.one, link.other) == ("GPU-0", "GPU-1")
    assert link.kind == {0: 2, 10: 2, 20: 2, 30: 3, 40: 4, 50: 5}[level]


def test_versions_come_as_people_write_them(fake_node):
    assert fake_node("1xT4").backend.driver() == Driver("580.65.06", "13.0")


def test_settings_are_read_as_they_are_now(fake_node):
    node = fake_node("1xT4")
    (uuid,) = node.uuids
    assert node.backend.settings(uuid) == GpuSettings(persistence=True, compute_mode="default", mig=False)
    assert node.backend.settings("GPU-nobody") == GpuSettings()
    node.faults(lost=[uuid])
    assert node.backend.settings(uuid) == GpuSettings()


def test_a_gpu_that_is_cut_up_offers_its_slices_instead_of_itself(fake_node):
    node = fake_node("1xA100-40GB:3g.20gb,1g.5gb*2")
    gpus = node.backend.gpus()
    assert [gpu.index for gpu in gpus] == [0, 1, 2]
    assert all(gpu.uuid.startswith("MIG-") and gpu.parent.startswith("GPU-") for gpu in gpus)
    assert gpus[1].mem_bytes == 4864 * (1 << 20)
    assert node.backend.links() == ()
    process = node.start({gpus[1].uuid: GIB})
    busy, idle = (node.backend.read(gpu.uuid) for gpu in gpus[1:])
    assert [found.pid for found in busy.processes] == [process.pid]
    assert (idle.processes, idle.healthy, idle.utilisation) == ((), True, None)
    assert idle.temperature_c is not None  # of the GPU that it is cut from
    assert node.backend.settings(gpus[0].uuid).mig is True


def test_a_lost_gpu_takes_its_slices_with_it(fake_node):
    node = fake_node("1xA100-40GB:1g.5gb*2")
    node.faults(lost=[node.backend.gpus()[0].parent])
    assert all(node.backend.read(gpu.uuid).gone for gpu in node.backend.gpus())


def test_slices_keep_the_numbers_of_gpus_apart(tmp_path, fake_node):
    profile = tmp_path / "node.toml"
    profile.write_text('[[gpu]]\nmodel = "A100-40GB"\nmig = "1g.5gb*3"\n[[gpu]]\nmodel = "T4"\n')
    assert [gpu.index for gpu in fake_node(str(profile)).backend.gpus()] == [0, 1, 2, 3]


def test_what_the_driver_keeps_for_itself_is_told_apart(fake_node):
    node = fake_node("1xT4")
    content = {"uuid": "GPU-1", "model": "T4", "mem_bytes": 16 * GIB, "idle_bytes": 0, "reserved_bytes": GIB}
    node.write("gpus.json", {"gpus": [content]})
    reading = NvmlBackend(type(node.library)(node.state_dir)).read("GPU-1")
    assert (reading.mem_used_bytes, reading.mem_reserved_bytes, reading.mem_total_bytes) == (0, GIB, 16 * GIB)


def test_heat_and_power_are_told(fake_node):
    reading = (node := fake_node("1xT4")).backend.read(node.uuids[0])
    assert (reading.temperature_c, reading.power_w) == (35, 25.0)


def test_a_newer_driver_is_asked_for_heat_the_newer_way():
    library = HandNvml()
    library.nvmlDeviceGetTemperatureV = lambda handle, sensor: 47
    assert NvmlBackend(library).read("GPU-0").temperature_c == 47


def test_an_mps_server_is_nobodys_process_and_its_clients_are_told_as_such(monkeypatch):
    server = procfs.ProcessStat(7, 1, 1, "nvidia-cuda-mps", True, 0.0)
    monkeypatch.setattr(procfs, "read_stat", lambda pid: server if pid == 7 else None)
    library = HandNvml()
    library.processes(0, (7, GIB), (8, GIB))
    library.answer("nvmlDeviceGetMPSComputeRunningProcesses_v3", 0, [SimpleNamespace(pid=9, usedGpuMemory=GIB)])
    found = NvmlBackend(library).read("GPU-0").processes
    assert [(process.pid, process.mps) for process in found] == [(8, False), (9, True)]


def test_bus_ids_lead_to_the_kernels_numa_nodes(tmp_path, monkeypatch):
    monkeypatch.setattr("ebbtide_agent.gpu.nvml._PCI_DEVICES", tmp_path)
    for name, node in (("0000:65:00.0", "1\n"), ("0001:0a:00.0", "-1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "numa_node").write_text(node)
    assert numa_node_of("00000000:65:00.0") == 1
    assert numa_node_of("00000001:0A:00.0") is None
    assert numa_node_of("00000002:0A:00.0") is None
    assert numa_node_of("") is None


def test_the_drivers_order_may_change_at_a_reboot_and_every_gpu_stays_itself(fake_node):
    node = fake_node("4xT4")
    process = node.start({node.uuids[2]: 2 * GIB})
    node.faults(order=list(reversed(node.uuids)))
    again = NvmlBackend(type(node.library)(node.state_dir))
    assert [gpu.uuid for gpu in again.gpus()] == list(reversed(node.uuids))
    for backend in (node.backend, again):
        assert [found.pid for found in backend.read(node.uuids[2]).processes] == [process.pid]
        assert backend.read(node.uuids[1]).processes == ()


# What each code means.


def _failing(code, *calls):
    library = HandNvml()
    for call in calls:
        library.answer(call, 0, NVMLError(code, f"code {code}"))
    return NvmlBackend(library).read("GPU-0")


_MEMORY = ("memory v2", "memory v1")


@pytest.mark.parametrize("code", [3, 4, 6, 7, 13, 21, 25, 26, 27])
def test_a_question_without_an_answer_is_no_fault(code):
    calls = (*_MEMORY, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetUtilizationRates")
    reading = _failing(code, *calls)
    assert reading.healthy
    assert (reading.mem_used_bytes, reading.processes, reading.utilisation) == (None, None, None)


@pytest.mark.parametrize("code", [15, 16, 28])
def test_a_gpu_that_is_gone_is_so_for_certain(code):
    reading = _failing(code, "memory v2")
    assert (reading.healthy, reading.gone, reading.unhealthy_reason) == (False, True, f"code {code}")


def test_an_upgraded_driver_is_told_in_words_and_loses_nothing():
    reading = _failing(18, "memory v2")
    assert (reading.healthy, reading.gone) == (False, False)
    assert reading.unhealthy_reason == "the driver was upgraded under us: reload it or reboot"


@pytest.mark.parametrize("code", [1, 2, 17, 20, 29, 999])
def test_any_other_trouble_is_one_unhealthy_reading(code):
    reading = _failing(code, "nvmlDeviceGetUtilizationRates")
    assert (reading.healthy, reading.gone, reading.unhealthy_reason) == (False, False, f"code {code}")


def test_a_gpu_that_was_lost_is_looked_up_again_and_found():
    library = HandNvml()
    backend = NvmlBackend(library)
    library.answer("memory v2", 0, hand_nvml.GPU_IS_LOST)
    assert backend.read("GPU-0").gone
    library.answer("nvmlDeviceGetHandleByUUID", 0, hand_nvml.NOT_FOUND)
    assert backend.read("GPU-0").unhealthy_reason == "the driver does not know this GPU"
    library.answers.clear()
    assert backend.read("GPU-0").healthy
