"""A job begins in a copy of the directory that it was submitted from, or not at all."""

import asyncio
import hashlib
import io
import os
import tarfile
import threading
import time
import zlib

import pytest
from ebbtide_agent.files import snapshots
from ebbtide_agent.files.exchange import Exchange, Unanswered
from ebbtide_agent.files.snapshots import CACHED_S, WORKDIR_S, NotPlaced, SnapshotCache
from ebbtide_protos.v1 import agent_pb2, job_pb2

from tests.agent.supervisor.conftest import agent, disk  # noqa: F401
from tests.agent.supervisor.node import REFUSED, order


def member(name, text="", kind=tarfile.REGTYPE, mode=0o644, link=""):
    info = tarfile.TarInfo(name)
    info.size, info.type, info.mode, info.linkname = len(text), kind, mode, link
    return info, text.encode()


def archive(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as content:
        for info, data in members:
            content.addfile(info, io.BytesIO(data))
    return out.getvalue()


TREE = archive(
    member("run.sh", "echo ran >> log\ncat data/set log\n", mode=0o755),
    member("data/set", "1 2 3\n"),
    member("latest", kind=tarfile.SYMTYPE, link="data/set"),
)
DIGEST = hashlib.sha256(TREE).hexdigest()


class Master:
    """Answers in small windows, and with an error, or not, when a test says so."""

    def __init__(self, content=TREE):
        self.packed = zlib.compress(content, wbits=31)
        self.digest = hashlib.sha256(content).hexdigest()
        self.exchange = Exchange()
        self.offsets = []
        self.away_at = None
        self.error = ""

    def attach(self, exchange):
        self.exchange = exchange
        exchange.attach(self.answer)
        return self

    def answer(self, request):
        at = request.offset
        data = self.packed[at : at + 40]
        answer = agent_pb2.CheckpointData(request_id=request.request_id, data=data, end=at + 40 >= len(self.packed))
        if self.error or at == self.away_at:
            answer = agent_pb2.CheckpointData(
                request_id=request.request_id, error=self.error or "away", away=not self.error
            )
        else:
            self.offsets.append(at)
        self.exchange.answer(answer)


@pytest.fixture
def here(tmp_path):
    """The snapshots of a node, and their master."""
    master = Master()
    node = SnapshotCache(tmp_path, Exchange())
    node.master = master.attach(node._exchange)
    return node


async def test_a_job_gets_a_copy_that_it_may_write_to_and_another_job_its_own(here, tmp_path):
    first = await here.place("1", 1, DIGEST)
    (first / "data/set").write_text("changed")
    second = await here.place("2", 1, DIGEST)
    assert (second / "data/set").read_text() == "1 2 3\n"
    assert os.readlink(second / "latest") == "data/set"
    assert os.access(second / "run.sh", os.X_OK)
    assert not os.access(second / "data/set", os.X_OK)
    assert here.master.offsets == sorted(set(here.master.offsets))


async def test_at_its_next_attempt_it_finds_what_it_left(here):
    place = await here.place("1", 1, DIGEST)
    (place / "out").write_text("mine")
    here.master.error = "gone"
    assert await here.place("1", 2, DIGEST) == place
    assert (place / "out").read_text() == "mine"


async def test_what_broke_off_is_gone_on_with(here, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshots, "PATIENCE_S", 0.0)
    here.master.away_at = 80
    with pytest.raises(NotPlaced) as caught:
        await here.place("1", 1, DIGEST)
    assert not caught.value.gone
    assert not list(tmp_path.glob("workdirs/*"))
    here.master.away_at = None
    again = SnapshotCache(tmp_path, here._exchange)
    assert ((await again.place("1", 1, DIGEST)) / "latest").read_text() == "1 2 3\n"
    assert here.master.offsets.count(0) == 1


async def until(holds):
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("step", ["_extract", "_copy_folder"])
async def test_a_launch_that_is_cancelled_while_it_writes_does_not_disturb_the_next(here, monkeypatch, step):
    begun, writers, write, go_on = [], [], getattr(snapshots, step), threading.Event()
    begin = snapshots.on_daemon_thread

    def noted(call):
        if getattr(call, "func", None) is not snapshots.touch:
            begun.append(call)
        return begin(call)

    def slow(*arguments):
        me = threading.current_thread()
        if me not in writers:
            writers.append(me)
            go_on.wait() if me is writers[0] else writers[0].join()
        write(*arguments)

    monkeypatch.setattr(snapshots, "on_daemon_thread", noted)
    monkeypatch.setattr(snapshots, step, slow)
    cancelled = asyncio.create_task(here.place("1", 1, DIGEST))
    await until(lambda: writers)
    cancelled.cancel()
    before = len(begun)
    placing = asyncio.create_task(here.place("1", 2, DIGEST))
    await until(lambda: len(begun) > before)
    go_on.set()
    place = await placing
    assert sorted(path.name for path in place.parent.iterdir()) == ["1"]
    assert [(place / name).exists() for name in ("run.sh", "data/set", "latest")] == [True, True, True]


async def test_what_a_killed_agent_left_half_unpacked_is_begun_anew(here, tmp_path):
    for half in (tmp_path / "snapshots" / f".{DIGEST}.new", tmp_path / "workdirs" / ".1.new"):
        half.mkdir(parents=True)
        (half / "run.sh").write_text("half")
    assert (await here.place("1", 1, DIGEST) / "run.sh").read_text().startswith("echo")
    assert [path.name for path in (tmp_path / "workdirs").iterdir()] == ["1"]


async def test_what_arrives_damaged_is_not_used_and_fetched_again(here, tmp_path):
    here.master.packed = here.master.packed[:-60] + bytes(60)
    with pytest.raises(NotPlaced):
        await here.place("1", 1, DIGEST)
    assert not list(tmp_path.glob("snapshots/*"))
    assert not list(tmp_path.glob("workdirs/*"))
    here.master.packed = zlib.compress(TREE, wbits=31)
    assert (await here.place("1", 1, DIGEST)).is_dir()


@pytest.mark.parametrize(
    "evil",
    [
        member("../out", "x"),
        member("/tmp/out", "x"),
        member("a/../../out", "x"),
        member("pipe", kind=tarfile.FIFOTYPE),
        member("hard", kind=tarfile.LNKTYPE, link="run.sh"),
    ],
)
async def test_nothing_is_unpacked_outside_of_the_directory(tmp_path, evil):
    node = SnapshotCache(tmp_path / "node", Exchange())
    master = Master(archive(member("run.sh", "x"), evil)).attach(node._exchange)
    with pytest.raises(NotPlaced):
        await node.place("1", 1, master.digest)
    assert [path.name for path in tmp_path.iterdir()] == ["node"]
    assert not list(tmp_path.glob("node/workdirs/*"))


async def test_nothing_is_written_through_a_link(tmp_path):
    node = SnapshotCache(tmp_path / "node", Exchange())
    outside = tmp_path / "outside"
    outside.mkdir()
    link = member("data", kind=tarfile.SYMTYPE, link=str(outside))
    master = Master(archive(link, member("data/file", "x"))).attach(node._exchange)
    with pytest.raises(NotPlaced):
        await node.place("1", 1, master.digest)
    assert not list(outside.iterdir())


def age(path, seconds):
    """As if that had been made so long ago, and a little longer."""
    then = time.time() - seconds - 60
    os.utime(path, (then, then))


async def test_what_nobody_needs_goes_in_time(here, tmp_path):
    await here.place("1", 1, DIGEST)
    age(tmp_path / "snapshots" / DIGEST, CACHED_S)
    age(tmp_path / "workdirs" / "1", WORKDIR_S)
    await here.collect(lambda: {"1"}, tmp_path / "of accounts")
    assert not list(tmp_path.glob("snapshots/*"))
    await here.collect(set, tmp_path / "of accounts")
    assert list(tmp_path.glob("workdirs/*"))  # an attempt was in it just now
    age(tmp_path / "workdirs" / "1", WORKDIR_S)
    await here.collect(set, tmp_path / "of accounts")
    assert not list(tmp_path.glob("workdirs/*"))


async def test_it_goes_while_the_agent_runs_too_whatever_fails_meanwhile(here, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshots, "PERIOD_S", 0.01)
    await here.place("1", 1, DIGEST)
    looks = []

    def folder():
        looks.append(tmp_path / "of accounts")
        if len(looks) == 1:
            raise OSError("there is no such cluster")
        return looks[-1]

    tidying = asyncio.create_task(here.tidy(set, folder))
    await until(lambda: len(looks) > 2)
    old = (tmp_path / "snapshots" / DIGEST, tmp_path / "workdirs" / "1")
    assert all(path.exists() for path in old)
    for path in old:
        age(path, WORKDIR_S)
    await until(lambda: not any(path.exists() for path in old))
    tidying.cancel()


async def test_a_fetch_that_finds_no_room_leaves_the_room_that_it_took(here, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshots, "PATIENCE_S", 0.0)
    here.master.away_at = 80
    with pytest.raises(NotPlaced):
        await here.place("1", 1, DIGEST)
    assert [path.suffix for path in tmp_path.glob("snapshots/*")] == [".part"]
    here.master.away_at = None
    begin = os.open

    def without_room(path, *how, **more):
        descriptor = begin(path, *how, **more)
        if str(path).endswith(".part"):
            full = begin("/dev/full", os.O_WRONLY)
            os.dup2(full, descriptor, inheritable=False)
            os.close(full)
        return descriptor

    monkeypatch.setattr(os, "open", without_room)
    with pytest.raises(NotPlaced, match="No space left on device"):
        await here.place("1", 1, DIGEST)
    assert list(tmp_path.glob("snapshots/*")) == []


def launch(attempt=1, **spec):
    return order(["./run.sh"], attempt=attempt, snapshot=job_pb2.Snapshot(digest=DIGEST, bytes=len(TREE)), **spec)


async def test_an_attempt_starts_in_its_copy_and_the_next_one_goes_on_there(agent):  # noqa: F811
    async with agent() as node:
        Master().attach(node.exchange)
        command = ["sh", "run.sh"]
        for attempt in (1, 2):
            ordered = launch(attempt, workdir="/not/here", output="out.txt")
            ordered.spec.command[:] = command
            await node.attempts.launch(ordered)
            await node.until(lambda: any(status.exit.ended_at for status in node.changes))
            node.changes.clear()
        assert node.log(attempt=2) == "1 2 3\nran\nran\n"
        assert (node.dir / "workdirs" / "1" / "out.txt").read_text().startswith("1 2 3\nran\n---")


async def test_one_whose_snapshot_is_gone_is_not_started(agent):  # noqa: F811
    async with agent() as node:
        master = Master().attach(node.exchange)
        master.error = "the master has not got it"
        await node.attempts.launch(launch())
        await node.until(lambda: node.changes and node.changes[-1].phase == REFUSED)
        assert node.changes[-1].refusal == "its snapshot is not here: the master has not got it"
        assert node.changes[-1].refusal_cause == agent_pb2.REFUSAL_CAUSE_BAD_JOB
        assert node.attempts.statuses() == []


async def test_while_the_master_is_away_it_waits(here, monkeypatch):
    monkeypatch.setattr(snapshots, "_PAUSE_S", 0.01)
    here._exchange.detach()
    with pytest.raises(Unanswered):
        await here._exchange.ask(agent_pb2.ReadCheckpoint())
    placing = asyncio.create_task(here.place("1", 1, DIGEST))
    await asyncio.sleep(0)
    here.master.attach(here._exchange)
    assert (await placing).is_dir()
