"""What a GPU shows when nothing runs on it."""

import pytest
from ebbtide_agent.gpu.backend import GpuProcess, GpuReading
from ebbtide_agent.gpu_use.idle_use import IdleMemory

GIB = 1 << 30


def seen(used, processes=(), uuid="GPU-0"):
    return {uuid: GpuReading(uuid, mem_used_bytes=used, processes=processes)}


@pytest.mark.parametrize(
    ("reading", "held"),
    [
        (GpuReading("GPU-0", mem_used_bytes=GIB, processes=(GpuProcess(1, GIB),)), ()),
        (GpuReading("GPU-0", mem_used_bytes=GIB, processes=()), ("GPU-0",)),
        (GpuReading("GPU-0", mem_used_bytes=GIB, processes=None), ()),
        (GpuReading("GPU-0", mem_used_bytes=None, processes=()), ()),
    ],
)
def test_a_gpu_that_is_used_or_held_or_silent_does_not_show_what_idle_means(reading, held):
    idle = IdleMemory()
    idle.learn({"GPU-0": reading}, held)
    assert idle.of("GPU-0") is None


def test_what_idle_means_follows_the_display_up_and_down():
    idle = IdleMemory()
    for used in (GIB, 2 * GIB, GIB // 2):
        idle.learn(seen(used), held=())
        assert idle.of("GPU-0") == used


def test_what_a_job_left_is_never_taken_for_idle():
    idle = IdleMemory()
    idle.learn(seen(GIB), held=())
    idle.mark_stuck({"GPU-0"})
    idle.learn(seen(4 * GIB), held=())
    assert idle.of("GPU-0") == GIB
    idle.learn(seen(GIB + 1), held=())
    idle.learn(seen(3 * GIB), held=())
    assert idle.of("GPU-0") == 3 * GIB  # it had been released; this is something new


def test_the_next_agent_knows_it(tmp_path):
    first = IdleMemory(tmp_path / "idle.json")
    first.learn(seen(GIB), held=())
    first.mark_stuck({"GPU-0"})
    second = IdleMemory(tmp_path / "idle.json")
    second.learn(seen(4 * GIB), held=())
    assert second.of("GPU-0") == GIB


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"boot_id": "of before"}', '{"idle_bytes": 7}'])
def test_a_record_that_is_damaged_or_old_says_nothing(tmp_path, content):
    (tmp_path / "idle.json").write_text(content)
    assert IdleMemory(tmp_path / "idle.json").of("GPU-0") is None
