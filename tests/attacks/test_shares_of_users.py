"""What one user can have of what all share: uploads, disk, reservations, priority, weight."""

import asyncio
import hashlib
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from ebbtide_core.model import limits
from ebbtide_master.config.file import Config
from ebbtide_master.config.limits import UserBounds
from ebbtide_master.identity.caller import Caller, Role
from ebbtide_protos.v1 import booking_pb2, client_pb2, job_pb2

from tests.master.world import Master, OpenGate, a_master, make_spec, refused

TOO_MUCH = grpc.StatusCode.RESOURCE_EXHAUSTED
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def who(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Caller]]:
    """Who asks from now on: the last of these."""
    callers = [Caller("eve", Role.USER)]
    monkeypatch.setattr(OpenGate, "admit", lambda *_: callers[-1])
    return callers  # type: ignore[return-value]


def bounds(**fields: Any) -> Config:
    return Config(bounds=UserBounds(**fields))


class Upload:
    """A working directory of random bytes on its way to the master."""

    def __init__(self, master: Master, size: int = 1000) -> None:
        archive = os.urandom(size)
        self.packed = zlib.compress(archive, wbits=31)
        self.snapshot = job_pb2.Snapshot(digest=hashlib.sha256(archive).hexdigest(), bytes=size)
        self.call = master.ask.UploadSnapshot()

    async def begin(self) -> "Upload":
        await self.call.write(client_pb2.SnapshotUpload(snapshot=self.snapshot))
        return self

    async def end(self) -> bool:
        await self.call.write(client_pb2.SnapshotUpload(data=self.packed))
        await self.call.done_writing()
        return bool((await self.call.read()).present)


async def test_idle_uploads_of_one_user_keep_nobody_else_from_sending(tmp_path: Path, who: list[Caller]) -> None:
    async with a_master(tmp_path) as master:
        idle = [await Upload(master).begin() for _ in range(limits.MAX_UPLOADS_PER_USER)]
        code, words = "", ""
        async with asyncio.timeout(30):
            while code != TOO_MUCH:  # the others have arrived by then
                more = await Upload(master).begin()
                await more.call.done_writing()
                code, words = await refused(more.call.read())
        assert words == "--snapshot: eve sends 2 at a time already, which is the limit"
        who.append(Caller("ann", Role.USER))
        assert await (await Upload(master).begin()).end()
        assert await idle[0].end()


async def test_who_sends_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UPLOAD_IDLE_S", 0.05)
    async with a_master(tmp_path) as master:
        idle = await Upload(master).begin()
        assert await refused(idle.call.read()) == (TOO_MUCH, "--snapshot: nothing was sent for 0.05 s")


async def submit(master: Master, **spec: Any) -> str:
    reply = await master.ask.Submit(client_pb2.SubmitRequest(spec=make_spec(**spec), user="eve", hold=True))
    return str(reply.job_id)


async def test_one_user_cannot_fill_the_masters_disk(tmp_path: Path, who: list[Caller]) -> None:
    async with a_master(tmp_path, config=bounds(snapshot_bytes=4 * limits.MIB)) as master:
        for _ in range(3):
            upload = await Upload(master, limits.MIB).begin()
            assert await upload.end()
            await submit(master, snapshot=upload.snapshot)
        big = await Upload(master, 2 * limits.MIB).begin()
        await big.call.write(client_pb2.SnapshotUpload(data=big.packed))
        words = "--snapshot: eve has 5 MiB with this one: the limit is 4 MiB"
        assert await refused(big.call.read()) == (TOO_MUCH, words)
        who.append(Caller("ann", Role.USER))
        assert await (await Upload(master, limits.MIB).begin()).end()


async def test_what_no_job_needs_makes_room(tmp_path: Path) -> None:
    async with a_master(tmp_path, config=bounds(snapshot_bytes=4 * limits.MIB)) as master:
        for _ in range(6):
            assert await (await Upload(master, limits.MIB).begin()).end()
        assert len(list((tmp_path / "snapshots").iterdir())) <= 4


async def test_what_jobs_need_counts_after_a_restart_too(tmp_path: Path) -> None:
    config = bounds(snapshot_bytes=2 * limits.MIB)
    async with a_master(tmp_path, config=config) as master:
        upload = await Upload(master, limits.MIB).begin()
        assert await upload.end()
        await submit(master, snapshot=upload.snapshot)
    async with a_master(tmp_path, config=config) as master:
        more = await Upload(master, 3 * limits.MIB // 2).begin()
        await more.call.write(client_pb2.SnapshotUpload(data=more.packed))
        assert (await refused(more.call.read()))[0] is TOO_MUCH


def wanted(gpus: int, hours: float, start_h: float = 1.0) -> booking_pb2.ReserveGpusRequest:
    start = time.time() + start_h * HOUR_S
    return booking_pb2.ReserveGpusRequest(user="eve", by="eve", gpus=gpus, start=start, end=start + hours * HOUR_S)


async def test_a_user_reserves_no_more_than_so_many_gpu_hours(tmp_path: Path, who: list[Caller]) -> None:
    async with a_master(tmp_path, config=bounds(reserved_gpu_hours=10.0)) as master:
        await master.agent("n1", 4)
        await master.ask.ReserveGpus(wanted(4, 2.0))
        why = "--for: eve has 8 GPU hours reserved: 4 more are over the limit of 10"
        assert await refused(master.ask.ReserveGpus(wanted(4, 1.0, 5.0))) == (TOO_MUCH, why)
        await master.ask.ReserveGpus(wanted(2, 1.0, 5.0))
        who.append(Caller("root", Role.OPERATOR))
        await master.ask.ReserveGpus(wanted(4, 24.0, 24.0))


async def test_a_user_reserves_only_so_far_ahead(tmp_path: Path, who: list[Caller]) -> None:
    async with a_master(tmp_path, config=bounds(reserve_ahead_s=48 * HOUR_S)) as master:
        await master.agent("n1", 4)
        why = (grpc.StatusCode.INVALID_ARGUMENT, "--for: ends more than 2 days from now")
        assert await refused(master.ask.ReserveGpus(wanted(1, 1.0, 48.0))) == why
        who.append(Caller("root", Role.OPERATOR))
        await master.ask.ReserveGpus(wanted(1, 1.0, 48.0))


async def test_priority_and_weight_are_within_what_the_role_may(tmp_path: Path, who: list[Caller]) -> None:
    async with a_master(tmp_path) as master:
        job = await submit(master, priority=10, weight=10.0)
        beyond = {
            "--priority: 9 is more urgent than 10, the limit for users: an operator can set it": {"priority": 9},
            "--weight: 10.5 is more than 10, the limit for users: an operator can set it": {"weight": 10.5},
        }
        for why, fields in beyond.items():
            assert await refused(submit(master, **fields)) == (TOO_MUCH, why)
            change = client_pb2.ChangeRequest(job_id=job, **fields)  # type: ignore[arg-type]
            assert await refused(master.ask.Change(change)) == (TOO_MUCH, why)
        who.append(Caller("root", Role.OPERATOR))
        for fields in beyond.values():
            await submit(master, **fields)
