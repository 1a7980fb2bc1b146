"""Host memory is there before anything is copied into it, and is promised once."""

import json
import os

import pytest
from ebbtide_agent.swap import host_memory
from ebbtide_agent.swap.host_memory import SPARE_BYTES, NoHostMemory, reserved
from ebbtide_agent.swap.sequence import SwapOutcome
from ebbtide_machine.process import Identity

from tests.agent.swap.worlds import GIB


def test_a_job_is_refused_for_which_the_host_has_no_room(fake_world):
    job = fake_world.job(2 * GIB)
    fake_world.faults(host_room_bytes=GIB)
    result = job.suspend()
    assert result.ending is SwapOutcome.UNTOUCHED
    assert result.reason.startswith(f"host memory: {2 * GIB} bytes are needed, {GIB} available")
    assert job.pids[0] in fake_world.on_gpu()


def test_some_room_is_kept_spare(tmp_path):
    with reserved(tmp_path, GIB, GIB + SPARE_BYTES):
        pass
    with pytest.raises(NoHostMemory), reserved(tmp_path, GIB, GIB + SPARE_BYTES - 1):
        pass


def test_what_another_swap_was_promised_is_not_given_twice(tmp_path):
    promise(tmp_path, Identity.of(os.getppid()), 3 * GIB)
    with pytest.raises(NoHostMemory, match=f"{3 * GIB} of these promised"), reserved(tmp_path, GIB, 4 * GIB):
        pass


def test_the_promise_to_a_swap_that_was_killed_is_void(tmp_path):
    promise(tmp_path, Identity.nobody(), 3 * GIB)
    with reserved(tmp_path, GIB, 4 * GIB):
        pass


def test_a_machine_has_a_finite_room():
    assert 0 <= host_memory.room_bytes(os.getpid()) < 1 << 50


def test_a_cgroup_with_a_limit_narrows_the_room_and_its_file_pages_do_not_count(tmp_path, monkeypatch):
    group = tmp_path / "job"
    group.mkdir()
    for name, text in {
        "memory.max": str(4 * GIB),
        "memory.current": str(3 * GIB),
        "memory.stat": f"anon {GIB}\nactive_file {GIB}\ninactive_file {GIB // 2}\n",
    }.items():
        (group / name).write_text(text)
    (tmp_path / "memory.max").write_text("max\n")
    monkeypatch.setattr(host_memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(host_memory, "_own_cgroup", lambda pid: "job")
    monkeypatch.setattr(host_memory, "_available_bytes", lambda: 100 * GIB)
    assert host_memory.room_bytes(os.getpid()) == GIB + GIB + GIB // 2


def promise(directory, holder, mem_bytes):
    content = {"holder": holder.to_json(), "mem_bytes": mem_bytes}
    (directory / "another.json").write_text(json.dumps(content))
