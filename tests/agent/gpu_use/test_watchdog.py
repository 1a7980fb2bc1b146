"""Who uses more GPU memory than was given, as far as the driver tells."""

import asyncio

import pytest
from ebbtide_agent.gpu.backend import Gpu, GpuProcess, GpuReading
from ebbtide_agent.gpu.reader import GpuReader
from ebbtide_agent.gpu_use.attribution import Attribution
from ebbtide_agent.gpu_use.idle_use import IdleMemory
from ebbtide_agent.gpu_use.watchdog import SAMPLES, GpuMemoryUse, Watchdog, use_of
from ebbtide_protos.v1 import agent_pb2
from ebbtide_protos.v1.job_pb2 import GpuAllocation, Share

GIB = 1 << 30
TOTAL = 24 * GIB
ONE, TWO = ("1", 1), ("2", 1)
PIDS = {11: ONE, 12: ONE, 21: TWO}
FOREIGN = 99
ALLOWED = int(6 * GIB * 1.05)


def part(uuid="GPU-0", mem_bytes=6 * GIB, of=4):
    return GpuAllocation(uuid=uuid, share=Share(numerator=1, denominator=of), mem_bytes=mem_bytes)


def reading(*processes, used=None, uuid="GPU-0"):
    known = sum(mem_bytes or 0 for _, mem_bytes in processes)
    listed = tuple(GpuProcess(pid, mem_bytes) for pid, mem_bytes in processes)
    return GpuReading(uuid, used if used is not None else known, TOTAL, processes=listed)


class Attempts:
    def __init__(self):
        self.given = {ONE: (part(),), TWO: (part(),)}
        self.swapped = set()
        self.noted = {}
        self.told = []

    def statuses(self):
        running, swapped = agent_pb2.ATTEMPT_PHASE_RUNNING, agent_pb2.ATTEMPT_PHASE_SWAPPED
        return [
            agent_pb2.AttemptStatus(job_id=key[0], attempt=key[1], phase=swapped if key in self.swapped else running)
            for key in self.given
        ]

    def allocation(self, job_id, attempt):
        return self.given[job_id, attempt]

    def note_memory(self, seen, tell):
        self.noted[seen.job_id, seen.attempt] = seen
        if tell:
            self.told.append((seen.job_id, seen.gpu_mem_peak_bytes / GIB))


class Script:
    """A backend that reads what a test wrote down, the last for ever."""

    kind = "fake"

    def __init__(self, *readings):
        self.readings = list(readings)

    def gpus(self):
        return (Gpu("GPU-0", 0, "T4", TOTAL),)

    def read(self, uuid):
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


@pytest.fixture
def attempts():
    return Attempts()


@pytest.fixture
def watchdog(attempts, monkeypatch):
    """One that sees what a test shows it, and nothing else."""
    monkeypatch.setattr("ebbtide_agent.gpu_use.watchdog._HURRY_S", 1000.0)
    return Watchdog(attempts, GpuReader(Script(reading())), Attribution(dict), IdleMemory())


def look(dog, *seen, times=1):
    for _ in range(times):
        dog.look({gpu.uuid: gpu for gpu in seen}, PIDS)


def overrun(attempts, key=ONE):
    seen = attempts.noted.get(key, agent_pb2.AttemptStatus())
    return seen.overran_gpu, seen.overran_bytes, seen.allowed_bytes


async def test_an_overrun_is_told_at_the_third_reading_with_what_was_given(attempts, watchdog):
    seen = reading((11, 5 * GIB), (12, 4 * GIB), (21, 2 * GIB))
    look(watchdog, seen, times=SAMPLES - 1)
    assert overrun(attempts) == ("", 0, 0)
    look(watchdog, seen)
    assert overrun(attempts) == ("GPU-0", 9 * GIB, 6 * GIB)
    assert overrun(attempts, TWO) == ("", 0, 0)


@pytest.mark.parametrize(("used", "over"), [(ALLOWED - 1, False), (ALLOWED + 1, True)])
async def test_five_percent_and_a_context_are_no_overrun(attempts, watchdog, used, over):
    look(watchdog, reading((11, used)), times=SAMPLES)
    assert bool(overrun(attempts)[0]) is over


async def test_a_reading_in_between_that_is_within_the_limit_starts_the_count_anew(attempts, watchdog):
    for used in (9, 9, 6, 9, 9):
        look(watchdog, reading((11, used * GIB)))
    assert overrun(attempts)[0] == ""


async def test_what_is_over_is_taken_back(attempts, watchdog):
    look(watchdog, reading((11, 9 * GIB)), times=SAMPLES)
    look(watchdog, reading((11, 5 * GIB)))
    assert overrun(attempts) == ("", 0, 0)


async def test_on_a_nearly_full_gpu_one_reading_is_enough(attempts, watchdog):
    look(watchdog, reading((11, 18 * GIB), (21, 6 * GIB - 1)))
    assert overrun(attempts)[0] == "GPU-0"


@pytest.mark.parametrize(
    "seen",
    [
        reading((11, 12 * GIB), (21, 12 * GIB - 1)),  # both are
        reading((11, 9 * GIB), (21, 2 * GIB), (FOREIGN, 13 * GIB - 1)),  # it would have fitted without somebody else
    ],
)
async def test_on_a_nearly_full_gpu_one_reading_is_not_enough_if_others_are_responsible_too(attempts, watchdog, seen):
    look(watchdog, seen, times=SAMPLES - 1)
    assert overrun(attempts)[0] == ""
    look(watchdog, seen)
    assert overrun(attempts)[0] == "GPU-0"


async def test_a_gpu_of_its_own_may_be_filled(attempts, watchdog):
    attempts.given = {ONE: (GpuAllocation(uuid="GPU-0", share=Share(numerator=1, denominator=1), mem_bytes=1),)}
    look(watchdog, reading((11, TOTAL)), times=SAMPLES)
    assert overrun(attempts)[0] == ""
    assert attempts.noted[ONE].gpu_mem_peak_bytes == TOTAL


async def test_what_the_driver_does_not_tell_is_estimated_for_the_record_and_stops_nobody(attempts, watchdog):
    look(watchdog, reading((11, None), (21, 2 * GIB), used=14 * GIB), times=SAMPLES)
    assert overrun(attempts)[0] == ""
    assert attempts.noted[ONE].gpu_mem_peak_bytes == 12 * GIB


@pytest.mark.parametrize(
    ("seen", "use"),
    [
        (reading((11, GIB), (12, GIB)), GpuMemoryUse(2 * GIB, certain=True)),
        (reading((21, GIB)), GpuMemoryUse(0, certain=True)),
        (reading((11, None), used=5 * GIB), GpuMemoryUse(4 * GIB, certain=False)),
        (reading((11, None), used=0), GpuMemoryUse(0, certain=False)),
        (reading((11, None), (21, None), used=5 * GIB), None),
        (reading((11, None), (FOREIGN, None), used=5 * GIB), None),
        (GpuReading("GPU-0", 5 * GIB, TOTAL, processes=None), None),
        (GpuReading("GPU-0", None, TOTAL, processes=(GpuProcess(11, None),)), None),
    ],
)
def test_how_much_an_attempt_uses(seen, use):
    assert use_of(ONE, seen, PIDS, idle_bytes=GIB) == use


async def test_a_peak_is_told_when_it_grew_by_more_than_a_twentieth_and_the_last_one_at_the_end(attempts, watchdog):
    for used in (1.0, 1.04, 1.06, 0.5, 1.07):
        look(watchdog, reading((11, int(used * GIB))))
    assert [round(peak, 2) for _, peak in attempts.told] == [1.0, 1.06]
    assert round(attempts.noted[ONE].gpu_mem_peak_bytes / GIB, 2) == 1.07


async def test_the_peak_outlasts_a_swap(attempts, watchdog):
    look(watchdog, reading((11, 5 * GIB)))
    attempts.swapped.add(ONE)
    look(watchdog, reading((21, 2 * GIB)))
    attempts.swapped.clear()
    look(watchdog, reading((11, 3 * GIB), (21, 2 * GIB)))
    assert attempts.noted[ONE].gpu_mem_peak_bytes == 5 * GIB


async def test_who_is_swapped_out_uses_too_much_no_more(attempts, watchdog):
    look(watchdog, reading((11, 9 * GIB)), times=SAMPLES)
    attempts.swapped.add(ONE)
    look(watchdog, reading())
    assert overrun(attempts) == ("", 0, 0)


async def test_the_peak_of_several_gpus_is_that_of_one(attempts, watchdog):
    attempts.given[ONE] = (part(), part("GPU-1"))
    look(watchdog, reading((11, GIB)), reading((12, 3 * GIB), uuid="GPU-1"))
    assert attempts.noted[ONE].gpu_mem_peak_bytes == 3 * GIB


async def test_an_attempt_that_is_over_is_not_remembered(attempts, watchdog):
    look(watchdog, reading((11, 9 * GIB)), times=SAMPLES - 1)
    given = attempts.given.pop(ONE)
    look(watchdog, reading((11, 9 * GIB)))
    attempts.given[ONE] = given
    look(watchdog, reading((11, 9 * GIB)))
    assert overrun(attempts)[0] == ""


async def test_who_uses_too_much_is_looked_at_more_often_than_at_heartbeats(attempts, monkeypatch):
    monkeypatch.setattr("ebbtide_agent.gpu_use.watchdog._HURRY_S", 0.001)
    attribution = Attribution(lambda: {ONE: (11, 12), TWO: (21,)}, {}.get)
    dog = Watchdog(attempts, GpuReader(Script(reading((11, 9 * GIB)))), attribution, IdleMemory())
    look(dog, reading((11, 9 * GIB)))
    async with asyncio.timeout(30):
        while not overrun(attempts)[0]:
            await asyncio.sleep(0.001)
    attempts.given = {}
    async with asyncio.timeout(30):
        while dog._hurrying is not None:
            await asyncio.sleep(0.001)
    await dog.close()
