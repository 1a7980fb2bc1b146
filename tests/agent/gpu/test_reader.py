"""The door to the driver holds up nobody, even when the driver never answers."""

import asyncio
import threading
import time

from ebbtide_agent.gpu.backend import Gpu, GpuReading
from ebbtide_agent.gpu.reader import GpuReader

DEADLINE_S = 20.0


class Driver:
    """A backend of one GPU that answers only while `answers` is set."""

    kind = "nvml"

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.calls = 0

    def gpus(self):
        return (Gpu("GPU-0", 0, "T4", 16 << 30),)

    def read(self, uuid):
        self.calls += 1
        assert self.answers.wait(timeout=DEADLINE_S)
        return GpuReading(uuid, mem_used_bytes=1)


class BrokenDriver(Driver):
    def read(self, uuid):
        raise AttributeError("no such symbol")


async def test_a_driver_that_answers_is_passed_on():
    driver = Driver()
    driver.answers.set()
    assert await GpuReader(driver, timeout_s=60.0).read_all() == {"GPU-0": GpuReading("GPU-0", mem_used_bytes=1)}


async def test_a_driver_that_does_not_answer_makes_its_gpus_unhealthy_and_is_not_asked_again():
    driver = Driver()
    reader = GpuReader(driver, timeout_s=0.05)
    for _ in range(3):
        reading = (await reader.read_all())["GPU-0"]
        assert reading.unhealthy_reason == "NVML does not answer"
    while driver.calls == 0:  # its thread may be late
        await asyncio.sleep(0.001)
    assert driver.calls == 1
    driver.answers.set()


async def test_a_driver_that_answers_again_is_believed_again():
    driver = Driver()
    reader = GpuReader(driver, timeout_s=0.05)
    await reader.read_all()
    driver.answers.set()
    deadline = time.monotonic() + DEADLINE_S
    while not (await reader.read_all())["GPU-0"].healthy:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_the_agent_goes_on_while_the_driver_does_not_answer():
    driver = Driver()
    reading = asyncio.create_task(GpuReader(driver, timeout_s=DEADLINE_S).read_all())
    turns = 0
    while driver.calls == 0 or turns < 100:
        turns += 1
        await asyncio.sleep(0)
    assert not reading.done()
    driver.answers.set()
    assert (await reading)["GPU-0"].healthy


async def test_whatever_goes_wrong_in_the_binding_is_one_unhealthy_gpu():
    reading = (await GpuReader(BrokenDriver(), timeout_s=60.0).read_all())["GPU-0"]
    assert reading.unhealthy_reason == "cannot be read: no such symbol"


async def test_a_reading_given_up_by_its_caller_does_not_disturb_the_next():
    driver = Driver()
    reader = GpuReader(driver, timeout_s=DEADLINE_S)
    reading = asyncio.create_task(reader.read_all())
    while driver.calls == 0:
        await asyncio.sleep(0.001)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    driver.answers.set()
    deadline = time.monotonic() + DEADLINE_S
    while not (await reader.read_all())["GPU-0"].healthy:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
