"""A line between master and agent that is cut, half open or one-way: no second copy, and nothing flaps (promise P2)."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path

import pytest
from ebbtide_agent.link import link
from ebbtide_core.events import NodeLost, NodeRegistered
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_master import service
from ebbtide_master.nodes import agents
from ebbtide_protos.v1 import client_pb2

from tests.e2e.cluster import ANY_ACCOUNT, EBB
from tests.faults.daemons import end_all_of
from tests.faults.proxy import Hold, Proxy, Swallow, Way, a_line
from tests.master.world import Master, a_master

SILENCE_S = 0.4
KEEPALIVE_MS = 2000
"""A busy process answers a ping within it."""
NOTICED_S = 40.0
WAIT = (sys.executable, "-SE", "-c", "import time; time.sleep(1000)")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where nothing runs any more when the test ends."""
    monkeypatch.setenv("EBB_HOME", str(tmp_path))
    yield tmp_path
    end_all_of(tmp_path)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A master that soon misses whoever is silent; what is returned makes it patient again."""
    names = ("grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
    options = dict(service._SERVER_OPTIONS) | dict.fromkeys(names, KEEPALIVE_MS)
    monkeypatch.setattr(service, "_SERVER_OPTIONS", list(options.items()))
    monkeypatch.setattr(agents, "NODE_SILENCE_S", SILENCE_S)
    return lambda: monkeypatch.setattr(agents, "NODE_SILENCE_S", 60.0)


class World:
    """A master, real agents with a GPU each, and the line to the first of them."""

    def __init__(self, master: Master, line: Proxy) -> None:
        self.master, self.line = master, line
        self.states: list[str] = []
        self.attempts: set[int] = set()

    @property
    def events(self) -> list[type]:
        """What was recorded about the node behind the line."""
        lines = [line.event for line in self.master.store.events()]
        return [type(event) for event in lines if getattr(event, "node", "") in (NodeId("cut"),)]

    async def submit(self) -> str:
        return await self.master.submit(command=list(WAIT), env={"PATH": "/usr/bin:/bin"}, cold=True)

    async def until(self, what: str, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not holds():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not in {seconds:g} s: {what}") from None

    def connected(self) -> bool:
        node = self.master.cluster.state.nodes.get(NodeId("cut"))
        return node is not None and node.connected

    def state(self, job: str) -> str:
        found = self.master.cluster.state.jobs[JobId(job)]
        self.states.append(found.state.name)
        self.attempts.add(len(found.attempts))
        return found.state.name

    def story(self) -> list[str]:
        """The states that were seen, without repetitions."""
        return [state for state, _ in groupby(self.states)]

    async def runs(self, job: str) -> int:
        """Its pid, as soon as it runs; what was seen before is forgotten."""
        await self.until(f"job {job} runs", lambda: self.state(job) == "RUNNING")
        self.states.clear()
        self.attempts = {len(self.master.cluster.state.jobs[JobId(job)].attempts)}
        return (await self.master.show(job)).pid


@asynccontextmanager
async def a_world(home: Path, *others: str) -> AsyncIterator[World]:
    """Node ``cut`` is behind the line; the others are not."""
    started = []
    async with a_master(home) as master:
        with a_line(home, "cut") as line:
            for name, at in [("cut", line.home), *((name, home) for name in others)]:
                options = ["--gpus", "1xT4", "--warm", "0", "--master", f"unix:{at}"]
                with (home / f"{name}.log").open("ab") as log:
                    command = [*EBB, "agent", "--name", name, *ANY_ACCOUNT, *options]
                    started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
            world = World(master, line)
            try:
                await world.until("all are there", lambda: len(master.cluster.state.nodes) == 1 + len(others))
                yield world
            finally:
                line.heal()
                for agent in started:
                    agent.send_signal(signal.SIGKILL)
                    agent.wait()


async def test_a_partition_starts_no_second_copy_and_heals_into_the_same_attempt(
    home: Path, impatient: Callable[[], None]
) -> None:
    async with a_world(home, "other") as world:
        first, second = await world.submit(), await world.submit()
        pids = {job: await world.runs(job) for job in (first, second)}
        [job] = [job for job in pids if (await world.master.show(job)).allocation[0].node == "cut"]
        [other] = pids.keys() - {job}
        world.line.refuse()
        world.line.drop()
        await world.until("it is unreachable", lambda: world.state(job) == "UNREACHABLE")
        await world.master.ask.Cancel(client_pb2.CancelRequest(job_id=other, now=True))
        third = await world.submit()
        await world.runs(third)  # there would have been room for a second copy
        assert world.state(job) == "UNREACHABLE"
        impatient()  # from here on, who is late is only slow
        world.line.heal()
        assert await world.runs(job) == pids[job]
        assert len(world.master.cluster.state.jobs[JobId(job)].attempts) == 1


async def test_a_line_that_swallows_everything_is_noticed_and_the_attempt_goes_on(
    home: Path, impatient: Callable[[], None]
) -> None:
    async with a_world(home) as world:
        job = await world.submit()
        pid = await world.runs(job)
        world.line.set(Swallow())
        await world.until("it is unreachable", lambda: world.state(job) == "UNREACHABLE")
        impatient()
        world.line.heal()
        await world.until("it runs", lambda: world.state(job) == "RUNNING")
        assert (await world.master.show(job)).pid == pid
        assert world.story() == ["RUNNING", "UNREACHABLE", "RUNNING"]
        assert world.attempts == {1}


def test_both_ends_give_up_a_line_that_swallows_everything_after_40_seconds() -> None:
    for options in (dict(service._SERVER_OPTIONS), dict(link._CHANNEL_OPTIONS)):
        for timeout in ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"):
            assert options["grpc.keepalive_time_ms"] + options[timeout] <= NOTICED_S * 1000


@pytest.mark.slow
@pytest.mark.alone
async def test_with_patience_as_it_is_both_ends_notice_it_within_40_seconds(home: Path) -> None:
    async with a_world(home) as world:
        await world.runs(await world.submit())
        world.line.set(Swallow())
        began = time.monotonic()
        await world.until("the node is missed", lambda: not world.connected(), NOTICED_S + 5)
        log = home / "cut.log"
        await world.until("the master is missed", lambda: "event=master-away" in log.read_text(), NOTICED_S + 5)
        assert time.monotonic() - began < NOTICED_S + 2
        world.line.heal()
        await world.until("it is back", world.connected)


@pytest.mark.parametrize("way", [Way.BACK, pytest.param(Way.ONWARD, marks=pytest.mark.slow)])
async def test_a_partition_in_one_direction_makes_no_state_flap(
    home: Path, impatient: Callable[[], None], way: Way
) -> None:
    async with a_world(home) as world:
        job = await world.submit()
        pid = await world.runs(job)
        before = len(world.events)
        world.line.set(Hold(), way)
        await world.until("it is unreachable", lambda: world.state(job) == "UNREACHABLE")
        await world.master.ask.Suspend(client_pb2.JobRequest(job_id=job))
        for _ in range(20):  # several times what it took to miss the node
            world.state(job)
            await asyncio.sleep(SILENCE_S / 10)
        impatient()
        world.line.heal()
        await world.until("its wish arrives", lambda: world.state(job) == "SUSPENDED")
        assert world.story() in (
            ["RUNNING", "UNREACHABLE", "SUSPENDING", "SUSPENDED"],
            ["RUNNING", "UNREACHABLE", "SUSPENDED"],
        )
        assert world.attempts == {1}
        assert (await world.master.show(job)).attempts[0].pid == pid
        events = world.events[before:]
        assert [events.count(kind) for kind in (NodeLost, NodeRegistered)] == [1, 1]
