"""Directories as deep as anybody likes, where the agent looks, copies and removes."""

import os
from pathlib import Path

import pytest
from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.channels import archive as archive_of_files
from ebbtide_agent.contract.job_dir import give
from ebbtide_agent.files import clearing
from ebbtide_agent.files.retention import Retention, RetentionTask
from ebbtide_agent.files.snapshots import SnapshotCache
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_protos.v1 import agent_pb2

from tests.agent.files.test_snapshots import Master, archive, member
from tests.agent.supervisor.conftest import MakeNode

LEVELS = 1100


def deep(folder: Path) -> Path:
    """The folder, with so many directories one below the other, and a file in the last."""
    folder.mkdir(parents=True)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(LEVELS):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=at))
    os.close(at)
    return folder


async def test_a_deep_working_directory_of_long_ago_keeps_no_agent_from_starting_and_goes(
    agent: MakeNode, disk: Path
) -> None:
    place = deep(disk / "node" / "workdirs" / "1")
    os.utime(place, (0.0, 0.0))
    async with agent() as node:
        await node.until(lambda: not os.listdir(place.parent))


async def test_what_cannot_be_removed_stays_and_keeps_no_agent_from_starting(
    agent: MakeNode, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = disk / "node" / "workdirs"
    place.mkdir(parents=True)
    (place / "1").touch()
    os.utime(place / "1", (0.0, 0.0))

    async def nobody_knows(*_: object, **__: object) -> NoAnswer:
        return NoAnswer("no answer in time")

    monkeypatch.setattr(clearing, "ask", nobody_knows)
    async with agent() as node:
        await node.until(lambda: os.listdir(place) == [".gone-1"])


async def test_deep_snapshots_are_unpacked_and_copied(tmp_path: Path) -> None:
    master = Master(archive(member("d/" * 600 + "f", "x")))
    node = SnapshotCache(tmp_path / "node", master.exchange)
    master.attach(node._exchange)
    place = await node.place("1", 1, master.digest)
    assert clearing.size(str(place)) > 0


async def test_deep_checkpoints_are_counted_and_removed(tmp_path: Path) -> None:
    class Asked:
        async def ask(self, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
            return agent_pb2.CheckpointData(ended_ago_s=dict.fromkeys(request.ended_of, 1e6))

    deep(tmp_path / "root" / "c1" / "1" / "attempt-1")
    (tmp_path / "root" / "c1" / "1" / "attempt-1" / "weights").write_bytes(b"x" * 100_000)
    tidying = RetentionTask(tmp_path / "node", tmp_path / "root", Asked(), Retention(quota_bytes=50_000))
    assert await tidying.tidy("c1") == ["1"]
    assert os.listdir(tmp_path / "root" / "c1") == []


def test_deep_directories_are_copied_out(tmp_path: Path) -> None:
    names = [name for _, name in archive_of_files.ArchiveSource(deep(tmp_path / "1"), "0").entries()]
    assert (len(names), names[-1].count("/")) == (LEVELS + 2, LEVELS + 1)


@pytest.mark.root
def test_a_deep_copy_is_given_away_whole(tmp_path: Path, somebody: Account) -> None:
    place = deep(tmp_path / "1")
    give(place, somebody)
    at = os.open(place, os.O_RDONLY)
    for _ in range(LEVELS):
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
        assert os.fstat(at).st_uid == somebody.uid
    os.close(at)
    clearing.remove(str(place))
