"""A checkpoint on its way to another node: whole, verified, bounded, and begun again where it broke off."""

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from ebbtide import checkpoints
from ebbtide.checkpoints import MANIFEST
from ebbtide_agent.files import copying
from ebbtide_agent.files.copying import Copy, NotCopied
from ebbtide_agent.files.exchange import Exchange, answer_of, arguments_of
from ebbtide_agent.files.reading import WINDOW_BYTES, read
from ebbtide_protos.v1 import agent_pb2

Change = Callable[[agent_pb2.ReadCheckpoint, agent_pb2.CheckpointData], None]
BIG = bytes(range(256)) * 4096 * 10 + b"end"  # ten windows and a bit


class Two:
    """A node that has a checkpoint and one that wants it; between them, somebody who may change what is said."""

    def __init__(self, folder: Path) -> None:
        self.there, self.here = folder / "there", folder / "here"
        self.requests: list[agent_pb2.ReadCheckpoint] = []
        self.most_open = 0
        self.change: Change = lambda request, data: None
        self.exchange = Exchange()
        self.exchange.attach(self._ask)
        self._open = 0

    def _ask(self, request: agent_pb2.ReadCheckpoint) -> None:
        self.requests.append(request)
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        data = answer_of(read(*arguments_of(self.there, request)))
        self.change(request, data)
        data.request_id = request.request_id
        asyncio.get_running_loop().call_soon(self._answer, data)

    def _answer(self, data: agent_pb2.CheckpointData) -> None:
        self._open -= 1
        self.exchange.answer(data)

    async def bring(self) -> str:
        return await Copy(self.exchange, self.here, "1", 4).bring()

    def windows(self) -> list[int]:
        """Offsets that were asked for of the big file."""
        return [request.offset for request in self.requests if request.file == "big.bin"]


def answered(two: Two, request: agent_pb2.ReadCheckpoint) -> agent_pb2.CheckpointData:
    return answer_of(read(*arguments_of(two.there, request)))


def save(job_dir: Path, attempt: int = 3, step: int = 7, big: bytes = BIG) -> Path:
    def write(folder: Path) -> None:
        (folder / "big.bin").write_bytes(big)
        (folder / "more").mkdir()
        (folder / "more" / "empty").touch()

    return checkpoints.publish(job_dir / f"attempt-{attempt}", step, write, job_id="1", attempt=attempt).path


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


async def test_the_newest_checkpoint_arrives_whole(two: Two) -> None:
    save(two.there, attempt=2)
    path = save(two.there)
    assert await two.bring() == "attempt-3/step-000000000007"
    found = checkpoints.newest_valid(two.here)
    assert found is not None
    assert (found.step, found.attempt, found.bytes) == (7, 3, len(BIG))
    assert (found.path / "big.bin").read_bytes() == BIG
    assert checkpoints.verify(path).complete  # the one that was copied is still there


async def test_what_is_asked_for_at_once_is_bounded(two: Two) -> None:
    save(two.there)
    await two.bring()
    assert two.most_open <= 4
    assert max(request.max_bytes for request in two.requests) <= WINDOW_BYTES
    assert two.windows() == [index * WINDOW_BYTES for index in range(11)]


async def test_a_directory_that_the_supervisor_sealed_arrives_too(two: Two) -> None:
    folder = two.there / "attempt-3"
    folder.mkdir(parents=True)
    (folder / "model.pt").write_bytes(b"weights")
    checkpoints.seal(folder, job_id="1", attempt=3, complete=True)
    assert await two.bring() == "attempt-3"
    assert (two.here / "attempt-3" / "model.pt").read_bytes() == b"weights"


@pytest.mark.parametrize("by_itself", [False, True])
async def test_links_and_folders_without_files_arrive_too(two: Two, by_itself: bool) -> None:
    def write(folder: Path) -> None:
        (folder / "last").symlink_to("epochs/2")
        (folder / "epochs" / "2").mkdir(parents=True)
        (folder / "epochs" / "2" / "model.pt").write_bytes(b"weights")
        (folder / "epochs" / "2" / "config").symlink_to("../../config")
        (folder / "epochs" / "1").symlink_to("gone")
        (folder / "links" / "only").mkdir(parents=True)
        (folder / "links" / "only" / "config").symlink_to("../../config")
        (folder / "config").write_text("{}")
        (folder / "outside").symlink_to("/etc")
        (folder / "above").symlink_to("../other")
        (folder / "logs" / "empty").mkdir(parents=True)

    attempt_dir = two.there / "attempt-3"
    if by_itself:
        attempt_dir.mkdir(parents=True)
        write(attempt_dir)
        checkpoints.seal(attempt_dir, job_id="1", attempt=3, complete=True)
    else:
        checkpoints.publish(attempt_dir, 7, write, job_id="1", attempt=3)
    arrived = two.here / await two.bring()
    assert {
        path.relative_to(arrived).as_posix(): os.readlink(path) for path in arrived.rglob("*") if path.is_symlink()
    } == {
        "last": "epochs/2",
        "epochs/1": "gone",
        "epochs/2/config": "../../config",
        "links/only/config": "../../config",
    }
    assert (arrived / "last" / "config").read_text() == "{}"
    assert (arrived / "logs" / "empty").is_dir()
    assert checkpoints.newest_valid(two.here) is not None


async def test_links_of_a_copy_that_broke_off_lead_nothing_out_of_it(two: Two, tmp_path: Path) -> None:
    path = two.here / save(two.there).relative_to(two.there)
    draft = checkpoints.copy_of(path)
    draft.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (draft / "more").symlink_to(tmp_path / "elsewhere")
    await two.bring()
    assert (path / "more" / "empty").exists()
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_job_without_a_checkpoint_has_nothing_to_bring(two: Two) -> None:
    assert await two.bring() == ""
    assert not two.here.exists()


async def test_a_window_that_was_damaged_on_the_way_is_asked_for_again(two: Two) -> None:
    save(two.there)
    damaged = []

    def damage(request: agent_pb2.ReadCheckpoint, data: agent_pb2.CheckpointData) -> None:
        if request.file == "big.bin" and request.offset == 3 * WINDOW_BYTES and not damaged:
            damaged.append(request)
            data.data = b"x" + data.data[1:]

    two.change = damage
    await two.bring()
    assert damaged
    assert two.windows().count(3 * WINDOW_BYTES) == 2
    assert checkpoints.newest_valid(two.here) is not None


async def test_what_is_damaged_every_time_is_never_taken_for_a_checkpoint(two: Two) -> None:
    save(two.there)

    def damage(request: agent_pb2.ReadCheckpoint, data: agent_pb2.CheckpointData) -> None:
        if request.file == "big.bin" and request.offset == 0:
            data.data = b"x" + data.data[1:]

    two.change = damage
    with pytest.raises(NotCopied, match=r"big\.bin: what arrives has not the digest of its manifest"):
        await two.bring()
    assert not list(checkpoints._candidates(two.here))
    assert checkpoints.newest_valid(two.there) is not None


async def test_it_goes_on_where_it_broke_off(two: Two) -> None:
    save(two.there)

    def break_off(request: agent_pb2.ReadCheckpoint, data: agent_pb2.CheckpointData) -> None:
        if request.offset == 8 * WINDOW_BYTES:
            data.error = "the disk is broken"

    two.change = break_off
    with pytest.raises(NotCopied, match="the disk is broken"):
        await two.bring()
    assert not list(checkpoints._candidates(two.here))
    two.requests.clear()
    two.change = lambda request, data: None
    await two.bring()
    assert min(two.windows()) >= 4 * WINDOW_BYTES
    assert checkpoints.newest_valid(two.here) is not None


async def test_a_half_written_window_of_a_killed_agent_does_no_harm(two: Two) -> None:
    path = two.here / save(two.there).relative_to(two.there)
    draft = checkpoints.copy_of(path)
    draft.mkdir(parents=True)
    (draft / "big.bin").write_bytes(BIG[:123_456] + b"torn")
    (draft / "other.bin").write_bytes(b"of another checkpoint")
    await two.bring()
    assert (path / "big.bin").read_bytes() == BIG
    assert not (path / "other.bin").exists()


@pytest.mark.parametrize("full", [errno.ENOSPC, errno.EDQUOT])
async def test_a_copy_that_finds_no_room_leaves_the_room_that_it_took(
    two: Two, monkeypatch: pytest.MonkeyPatch, full: int
) -> None:
    draft = checkpoints.copy_of(two.here / save(two.there).relative_to(two.there))

    def append(out: object, data: bytes) -> None:
        raise OSError(full, os.strerror(full))

    monkeypatch.setattr(copying, "_append", append)
    with pytest.raises(NotCopied, match=os.strerror(full)):
        await two.bring()
    assert draft.parent.exists()
    assert not draft.exists()


async def test_what_copies_of_other_checkpoints_left_goes_when_a_copy_begins(two: Two) -> None:
    save(two.there)
    left = [two.here / ".attempt-2-copy", two.here / "attempt-3" / ".step-000000000006-copy"]
    for draft in left:
        draft.mkdir(parents=True)
        (draft / "big.bin").write_bytes(BIG)
    await two.bring()
    assert not any(draft.exists() for draft in left)


async def test_one_that_is_here_already_is_not_copied_again(two: Two) -> None:
    save(two.there)
    await two.bring()
    two.requests.clear()
    await two.bring()
    assert [request.checkpoint for request in two.requests] == [""]


async def test_a_damaged_one_of_the_same_name_is_replaced(two: Two) -> None:
    path = two.here / save(two.there).relative_to(two.there)
    await two.bring()
    (path / "big.bin").write_bytes(b"x" * len(BIG))
    await two.bring()
    assert checkpoints.verify(path).step == 7


async def test_it_waits_for_a_node_that_is_away_for_a_moment(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_PAUSE_S", 0.001)
    save(two.there)
    away = []

    def go_away(request: agent_pb2.ReadCheckpoint, data: agent_pb2.CheckpointData) -> None:
        if len(away) < 5:
            away.append(request)
            data.error, data.away = "node a is not connected", True

    two.change = go_away
    assert await two.bring()


async def test_it_does_not_wait_for_ever(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_PAUSE_S", 0.001)
    monkeypatch.setattr(copying, "PATIENCE_S", 0.01)
    two.exchange.detach()
    with pytest.raises(NotCopied, match="the master is away"):
        await two.bring()


async def test_a_stream_that_ends_leaves_no_question_open(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_PAUSE_S", 0.001)
    save(two.there)
    asked = asyncio.Event()
    two.exchange.attach(lambda request: asked.set())
    bringing = asyncio.create_task(two.bring())
    await asked.wait()
    two.exchange.detach()
    two.exchange.attach(two._ask)
    assert await bringing


@pytest.mark.parametrize("name", ["../2", "attempt-3/../../2", "/etc", "attempt-3/step-1", "attempt-x"])
async def test_a_name_that_leaves_the_job_is_refused_on_both_sides(two: Two, name: str) -> None:
    save(two.there)
    answer = answered(two, agent_pb2.ReadCheckpoint(checkpoint=name, file="big.bin", max_bytes=10))
    assert "there is no file" in answer.error

    def mislead(request: agent_pb2.ReadCheckpoint, data: agent_pb2.CheckpointData) -> None:
        data.checkpoint = name

    two.change = mislead
    with pytest.raises(NotCopied, match="is not a checkpoint"):
        await two.bring()


@pytest.mark.parametrize("file", ["../secret", "link", "more", "missing", "/etc/passwd"])
def test_nothing_but_the_files_of_the_checkpoint_is_read(two: Two, file: str) -> None:
    path = save(two.there)
    (path.parent / "secret").write_text("x")
    (path / "link").symlink_to(path.parent / "secret")
    name = path.relative_to(two.there).as_posix()
    answer = answered(two, agent_pb2.ReadCheckpoint(checkpoint=name, file=file, max_bytes=10))
    assert (answer.data, answer.error) == (b"", f"there is no file {file!r} in {name!r}")


async def test_a_manifest_that_names_files_elsewhere_is_refused(two: Two) -> None:
    save(two.there)

    def rewrite(request: agent_pb2.ReadCheckpoint, data: agent_pb2.CheckpointData) -> None:
        if request.file == MANIFEST:
            manifest = json.loads(data.data)
            del manifest["manifest_sha256"]  # as an older version wrote it
            data.data = json.dumps(manifest).replace("big.bin", "../../x").encode()

    two.change = rewrite
    with pytest.raises(NotCopied, match="leaves the checkpoint"):
        await two.bring()
