"""What heartbeats say of GPUs and of the processes on them."""

import json
import os
import pwd

from ebbtide_agent.gpu.nvml import NvmlBackend
from ebbtide_agent.gpu.reader import GpuReader
from ebbtide_agent.gpu_use.attribution import Attribution
from ebbtide_agent.gpu_use.telemetry import Telemetry
from ebbtide_agent.node_end import NodeEnd
from ebbtide_machine.process import boot_id
from ebbtide_protos.v1 import agent_pb2

from tests.agent.gpu.hand_nvml import HandNvml

GIB = 1 << 30


def _telemetry(backend, attempts):
    return Telemetry(GpuReader(backend, timeout_s=60.0), Attribution(lambda: attempts))


async def test_a_heartbeat_names_the_attempt_or_else_the_user_and_the_command(fake_node):
    node = fake_node("2xT4")
    ours = node.start({node.uuids[0]: 2 * GIB})
    foreign = node.start({node.uuids[0]: GIB, node.uuids[1]: GIB})
    heartbeat = await _telemetry(node.backend, {("17", 3): (ours.pid,)}).heartbeat()
    first, second = heartbeat.gpus
    assert [first.uuid, second.uuid] == node.uuids
    by_pid = {process.pid: process for process in first.processes}
    assert set(by_pid) == {ours.pid, foreign.pid}
    assert (by_pid[ours.pid].job_id, by_pid[ours.pid].attempt, by_pid[ours.pid].mem_bytes) == ("17", 3, 2 * GIB)
    assert (by_pid[ours.pid].user, by_pid[ours.pid].command) == ("", "")
    assert (by_pid[foreign.pid].job_id, by_pid[foreign.pid].mem_bytes) == ("", GIB)
    assert by_pid[foreign.pid].user == pwd.getpwuid(os.getuid()).pw_name
    assert by_pid[foreign.pid].command.startswith("python")
    assert [process.pid for process in second.processes] == [foreign.pid]


async def test_an_inventory_tells_where_a_gpu_is_and_how_it_reaches_the_others(fake_node):
    node = fake_node("dgx-a100")
    inventory = await _telemetry(node.backend, {}).inventory()
    first, last = inventory[0], inventory[7]
    assert (first.numa_node, last.numa_node, first.compute_capability) == (0, 1, "8.0")
    assert first.pci_bus_id == "00000000:01:00.0"
    assert [peer.uuid for peer in last.peers] == node.uuids[:7]
    assert {peer.link for peer in last.peers} == {agent_pb2.GPU_LINK_NVLINK}


async def test_a_heartbeat_tells_heat_power_and_what_comes_through_mps(fake_node):
    node = fake_node("1xA100-40GB")
    client = node.start({node.uuids[0]: GIB})
    entry = json.loads((node.state_dir / "processes" / f"{client.pid}.json").read_text())
    node.write(f"processes/{client.pid}.json", entry | {"mps": True})
    (gpu,) = (await _telemetry(node.backend, {}).heartbeat()).gpus
    assert (gpu.temperature_c, gpu.power_w, gpu.mem_reserved_bytes) == (35, 25.0, 0)
    assert [(process.pid, process.mps) for process in gpu.processes] == [(client.pid, True)]


async def test_what_is_not_available_stays_unset_in_a_heartbeat(fake_node):
    library = HandNvml(count=1)
    backend = NvmlBackend(library)
    library.processes(0, (os.getpid(), None))
    library.answer("nvmlDeviceGetUtilizationRates", 0, library.NVMLError(3, "Not Supported"))
    for version in ("memory v2", "memory v1"):
        library.answer(version, 0, library.NVMLError(3, "Not Supported"))
    (gpu,) = (await _telemetry(backend, {}).heartbeat()).gpus
    assert gpu.healthy
    assert not gpu.HasField("mem_used_bytes")
    assert not gpu.HasField("utilisation")
    assert not gpu.processes[0].HasField("mem_bytes")


async def test_a_node_that_is_to_be_left_at_once_also_keeps_the_end_that_was_announced_before(fake_node, tmp_path):
    notice = tmp_path / "notice.json"
    backend = fake_node("1xT4").backend
    telemetry = Telemetry(GpuReader(backend, timeout_s=60.0), Attribution(dict), end=NodeEnd(None, notice))

    async def said(going: bool) -> tuple[bool, float | None]:
        telemetry.note_shutdown(going)
        heartbeat = await telemetry.heartbeat()
        return heartbeat.leaving, heartbeat.loan.until if heartbeat.HasField("loan") else None

    notice.write_text(json.dumps({"until": 9e9, "boot_id": boot_id()}))
    assert await said(going=True) == (False, 9e9), "its jobs leave in time for that"
    assert await said(going=True) == (True, 9e9)
    notice.write_text(json.dumps({"until": 8e9, "boot_id": boot_id()}))
    assert await said(going=True) == (False, 8e9)
    notice.unlink()
    assert await said(going=False) == (False, None)
    assert await said(going=True) == (True, None)


async def test_a_lost_gpu_is_told_in_heartbeat_and_inventory_with_the_memory_it_had(fake_node):
    node = fake_node("2xT4")
    telemetry = _telemetry(node.backend, {})
    node.faults(lost=[node.uuids[1]])
    heartbeat = await telemetry.heartbeat()
    assert [(gpu.healthy, gpu.unhealthy_reason) for gpu in heartbeat.gpus] == [(True, ""), (False, "GPU is lost")]
    inventory = await telemetry.inventory()
    assert [(gpu.index, gpu.model, gpu.mem_bytes) for gpu in inventory] == [(n, "T4", 15 * GIB) for n in (0, 1)]
    assert [(gpu.healthy, gpu.unhealthy_reason) for gpu in inventory] == [(True, ""), (False, "GPU is lost")]


async def test_a_process_that_the_gpu_lists_but_nobody_knows_does_not_break_the_heartbeat(fake_node):
    library = HandNvml(count=1)
    library.processes(0, (2**22 + 1, GIB))
    (gpu,) = (await _telemetry(NvmlBackend(library), {}).heartbeat()).gpus
    assert [(process.pid, process.user, process.command) for process in gpu.processes] == [(2**22 + 1, "", "")]
