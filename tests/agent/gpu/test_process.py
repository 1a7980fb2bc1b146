"""The process that asks NVML may hang, crash or talk nonsense: the agent goes on, and asks another one."""

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from ebbtide_agent import agent_log
from ebbtide_agent.gpu import opening, process, serving
from ebbtide_agent.gpu.backend import DeviceLinkKind, Driver, GpuSettings, NoGpus
from ebbtide_agent.gpu.process import NvmlProcess
from ebbtide_agent.gpu.reader import GpuReader
from ebbtide_agent.gpu_use.attribution import Attribution
from ebbtide_agent.gpu_use.telemetry import GpusChanged, Telemetry
from ebbtide_agent.processes.isolated import package_roots
from ebbtide_agent.processes.procfs import children, read_stat

GIB = 1 << 30
SILENT = "NVML does not answer; asked again"
HANGS_S = 30.0
"""What takes so long is held up by a driver that hangs, or by a pause of a minute, and not by a slow machine."""

# A binding of NVML for the process to find: no driver until there is one, then the fake's GPUs.
BINDING = """
import pathlib, sys
from ebbtide_agent.gpu.fake import FakeNvml, NVMLError
_dir = pathlib.Path({state_dir!r})
_fake = FakeNvml(_dir)
nvmlMemory_v2 = 2
def nvmlInit():
    if not (_dir / "driver").exists():
        raise NVMLError(9)
def __getattr__(name):
    return getattr(_fake, name)
"""


@pytest.fixture
def opened(fake_node):
    """Makes a fake node, and a process that asks for its GPUs."""
    processes = []

    def make(profile, gpus="fake", **options):
        node = fake_node(profile)
        options = {"timeout_s": 10, "first_pause_s": 0.01, "again_s": 0.05} | options
        processes.append(NvmlProcess(gpus, node.state_dir, **options))
        return node, processes[-1]

    yield make
    for one in processes:
        one.close()


def test_it_says_what_the_backend_says(opened):
    node, apart = opened("4xRTX3090-nvlink")
    node.start({node.uuids[0]: 2 * GIB})
    assert (apart.kind, apart.gpus()) == ("fake", node.backend.gpus())
    assert apart.links() == node.backend.links()
    assert apart.links()[0].kind is DeviceLinkKind.NVLINK
    assert apart.driver() == Driver("580.65.06", "13.0")
    assert apart.settings(node.uuids[0]) == node.backend.settings(node.uuids[0]) != GpuSettings()
    assert [apart.read(uuid) for uuid in node.uuids] == [node.backend.read(uuid) for uuid in node.uuids]


def test_a_call_that_hangs_costs_the_process_its_life_and_nothing_else(opened):
    node, apart = opened("2xT4", timeout_s=0.3, first_pause_s=60)
    first = apart.pid
    node.faults(hang=["nvmlDeviceGetMemoryInfo"])
    began = time.monotonic()
    assert [apart.read(uuid).unhealthy_reason for uuid in node.uuids] == [SILENT] * 2
    assert time.monotonic() - began < HANGS_S
    _wait_until(lambda: read_stat(first) is None)  # killed and reaped
    node.faults()
    apart._next_at, apart._timeout_s = 0.0, 10.0  # as if the pause were over
    _wait_until(lambda: apart.read(node.uuids[0]).healthy)
    assert apart.pid not in (None, first)


def test_a_crash_is_noticed_at_once(opened):
    node, apart = opened("1xT4", first_pause_s=60)
    os.kill(apart.pid, signal.SIGSEGV)
    began = time.monotonic()
    reading = apart.read(node.uuids[0])
    assert (reading.unhealthy_reason, reading.gone) == (SILENT, False)
    assert time.monotonic() - began < HANGS_S
    assert apart.pid is None  # the pause is not over
    assert apart.read(node.uuids[0]).unhealthy_reason == SILENT
    assert [found.uuid for found in apart.gpus()] == node.uuids


def test_pauses_grow_while_it_fails(opened, monkeypatch):
    node, apart = opened("1xT4", first_pause_s=1.0)
    monkeypatch.setattr(process, "_roots", lambda: [])  # it cannot start
    os.kill(apart.pid, signal.SIGKILL)
    for pause_s in (1, 2, 4, 8, 16, 30, 30):
        before = time.monotonic()
        assert apart.read(node.uuids[0]).unhealthy_reason == SILENT
        assert before + pause_s <= apart._next_at <= time.monotonic() + pause_s
        apart._next_at = 0.0  # as if it were over


@pytest.mark.parametrize("nonsense", ["print('hello')", "print('[1]')", "print('{}')"])
def test_nonsense_is_no_answer(opened, monkeypatch, nonsense):
    says = "import os, sys; os.dup2(int(sys.argv[1]), 1)\n" + nonsense + "\nsys.stdout.flush()\ninput()"
    monkeypatch.setattr(process, "_BOOT", says)
    _, apart = opened("1xT4")
    assert apart.gpus() == ()
    assert apart.read("GPU-1").unhealthy_reason == SILENT


def test_it_ends_with_the_agent_even_while_it_hangs(fake_node):
    node = fake_node("1xT4")
    agent = (
        "import sys; from pathlib import Path; from ebbtide_agent.gpu.process import NvmlProcess\n"
        f"apart = NvmlProcess('fake', Path({str(node.state_dir)!r}))\n"
        "print(apart.pid, flush=True)\n"
        f"apart.read({node.uuids[0]!r})"
    )
    node.faults(hang=["nvmlDeviceGetMemoryInfo_v2"])
    # The first process reads the GPU's memory when it opens, and hangs: the agent waits for it for long.
    ours = subprocess.Popen([sys.executable, "-c", agent])
    _wait_until(lambda: children(ours.pid))
    (child,) = children(ours.pid)
    ours.kill()
    ours.wait()
    _wait_until(lambda: (stat := read_stat(child)) is None or not stat.alive)


def test_a_lost_gpu_is_looked_for_by_new_processes_and_comes_back(opened):
    node, apart = opened("2xT4")
    node.faults(lost=[node.uuids[0]])
    assert apart.read(node.uuids[0]).gone
    first = apart.pid
    _wait_until(lambda: apart.read(node.uuids[1]).healthy and apart.pid != first)
    assert apart.read(node.uuids[0]).gone
    assert [found.uuid for found in apart.gpus()] == node.uuids
    node.faults()
    _wait_until(lambda: apart.read(node.uuids[0]).healthy)


def test_a_driver_that_was_reloaded_is_asked_by_a_new_process(opened):
    node, apart = opened("1xT4")
    first = apart.pid
    node.faults(errors={"*": {"nvmlDeviceGetMemoryInfo": 18}})
    assert apart.read(node.uuids[0]).unhealthy_reason == "the driver was upgraded under us: reload it or reboot"
    _wait_until(lambda: apart.read(node.uuids[0]) and apart.pid != first)
    assert not apart.read(node.uuids[0]).healthy
    assert apart.gpus()[0].mem_bytes == 15 * GIB
    node.faults()
    _wait_until(lambda: apart.read(node.uuids[0]).healthy)


def test_a_gpu_that_was_lost_from_the_start_is_found_later(fake_node):
    node = fake_node("2xT4")
    node.faults(lost=[node.uuids[0]])
    apart = NvmlProcess("fake", node.state_dir, again_s=0.05)
    try:
        assert [found.uuid for found in apart.gpus()] == node.uuids[1:]
        node.faults()
        _wait_until(lambda: {found.uuid for found in apart.gpus()} == set(node.uuids))
    finally:
        apart.close()


def test_an_xid_stands_in_the_next_process_as_well(opened):
    node, apart = opened("1xT4")
    (uuid,) = node.uuids
    node.faults(xids=[{"uuid": uuid, "xid": 48, "number": 1}])
    assert not apart.read(uuid).healthy
    os.kill(apart.pid, signal.SIGKILL)
    node.faults()
    _wait_until(lambda: apart.read(uuid).unhealthy_reason.startswith("Xid 48"))


def test_a_driver_that_is_loaded_later_is_found(opened, fake_node, tmp_path, monkeypatch):
    node = fake_node("2xT4")
    (tmp_path / "pynvml.py").write_text(BINDING.format(state_dir=str(node.state_dir)))
    monkeypatch.setattr(process, "_roots", lambda: [*package_roots(), str(tmp_path)])
    apart = NvmlProcess("auto", node.state_dir, again_s=0.05)
    try:
        assert (apart.kind, apart.gpus()) == ("none", ())
        assert apart.read(node.uuids[0]).unhealthy_reason == "Driver Not Loaded"
        (node.state_dir / "driver").touch()
        _wait_until(lambda: [found.uuid for found in apart.gpus()] == node.uuids)
        assert apart.kind == "nvml"
        assert apart.read(node.uuids[0]).healthy
    finally:
        apart.close()


def test_a_driver_that_was_upgraded_under_the_agent_is_told_in_words_until_it_is_reloaded(opened):
    node, apart = opened("2xT4")
    node.faults(errors={"*": {"nvmlInit": 18}})
    os.kill(apart.pid, signal.SIGKILL)
    _wait_until(lambda: apart.read(node.uuids[0]).unhealthy_reason != SILENT)
    reading = apart.read(node.uuids[1])
    assert reading.unhealthy_reason == "the driver was upgraded under us: reload it or reboot"
    assert (reading.gone, len(apart.gpus())) == (False, 2)
    node.faults()
    _wait_until(lambda: apart.read(node.uuids[0]).healthy)


async def test_the_master_is_told_anew_when_gpus_are_found(fake_node):
    node = fake_node("2xT4")
    node.faults(lost=[node.uuids[0]])
    apart = NvmlProcess("fake", node.state_dir, again_s=0.05)
    try:
        telemetry = Telemetry(GpuReader(apart, timeout_s=60.0), Attribution(dict))
        assert [info.uuid for info in await telemetry.inventory()] == node.uuids[1:]
        assert len((await telemetry.heartbeat()).gpus) == 1
        node.faults()
        with pytest.raises(GpusChanged, match="2 GPUs are here, 1 were reported"):
            await _beat_for_ever(telemetry)
        assert {info.uuid for info in await telemetry.inventory()} == set(node.uuids)
        assert len((await telemetry.heartbeat()).gpus) == 2
    finally:
        apart.close()


async def test_an_xid_is_told_by_one_heartbeat_whoever_read_it(fake_node):
    node = fake_node("1xT4")
    reader = GpuReader(node.backend, timeout_s=60.0)
    node.faults(xids=[{"uuid": node.uuids[0], "xid": 31, "number": 1}])
    await reader.read(node.uuids)
    telemetry = Telemetry(reader, Attribution(dict))
    first, second = (await telemetry.heartbeat()).gpus, (await telemetry.heartbeat()).gpus
    assert (list(first[0].xids), list(second[0].xids)) == ([31], [])


def test_no_gpus_need_no_process(tmp_path):
    assert isinstance(opening.open_in_process("none", tmp_path, in_use=False), NoGpus)


async def _beat_for_ever(telemetry):
    async with asyncio.timeout(30):
        while True:
            await telemetry.heartbeat()
            await asyncio.sleep(0.01)  # a heartbeat while the driver does not answer lets nobody else have a turn


def _wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_it_ends_without_a_word_if_the_agent_is_killed_before_it_has_heard_the_answer(fake_node, monkeypatch):
    monkeypatch.setattr(serving, "_end_with", lambda agent: None)  # which would mostly be faster
    monkeypatch.setattr(agent_log, "configure", lambda: None)
    ours, theirs = socket.socketpair()
    with ThreadPoolExecutor() as threads:
        ending = threads.submit(serving.main, theirs.detach())
        order = {"gpus": "fake", "state_dir": str(fake_node("2xT4").state_dir), "xids": {}}
        ours.sendall(json.dumps(order).encode() + b"\n")
        select.select([ours], [], [])
        ours.close()
        ending.result()
