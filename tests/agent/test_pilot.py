"""What a pilot takes of a machine, and when it gives that back."""

import asyncio
import errno
import json
import math
import os
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from ebbtide_agent.gpu.backend import Gpu
from ebbtide_agent.gpu_use.telemetry import Telemetry
from ebbtide_agent.node_end import NodeEnd
from ebbtide_agent.pilot import pilot as pilot_module
from ebbtide_agent.pilot.pilot import ASSUMED_S, IDLE_S, Lent, Pilot
from ebbtide_agent.pilot.slurm import SlurmStep, end_of, step
from ebbtide_protos.v1 import agent_pb2

MIB = 1 << 20
STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURMD_NODENAME": "gpu1",
    "SLURM_JOB_USER": "ann",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_STEP_GPUS": "1,2",
    "SLURM_CPUS_ON_NODE": "8",
    "SLURM_MEM_PER_NODE": "1000",
}
FOUR = [Gpu(f"G{number}", number, "A100", 40 << 30, minor=number) for number in range(4)]


def test_a_process_outside_of_slurm_has_nothing_of_it() -> None:
    assert step({"PATH": "/bin"}) is None


def test_a_step_has_what_slurm_says() -> None:
    found = step(STEP)
    assert found == SlurmStep("7", "gpu1", "ann", 2, ("1", "2"), (), 8.0, 1000 * MIB, None)
    assert found.node_name == "gpu1-7"
    assert step({**STEP, "SLURM_JOB_END_TIME": "1800000000"}).until == 1.8e9
    assert step({**STEP, "SLURM_STEP_GPUS": "", "SLURM_JOB_GPUS": "0-1,3"}).minors == ("0", "1", "3")


@pytest.mark.parametrize(
    ("memory", "mib"),
    [
        ({"SLURM_MEM_PER_CPU": "100"}, 800),
        ({"SLURM_MEM_PER_GPU": "300"}, 600),
        ({"SLURM_MEM_PER_NODE": "0"}, None),  # Slurm's way to say: all
        ({"SLURM_MEM_PER_NODE": "much"}, None),
        ({}, None),
    ],
)
def test_memory_is_what_slurm_gave_however_it_was_asked_for(memory: dict[str, str], mib: int | None) -> None:
    env = {name: value for name, value in STEP.items() if name != "SLURM_MEM_PER_NODE"} | memory
    assert step(env).mem_bytes == (None if mib is None else mib * MIB)


def test_a_batch_script_is_refused_because_nobody_would_warn_it() -> None:
    env = {name: value for name, value in STEP.items() if name != "SLURM_STEP_ID"}
    with pytest.raises(ValueError, match="write 'srun ebb agent pilot' in job 7"):
        step(env)


def test_gpus_are_those_that_slurm_names_however_many_the_driver_shows() -> None:
    assert step(STEP).choose(FOUR) == ("G1", "G2")
    shown = [Gpu(f"G{minor}", index, "A100", 40 << 30, minor=minor) for index, minor in enumerate((1, 2))]
    assert step(STEP).choose(shown) == ("G1", "G2")
    assert step({**STEP, "SLURM_GPUS_ON_NODE": "0", "SLURM_STEP_GPUS": ""}).choose(FOUR) == ()


def test_a_gpu_of_another_job_is_not_taken_in_place_of_a_lost_one() -> None:
    env = {**STEP, "SLURM_GPUS_ON_NODE": "3", "SLURM_STEP_GPUS": "0-2"}
    with pytest.raises(ValueError, match="3 of the 3 GPUs here, and the ones that it names, 0, 1, 2, are not known"):
        step(env).choose(FOUR[1:])


def test_without_numbers_all_gpus_are_taken_if_there_are_as_many_as_slurm_gave() -> None:
    without = [Gpu(f"G{index}", index, "A100", 40 << 30) for index in range(2)]
    assert step(STEP).choose(without) == ("G0", "G1")
    assert step({**STEP, "SLURM_STEP_GPUS": ""}).choose(FOUR[:2]) == ("G0", "G1")


def test_of_a_gpu_that_is_cut_into_slices_a_step_gets_those_that_slurm_names() -> None:
    cut = [Gpu(f"MIG-{place}", place, "A100 1g", 5 << 30, parent="G0", minor=0) for place in range(7)]
    env = {**STEP, "SLURM_STEP_GPUS": "0", "SLURM_GPUS_ON_NODE": "1"}
    assert step({**env, "CUDA_VISIBLE_DEVICES": "MIG-3"}).choose(cut) == ("MIG-3",)
    assert step({**env, "CUDA_VISIBLE_DEVICES": "0"}).choose(cut) == tuple(gpu.uuid for gpu in cut)
    with pytest.raises(ValueError, match="the ones that it names, MIG-9, are not known"):
        step({**env, "CUDA_VISIBLE_DEVICES": "MIG-9"}).choose(cut)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"SLURM_STEP_GPUS": ""}, "which ones is not known"),
        ({"SLURM_STEP_GPUS": "1"}, "the ones that it names, 1, are not known"),
        ({"SLURM_STEP_GPUS": "1,9"}, "the ones that it names, 1, 9, are not known"),
        ({"SLURM_STEP_GPUS": "1,1"}, "the ones that it names, 1, 1, are not known"),
    ],
)
def test_gpus_that_slurm_does_not_name_are_not_guessed(env: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        step({**STEP, **env}).choose(FOUR)


async def test_an_end_that_slurm_does_not_say_is_not_known(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("ebbtide_agent.pilot.slurm.ASK_S", 60.0)
    squeue = tmp_path / "squeue"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await end_of("7") is None
    squeue.write_text("#!/bin/sh\necho 2030-01-01T00:00:00\n")
    squeue.chmod(0o755)
    assert await end_of("7") == time.mktime((2030, 1, 1, 0, 0, 0, 0, 0, -1))
    squeue.write_text('#!/bin/sh\n[ "$SLURM_TIME_FORMAT" = %s ] && echo 1792891800\n')
    assert await end_of("7") == 1792891800.0
    squeue.write_text("#!/bin/sh\necho N/A\n")
    assert await end_of("7") is None
    monkeypatch.setattr("ebbtide_agent.pilot.slurm.ASK_S", 0.1)
    squeue.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    assert await end_of("7") is None


class Lending:
    """A pilot on a node whose attempts and whose lender's answers the test decides."""

    def __init__(self, folder, monkeypatch, lent: Lent, said: agent_pb2.Loan | None = None) -> None:
        self.folder, self.left = folder, list[agent_pb2.AttemptStatus]()
        self.until: float | None = None
        self.read_at = self.busy_at = 0.0
        self.end = NodeEnd(said, folder / "notice.json")
        self.telemetry = Telemetry(_NoGpus(), None, end=self.end)
        monkeypatch.setattr(pilot_module, "end_of", self.end_of)
        for name in ("_HEARD_S", "_QUIET_S"):
            monkeypatch.setattr(pilot_module, name, 0.1)
        self.pilot = Pilot(lent, folder, self.telemetry, self.statuses, lambda: self.read_at)

    async def end_of(self, job: str) -> float | None:
        return self.until

    def statuses(self) -> list[agent_pb2.AttemptStatus]:
        if self.left:
            self.busy_at = time.monotonic()
        return self.left

    def noticed(self) -> float:
        return float(json.loads((self.folder / "notice.json").read_text())["until"])

    def notice(self) -> float:
        return self.noticed() - time.time()


class _NoGpus:
    gpus = ()


@pytest.fixture
def running(tmp_path, monkeypatch) -> Iterator[object]:
    def make(lent: Lent, said: agent_pb2.Loan | None = None, *, heard: bool = False) -> Lending:
        lending = Lending(tmp_path, monkeypatch, lent, said)
        lending.telemetry.heard_at = time.monotonic() - 10.0 if heard else None
        return lending

    return make


SLURM = step(STEP)


async def test_a_pilot_leaves_when_it_is_asked_and_ends_once_the_master_has_done_with_its_attempts(running) -> None:
    lending = running(Lent("ann", SLURM), agent_pb2.Loan(until=time.time() + 3600, owner="ann"))
    lending.left = [agent_pb2.AttemptStatus(job_id="1")]
    lending.until = time.time() + 120
    serving = asyncio.create_task(lending.pilot.run())
    lending.pilot.ask()
    while not lending.telemetry.leaving:
        await asyncio.sleep(0.01)
    assert 60 < lending.notice() <= 120
    assert lending.end.own.owner == "ann"
    await asyncio.sleep(0.3)
    assert not serving.done()
    lending.left = []
    assert await serving == []


async def test_a_pilot_on_a_full_disk_says_when_its_node_ends_and_waits_for_its_attempts(running, monkeypatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(pilot_module, "write_json", Mock(side_effect=full))
    lending = running(Lent("ann", SLURM))
    lending.left = [agent_pb2.AttemptStatus(job_id="1")]
    lending.until = time.time() + 120
    serving = asyncio.create_task(lending.pilot.run())
    lending.pilot.ask()
    while not lending.telemetry.leaving:
        assert not serving.done()
        await asyncio.sleep(0.01)
    assert lending.end.own.owner == "ann"
    assert 60 < lending.end.until - time.time() <= 120
    lending.left = []
    assert await serving == []


async def test_a_pilot_stays_while_the_master_reads_the_logs_of_what_has_ended(running) -> None:
    lending = running(Lent())
    serving = asyncio.create_task(lending.pilot.run())
    lending.read_at = math.inf  # it is reading
    lending.pilot.ask()
    await asyncio.sleep(0.6)
    assert not serving.done()
    lending.read_at = time.monotonic()
    assert await serving == []


async def test_the_notice_of_a_lender_that_does_not_say_more_is_what_the_pilot_was_given(running) -> None:
    lending = running(Lent(notice_s=90.0))
    lending.pilot.ask()
    await lending.pilot.run()
    assert 80 < lending.notice() <= 90


@pytest.mark.parametrize("slurm", [None, 3600.0])
async def test_after_a_signal_without_a_new_end_some_seconds_are_left(running, slurm) -> None:
    lending = running(Lent("ann", SLURM), agent_pb2.Loan(until=time.time() + 3600))
    lending.until = None if slurm is None else time.time() + slurm
    asked_at = time.time()
    lending.pilot.ask()
    assert await lending.pilot.run() == []
    assert asked_at + ASSUMED_S <= lending.noticed() <= time.time() + ASSUMED_S


async def test_what_is_left_when_the_time_is_over_is_said(running) -> None:
    lending = running(Lent(), agent_pb2.Loan(until=time.time() + 0.3))
    lending.left = [agent_pb2.AttemptStatus(job_id="1")]
    assert [status.job_id for status in await lending.pilot.run()] == ["1"]
    assert not lending.telemetry.leaving


async def test_a_node_is_given_back_only_after_it_was_idle_for_long_enough(running) -> None:
    lending = running(Lent(idle_s=0.5), heard=True)
    lending.left = [agent_pb2.AttemptStatus(job_id="1")]
    serving = asyncio.create_task(lending.pilot.run())
    await asyncio.sleep(0.8)
    lending.left = []
    assert await serving == []
    assert time.monotonic() - lending.busy_at >= 0.5
    assert lending.telemetry.leaving
    assert lending.notice() <= IDLE_S


async def test_a_node_is_not_idle_before_the_master_has_heard_it_and_its_first_job_could_have_come(
    running, monkeypatch
) -> None:
    monkeypatch.setattr(pilot_module, "FIRST_S", 0.5)
    lending = running(Lent(idle_s=0.0))
    serving = asyncio.create_task(lending.pilot.run())
    await asyncio.sleep(0.3)
    assert not serving.done()
    heard_at = time.monotonic()
    lending.telemetry.note_heard()
    assert await serving == []
    assert time.monotonic() - heard_at >= 0.5


async def test_a_node_that_no_master_hears_is_given_back_after_a_while(running, monkeypatch) -> None:
    monkeypatch.setattr(pilot_module, "UNHEARD_S", 0.2)
    assert await running(Lent(idle_s=0.1)).pilot.run() == []


async def test_a_node_that_a_job_waits_for_together_with_others_is_not_idle(running) -> None:
    lending = running(Lent(idle_s=0.2), heard=True)
    lending.telemetry.note_wanted()
    serving = asyncio.create_task(lending.pilot.run())
    await asyncio.sleep(0.6)
    assert not serving.done()
    lending.telemetry.wanted_at -= 10.0
    assert await serving == []


async def test_an_end_that_slurm_says_late_is_taken_in(running, monkeypatch) -> None:
    monkeypatch.setattr(pilot_module, "_ASK_AGAIN_S", 0.05)
    lending = running(Lent("ann", SLURM))
    serving = asyncio.create_task(lending.pilot.run())
    await asyncio.sleep(0.2)
    lending.until = time.time() + 600
    while lending.end.until is None:
        await asyncio.sleep(0.01)
    assert (lending.end.own.until, lending.end.own.owner) == (lending.until, "ann")
    assert not lending.telemetry.leaving
    serving.cancel()


async def test_a_notice_of_an_earlier_agent_does_not_end_a_new_one(running, tmp_path) -> None:
    first = running(Lent(idle_s=0.0), heard=True)
    await first.pilot.run()
    second = running(Lent(idle_s=60.0))
    serving = asyncio.create_task(second.pilot.run())
    await asyncio.sleep(0.3)
    assert second.end.until is None
    serving.cancel()
