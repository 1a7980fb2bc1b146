"""What a GPU shows when nothing runs on it."""

import pytest
from ebbtide_agent.gpu.backend import GpuProcess, GpuReading
from ebbtide_agent.gpu_use.idle_use import STAYS_S, IdleMemory

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
    idle.learn({"GPU-0": reading}, held, 0.0)
    assert idle.of("GPU-0") is None


def learned(idle, *shown, held=()):
    """What the GPU is taken to show when idle after it has shown this, in readings that are as far apart as matters."""
    for at, used in enumerate(shown):
        idle.learn(seen(used), held, at * STAYS_S)
    return idle.of("GPU-0")


def test_what_idle_means_follows_the_display_down_at_once_and_up_once_it_stays():
    idle = IdleMemory()
    assert learned(idle, GIB) == GIB
    assert learned(idle, 2 * GIB) == GIB
    assert learned(idle, 2 * GIB, 2 * GIB + 1) == 2 * GIB
    assert learned(idle, GIB // 2) == GIB // 2


@pytest.mark.parametrize(
    "meanwhile",
    [
        pytest.param(GpuReading("GPU-0", mem_used_bytes=4 * GIB, processes=(GpuProcess(1, 4 * GIB),)), id="a process"),
        pytest.param(GpuReading("GPU-0", mem_used_bytes=4 * GIB, processes=None), id="nobody knows"),
        pytest.param(GpuReading("GPU-0", mem_used_bytes=8 * GIB, processes=()), id="more is added"),
        pytest.param(GpuReading("GPU-0", mem_used_bytes=0, processes=()), id="it was given back"),
    ],
)
def test_what_the_driver_gives_back_late_is_not_idle(meanwhile):
    idle = IdleMemory()
    for at, reading in ((0.0, 0), (1.0, 4 * GIB), (STAYS_S, meanwhile), (STAYS_S + 2.0, 4 * GIB)):
        idle.learn({"GPU-0": reading} if reading is meanwhile else seen(reading), (), at)
    assert idle.of("GPU-0") == 0


def test_nor_is_what_a_job_has_or_a_part_of_it_that_was_given_back():
    idle = IdleMemory()
    assert learned(idle, 0, 4 * GIB) == 0
    assert learned(idle, 4 * GIB, held=("GPU-0",)) == 0
    assert learned(idle, 4 * GIB, GIB) == GIB


def test_what_a_job_left_is_never_taken_for_idle():
    idle = IdleMemory()
    learned(idle, GIB)
    idle.mark_stuck({"GPU-0"})
    assert learned(idle, 4 * GIB, 4 * GIB) == GIB
    assert learned(idle, GIB + 1, 3 * GIB, 3 * GIB) == 3 * GIB  # it had been released; this is something new


@pytest.mark.parametrize("used", [0, GIB])
def test_the_next_agent_knows_it(tmp_path, used):
    first = IdleMemory(tmp_path / "idle.json")
    learned(first, used)
    assert learned(IdleMemory(tmp_path / "idle.json"), 4 * GIB) == used
    first.mark_stuck({"GPU-0"})
    assert learned(IdleMemory(tmp_path / "idle.json"), 4 * GIB, 4 * GIB) == used


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"boot_id": "of before"}', '{"idle_bytes": 7}'])
def test_a_record_that_is_damaged_or_old_says_nothing(tmp_path, content):
    (tmp_path / "idle.json").write_text(content)
    assert IdleMemory(tmp_path / "idle.json").of("GPU-0") is None
