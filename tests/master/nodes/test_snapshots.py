"""Working directories on their way from a client over the master to a node."""

import errno
import hashlib
import os
import zlib
from types import SimpleNamespace

import grpc
import pytest
from ebbtide_master.nodes import snapshots
from ebbtide_master.nodes.snapshots import KEPT_S, SnapshotStore
from ebbtide_protos.v1 import agent_pb2, client_pb2, job_pb2

from tests.master.world import GIB, a_master, refused

ARCHIVE = os.urandom(3000) + bytes(50_000)
PACKED = zlib.compress(ARCHIVE, wbits=31)
SNAPSHOT = job_pb2.Snapshot(digest=hashlib.sha256(ARCHIVE).hexdigest(), bytes=len(ARCHIVE))


async def upload(master, packed=PACKED, snapshot=SNAPSHOT, window=1000):
    async def messages():
        yield client_pb2.SnapshotUpload(snapshot=snapshot)
        for at in range(0, len(packed), window):
            yield client_pb2.SnapshotUpload(data=packed[at : at + window])

    return [state.present async for state in master.ask.UploadSnapshot(messages())]


async def test_a_snapshot_is_asked_for_brought_and_found(tmp_path):
    async with a_master(tmp_path) as master:
        assert not (await master.ask.FindSnapshot(SNAPSHOT)).present
        assert await upload(master) == [True]
        assert (await master.ask.FindSnapshot(SNAPSHOT)).present
        assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [f"{SNAPSHOT.digest}.tar.gz"]


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (PACKED[:-20], "of 53000 bytes came"),
        (b"not gzip at all", "it is not compressed as it should be"),
        (zlib.compress(ARCHIVE + b"more", wbits=31), "it is larger than it was said to be"),
        (PACKED + b"more", "it is larger than it was said to be"),
        (zlib.compress(bytes(53_000), wbits=31), "its digest differs: did files change during the upload?"),
    ],
)
async def test_what_is_not_what_it_is_said_to_be_is_not_kept(tmp_path, packed, words):
    async with a_master(tmp_path) as master:
        code, said = await refused(upload(master, packed))
        assert (code, said.startswith("--snapshot: "), words in said) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            True,
            True,
        )
        assert not list((tmp_path / "snapshots").iterdir())


FULL = (grpc.StatusCode.RESOURCE_EXHAUSTED, "the master's disk is full: no snapshot is taken for now")


async def test_a_snapshot_that_would_take_the_room_that_is_kept_free_is_refused_on_its_way(tmp_path, monkeypatch):
    async with a_master(tmp_path) as master:

        def free_bytes(folder):
            return 0 if any(path.stat().st_size for path in folder.glob("*.part")) else GIB

        packed = zlib.compress(archive := os.urandom(50_000), wbits=31)
        snapshot = job_pb2.Snapshot(digest=hashlib.sha256(archive).hexdigest(), bytes=len(archive))
        monkeypatch.setattr(snapshots, "free_bytes", free_bytes)
        assert await refused(upload(master, packed, snapshot, window=40_000)) == FULL  # more than is buffered
        assert not list((tmp_path / "snapshots").iterdir())
        monkeypatch.undo()
        assert await upload(master, packed, snapshot) == [True]


async def test_room_for_snapshots_is_looked_for_where_they_are(tmp_path, monkeypatch):
    async with a_master(tmp_path) as master:
        monkeypatch.setattr(snapshots, "free_bytes", lambda folder: 0 if folder == tmp_path / "snapshots" else GIB)
        assert master.store.has_room()
        assert await refused(upload(master, window=len(PACKED))) == FULL


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_disk_that_is_full_after_all_is_said_to_be_full(tmp_path, monkeypatch, code):
    def fsync(descriptor):
        raise OSError(code, os.strerror(code))

    async with a_master(tmp_path) as master:
        monkeypatch.setattr(snapshots, "os", SimpleNamespace(**{**vars(os), "fsync": fsync}))
        assert await refused(upload(master)) == FULL
        assert not list((tmp_path / "snapshots").iterdir())


@pytest.mark.parametrize("snapshot", [job_pb2.Snapshot(digest="../x", bytes=1), job_pb2.Snapshot(digest="0" * 64)])
async def test_a_digest_that_is_none_is_refused(tmp_path, snapshot):
    async with a_master(tmp_path) as master:
        code, _ = await refused(master.ask.FindSnapshot(snapshot))
        assert code == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_job_whose_snapshot_is_not_here_is_refused(tmp_path):
    async with a_master(tmp_path) as master:
        code, words = await refused(master.submit(snapshot=SNAPSHOT))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert words == f"--snapshot: {SNAPSHOT.digest[:12]} is not here: submit it again"


async def test_only_the_node_that_is_to_start_the_job_gets_its_snapshot(tmp_path):
    async with a_master(tmp_path) as master:
        await upload(master)
        agent = await master.agent()
        job = await master.submit(snapshot=SNAPSHOT)
        launch = await agent.receive("launch")
        assert launch.spec.snapshot == SNAPSHOT
        ask = {"job_id": job, "attempt": 1, "snapshot": SNAPSHOT.digest, "max_bytes": 2000}
        await agent.send(read_checkpoint=agent_pb2.ReadCheckpoint(request_id=7, **ask))
        first = await agent.receive("checkpoint_data")
        assert (first.request_id, first.data, first.end) == (7, PACKED[:2000], False)
        await agent.send(read_checkpoint=agent_pb2.ReadCheckpoint(request_id=8, offset=2000, **ask))
        second = await agent.receive("checkpoint_data")
        assert (first.data + second.data, second.end) == (PACKED, True)
        other = await master.agent("n2", 0)
        await other.send(read_checkpoint=agent_pb2.ReadCheckpoint(request_id=9, **ask))
        assert "does not begin with snapshot" in (await other.receive("checkpoint_data")).error


def test_what_no_unfinished_job_needs_goes_after_a_day_and_half_ones_with_the_next_start(tmp_path):
    old, needed = "a" * 64, "b" * 64
    for name in (f"{old}.tar.gz", f"{needed}.tar.gz", f"{old}.x.part"):
        (tmp_path / name).write_bytes(b"")
    kept = SnapshotStore(tmp_path)
    assert not list(tmp_path.glob("*.part"))
    now = (tmp_path / f"{old}.tar.gz").stat().st_mtime
    kept.collect({needed}, now + KEPT_S - 60)
    assert (tmp_path / f"{old}.tar.gz").exists()
    os.utime(tmp_path / f"{old}.tar.gz", (now, now))
    kept.collect({needed}, now + KEPT_S + 60)
    assert [path.name for path in tmp_path.iterdir()] == [f"{needed}.tar.gz"]
