"""What a heartbeat leaves out is what the master knows already, and what it believes is never far off."""

import itertools

import pytest
from ebbtide_agent.gpu.backend import Gpu
from ebbtide_agent.link.deltas import EXACT_EVERY, POWER, TEMPERATURE_C, UTILISATION, Deltas
from ebbtide_protos.v1 import agent_pb2
from hypothesis import given
from hypothesis import strategies as st


def reading(uuid="GPU-0", **fields):
    known = {"utilisation": 0.5, "temperature_c": 60, "power_w": 200.0, "mem_used_bytes": 1 << 30, "healthy": True}
    return agent_pb2.GpuReading(uuid=uuid, **(known | fields))


def shortened(deltas, *readings):
    heartbeat = agent_pb2.Heartbeat(gpus=readings)
    deltas.shorten(heartbeat)
    return heartbeat


def test_the_first_heartbeat_is_complete_and_an_idle_node_says_nothing_more_of_its_gpus():
    deltas = Deltas()
    first = shortened(deltas, reading("GPU-0"), reading("GPU-1"))
    assert (first.delta, len(first.gpus)) == (False, 2)
    for _ in range(2 * EXACT_EVERY):
        again = shortened(deltas, reading("GPU-0"), reading("GPU-1"))
        assert (again.delta, list(again.gpus)) == (True, [])


def test_only_the_gpu_that_changed_is_sent():
    deltas = Deltas()
    shortened(deltas, reading("GPU-0"), reading("GPU-1"))
    again = shortened(deltas, reading("GPU-0"), reading("GPU-1", mem_used_bytes=2 << 30))
    assert [gpu.uuid for gpu in again.gpus] == ["GPU-1"]
    assert again.gpus[0] == reading("GPU-1", mem_used_bytes=2 << 30)


@pytest.mark.parametrize(
    "change",
    [
        {"utilisation": 0.6},
        {"utilisation": 0.01},
        {"utilisation": None},
        {"temperature_c": 63},
        {"power_w": 220.0},
        {"power_w": None},
        {"mem_used_bytes": 1 + (1 << 30)},
        {"healthy": False},
        {"xids": [79]},
        {"processes": [agent_pb2.GpuProcess(pid=7)]},
        {"processes_unknown": True},
        {"gone": True},
        {"idle_bytes": 0},
    ],
    ids=str,
)
def test_what_counts_is_sent_at_once_and_so_is_its_end(change):
    deltas = Deltas()
    shortened(deltas, reading())
    assert len(shortened(deltas, reading(**change)).gpus) == 1
    assert len(shortened(deltas, reading(**change)).gpus) == 0
    assert len(shortened(deltas, reading()).gpus) == 1


@pytest.mark.parametrize("change", [{"utilisation": 0.54}, {"temperature_c": 62}, {"power_w": 205.0}], ids=str)
def test_what_only_fluctuates_waits_for_the_next_exact_heartbeat(change):
    deltas = Deltas()
    shortened(deltas, reading())
    sent = [len(shortened(deltas, reading(**change)).gpus) for _ in range(2 * EXACT_EVERY)]
    assert sum(sent) == 1
    assert sent.index(1) == EXACT_EVERY - 2


def test_whether_a_gpu_is_used_at_all_is_no_fluctuation():
    deltas = Deltas()
    shortened(deltas, reading(utilisation=0.0))
    assert len(shortened(deltas, reading(utilisation=0.02)).gpus) == 1
    assert len(shortened(deltas, reading(utilisation=0.0)).gpus) == 1


@pytest.mark.parametrize("uuids", [["GPU-0"], ["GPU-1", "GPU-0"], ["GPU-0", "GPU-1", "GPU-2"], []], ids=str)
def test_if_other_gpus_are_read_the_heartbeat_is_complete(uuids):
    deltas = Deltas()
    shortened(deltas, reading("GPU-0"), reading("GPU-1"))
    again = shortened(deltas, *map(reading, uuids))
    assert (again.delta, [gpu.uuid for gpu in again.gpus]) == (False, uuids)


READINGS = st.builds(
    reading,
    utilisation=st.none() | st.floats(0.0, 1.0),
    temperature_c=st.none() | st.integers(20, 90),
    power_w=st.none() | st.floats(0.0, 700.0),
    mem_used_bytes=st.integers(0, 3),
    xids=st.lists(st.just(79), max_size=1),
)


@given(st.lists(READINGS, min_size=1, max_size=40))
def test_what_the_master_believes_is_close_to_what_is_and_exact_now_and_then(readings):
    deltas, believed = Deltas(), None
    for number, real in zip(itertools.count(1), readings, strict=False):
        believed = next(iter(shortened(deltas, real).gpus), believed)
        if number % EXACT_EVERY == 0:
            assert believed == real
        assert (believed.mem_used_bytes, list(believed.xids)) == (real.mem_used_bytes, list(real.xids))
        assert [believed.HasField(name) for name in FLUCTUATING] == [real.HasField(name) for name in FLUCTUATING]
        assert abs(believed.utilisation - real.utilisation) <= UTILISATION
        assert (believed.utilisation < 0.02) == (real.utilisation < 0.02)
        assert abs(believed.temperature_c - real.temperature_c) <= TEMPERATURE_C
        assert abs(believed.power_w - real.power_w) <= POWER * believed.power_w


FLUCTUATING = ("utilisation", "temperature_c", "power_w")


@pytest.mark.parametrize("takes_deltas", [False, True])
async def test_deltas_are_for_a_master_that_says_that_it_takes_them(world, takes_deltas):
    async with world() as here:
        here.gpus.found = (Gpu("GPU-1", 0, "T4", 16 << 30),)
        conversation = await here.master.attached()
        hello = await conversation.receive("hello")
        assert len(hello.gpus) == 1
        welcome = agent_pb2.Welcome(cluster_id="c1", epoch=1, heartbeat_s=0.05, deltas=takes_deltas)
        await conversation.send(welcome=welcome)
        first, *later = [await conversation.receive("heartbeat") for _ in range(4)]
        assert (len(first.gpus), first.delta) == (1, False)
        assert {(len(beat.gpus), beat.delta) for beat in later} == {(0, True) if takes_deltas else (1, False)}
        beats = [beat.beat for beat in (first, *later)]
        assert (beats[0], beats) == (1, sorted(set(beats)))  # a slow stream leaves some out
