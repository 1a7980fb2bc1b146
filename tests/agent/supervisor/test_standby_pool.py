"""How many processes are held ready, for how long, and for whom: with supervisors that are but sockets."""

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from ebbtide_agent.attempts.standbys import Standbys
from ebbtide_agent.attempts.translation import intent_of
from ebbtide_agent.contract.attempt_dir import AttemptDir, AttemptKey
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.network import ANY
from ebbtide_agent.supervisor.launching.recipe import Recipe
from ebbtide_protos.v1 import job_pb2

from tests.agent.supervisor.node import gpus, order


class Supervisor:
    """The other end of a channel."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self.channel = channel
        self._received = b""

    def read(self) -> bool:
        """Whether the agent still holds the channel."""
        try:
            while data := self.channel.recv(65536):
                self._received += data
        except BlockingIOError:
            return True
        return False

    def request(self) -> dict[str, object]:
        self.read()
        return json.loads(self._received)


class Spawner:
    def __init__(self) -> None:
        self.supervisors: list[Supervisor] = []

    async def spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.supervisors.append(Supervisor(theirs))
        return ours

    def held(self) -> list[list[str]]:
        """The commands that processes are held ready for."""
        return [supervisor.request()["recipe"]["command"] for supervisor in self.supervisors if supervisor.read()]


@dataclass(frozen=True)
class Attempt:
    """What a pool looks at of an attempt that is launched or runs."""

    place: AttemptDir
    intent: Intent
    key: AttemptKey


@asynccontextmanager
async def pool(tmp_path, size=2, idle_s=300.0, available_bytes=1 << 40):
    """A pool, its spawner, and what prepares it for an attempt whose last one has told something."""
    spawner = Spawner()
    standbys = Standbys(spawner, size, idle_s, lambda: available_bytes)
    AttemptDir(tmp_path).record_imports({"pid": 1, "modules": ["numpy"], "changed": {}})

    async def prepare(attempt: Attempt) -> None:
        standbys.prepare(attempt)
        while standbys._preparing:
            await asyncio.sleep(0)

    try:
        yield standbys, spawner, prepare
    finally:
        await standbys.close()
        assert spawner.held() == []
        for supervisor in spawner.supervisors:
            supervisor.channel.close()


def attempt(tmp_path, name="train.py", command=None, **options) -> Attempt:
    where = {"node_dir": tmp_path, "checkpoint_root": tmp_path, "cluster_id": "c1", "fake_gpu_dir": None}
    intent = intent_of(order(command or ["python", name], **options), network=ANY, **where)
    return Attempt(AttemptDir(tmp_path), intent, (intent.job_id, intent.attempt))


async def test_one_that_is_ready_is_taken_once(tmp_path):
    async with pool(tmp_path) as (standbys, spawner, prepare):
        await prepare(attempt(tmp_path))
        await prepare(attempt(tmp_path, job_id="2"))  # the same command: it is ready for both
        assert spawner.held() == [["python", "train.py"]]
        assert await standbys.take(attempt(tmp_path, name="other.py")) is None
        channel = await standbys.take(attempt(tmp_path, attempt=2))
        assert await standbys.take(attempt(tmp_path, attempt=3)) is None
        channel.close()


async def test_never_more_than_its_size_and_the_oldest_makes_room(tmp_path):
    async with pool(tmp_path, size=2) as (_, spawner, prepare):
        for name in ("a.py", "b.py", "c.py"):
            await prepare(attempt(tmp_path, name))
        assert spawner.held() == [["python", "b.py"], ["python", "c.py"]]
        await prepare(attempt(tmp_path, "ddp.py", launch=job_pb2.LAUNCH_MODE_DDP, gpus=gpus(3)))
        assert spawner.held() == [["python", "ddp.py"]]
        assert spawner.supervisors[-1].request()["processes"] == 2


@pytest.mark.parametrize("options", [{"size": 0}, {"available_bytes": 1 << 30}])
async def test_without_room_there_is_none(tmp_path, options):
    async with pool(tmp_path, **options) as (standbys, spawner, prepare):
        await prepare(attempt(tmp_path))
        assert spawner.held() == []
        assert await standbys.take(attempt(tmp_path)) is None


async def test_one_that_nobody_takes_ends(tmp_path):
    async with pool(tmp_path, idle_s=0.01) as (standbys, spawner, prepare):
        await prepare(attempt(tmp_path))
        async with asyncio.timeout(30):
            while spawner.held():
                await asyncio.sleep(0.005)
        assert await standbys.take(attempt(tmp_path)) is None


async def test_one_whose_supervisor_has_died_is_not_taken_but_replaced(tmp_path):
    async with pool(tmp_path) as (standbys, spawner, prepare):
        await prepare(attempt(tmp_path))
        spawner.supervisors.pop().channel.close()
        assert await standbys.take(attempt(tmp_path)) is None
        await prepare(attempt(tmp_path))
        assert spawner.held() == [["python", "train.py"]]


@pytest.mark.parametrize(
    "command",
    [
        ["python", "a.py", "-x"],
        ["/venv/bin/python3.11", "-u", "a.py"],
        ["python3", "-m", "a.b"],
        ["python", "-u", "-m", "a"],
    ],
)
def test_python_scripts_and_modules_may_be_held_ready(tmp_path, command):
    assert Recipe.of(attempt(tmp_path, command=command).intent) is not None


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "a.sh"],
        ["python"],
        ["python", "-c", "1"],
        ["python", "-I", "a.py"],
        ["torchrun", "a.py"],
        ["python", "-m"],
    ],
)
def test_nothing_else_may_be(tmp_path, command):
    assert Recipe.of(attempt(tmp_path, command=command).intent) is None


def test_what_reads_standard_input_may_not_be(tmp_path):
    """What is held ready has an empty one, and would take that for the whole."""
    assert Recipe.of(attempt(tmp_path, command=["python", "a.py"], stdin=True).intent) is None
