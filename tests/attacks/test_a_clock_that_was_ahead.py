"""A clock that was once ahead: times are the machine's again after a while, and nothing runs before its time."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ebbtide_master import clock
from ebbtide_master.clock import BELIEVED_AFTER_S, Clock
from ebbtide_protos.v1 import booking_pb2, client_pb2

from tests.master.world import RUNNING, Master, a_master, make_spec, make_status

DAY_S = 86_400.0
NOW = 1.9e9


class Machine:
    """Its clock, as the test sets it, and the time that passes."""

    def __init__(self, shows: float) -> None:
        self.shows = shows
        self.passed = 0.0

    def time(self) -> float:
        return self.shows

    def monotonic(self) -> float:
        return self.passed

    def wait(self, seconds: float) -> None:
        self.shows += seconds
        self.passed += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(NOW)
    monkeypatch.setattr(clock, "time", SimpleNamespace(time=machine.time, monotonic=machine.monotonic))
    return machine


def test_of_a_journal_that_is_far_ahead_the_machine_is_believed_after_a_while(machine: Machine) -> None:
    ahead = Clock(NOW + DAY_S)
    assert ahead.now() == NOW + DAY_S
    for _ in range(4):
        machine.wait(BELIEVED_AFTER_S / 3)
        shown = ahead.now()
    assert shown == machine.shows


def test_a_clock_that_is_set_right_while_a_master_runs_is_followed(machine: Machine) -> None:
    machine.shows += DAY_S
    ahead = Clock(0.0)
    machine.shows -= DAY_S
    ahead.now()
    machine.wait(BELIEVED_AFTER_S)
    assert ahead.now() == machine.shows


def test_what_leaps_ahead_is_not_followed_so_that_nothing_ends_too_early(machine: Machine) -> None:
    steady = Clock(0.0)
    machine.shows += 365 * DAY_S
    for _ in range(4):
        machine.wait(BELIEVED_AFTER_S)
        assert steady.now() == NOW + machine.passed


def test_a_little_is_made_up_for_without_going_back(machine: Machine) -> None:
    ahead, last = Clock(NOW + 20.0), 0.0
    for _ in range(60):
        machine.wait(1.0)
        shown = ahead.now()
        assert shown > last
        last = shown
    assert shown == pytest.approx(machine.shows)


def test_a_leap_that_is_over_soon_is_not_followed(machine: Machine) -> None:
    steady = Clock(0.0)
    for off in (DAY_S, -DAY_S) * 5:
        machine.shows += off
        machine.wait(5.0)
        assert abs(steady.now() - NOW - machine.passed) < 1.0


def test_a_clock_that_was_never_set_is_not_believed(machine: Machine) -> None:
    kept = Clock(NOW)
    machine.shows = 1000.0
    for _ in range(4):
        machine.wait(BELIEVED_AFTER_S)
        assert kept.now() == NOW + machine.passed


async def ask(master: Master, **spec: Any) -> client_pb2.Job:
    reply = await master.ask.Submit(client_pb2.SubmitRequest(spec=make_spec(**spec), user="ann"))
    return await master.show(reply.job_id)


async def test_begin_and_reservations_go_by_the_real_time_again(tmp_path: Path, machine: Machine) -> None:
    machine.shows += DAY_S
    async with a_master(tmp_path) as master:
        await ask(master)
    machine.shows -= DAY_S
    async with a_master(tmp_path) as master:
        await master.agent("n1", 4)
        machine.wait(BELIEVED_AFTER_S)
        await ask(master)
        machine.wait(BELIEVED_AFTER_S)
        job = await ask(master, begin_at=machine.shows + 3600.0)
        assert job.reason.startswith("not before ")
        request = booking_pb2.ReserveGpusRequest(
            user="ann", gpus=1, start=machine.shows + 3600.0, end=machine.shows + 7200.0
        )
        assert (await master.ask.ReserveGpus(request)).start == machine.shows + 3600.0
    async with a_master(tmp_path) as master:
        attempts = [make_status(id, 1, RUNNING) for id in ("1", "2")]
        await master.running(await master.agent("n1", 4, attempts=attempts))
        assert (await master.show(job.job_id)).attempt == 0
        assert (await master.ask.ListReservations(booking_pb2.ListReservationsRequest())).reservations


async def test_what_began_while_the_clock_was_ahead_ends_in_time(tmp_path: Path, machine: Machine) -> None:
    machine.shows += 365 * DAY_S
    async with a_master(tmp_path) as master:
        agent = await master.agent("n1", 4)
        job = await master.running(agent, time_limit_s=1000.0)
        machine.wait(100.0)
        await ask(master)
        machine.shows -= 365 * DAY_S
        await ask(master)
        machine.wait(BELIEVED_AFTER_S)
        await ask(master)
        assert "ClockSetBack" in await master.kinds()
        assert (await master.show(job)).start_time < machine.shows
        machine.wait(900.0)
        await ask(master)
        assert (await agent.receive("stop")).job_id == job
