"""No GPU is handed to the next job while anything of the last one is on it, whatever the driver does and says.

A master in a few lines hands out the GPUs, an agent proves them free by the real code, and the world knows the truth.
"""

import asyncio
import random
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest
from ebbtide_agent.attempts.release import Release
from ebbtide_agent.gpu import reader as reader_module
from ebbtide_agent.gpu.reader import GpuReader
from ebbtide_agent.gpu_use import attribution as attribution_module
from ebbtide_agent.gpu_use import telemetry as telemetry_module
from ebbtide_agent.gpu_use.attribution import Attribution
from ebbtide_agent.gpu_use.freeing import Freeing
from ebbtide_agent.gpu_use.idle_use import IdleMemory
from ebbtide_agent.gpu_use.telemetry import Telemetry
from ebbtide_master.nodes.quarantine import is_released
from ebbtide_protos.v1.job_pb2 import GpuAllocation, Share

from tests.agent.gpu.hidden_truth import GIB, NEVER, UUIDS, AttemptKey, FastLoop, Node, instead_of_a_thread

HEARTBEAT_S = 2.0
RELEASES_S = (0.0, 0.0, 0.0, 0.3, 3.0, 15.0, NEVER)
MODES = ("well", "well", "well", "fails", "lost", "no figures", "no processes")


@dataclass
class Attempt:
    key: AttemptKey
    gpus: tuple[str, ...]
    shared: bool
    end: float | None = None
    freed: bool = False


@dataclass
class Cluster:
    """The master's books, and the agent's attempts."""

    node: Node
    attempts: dict[AttemptKey, Attempt] = field(default_factory=dict)
    quarantine: dict[str, str] = field(default_factory=dict)
    handed_over: int = 0

    # --- as the agent sees it ---

    def allocation(self, job_id, attempt):
        of = self.attempts[job_id, attempt]
        share = Share(numerator=1, denominator=2 if of.shared else 1)
        return tuple(GpuAllocation(uuid=uuid, share=share, mem_bytes=8 * GIB) for uuid in of.gpus)

    def mark_freed(self, job_id, attempt, dirty):
        of = self.attempts[job_id, attempt]
        assert not of.freed
        of.freed = True
        self.node.freed.add(of.key)
        for uuid in of.gpus:
            if uuid in dirty:
                assert dirty[uuid], "dirty without a reason"
                self.quarantine[uuid] = dirty[uuid]
            elif dirt := self.node.dirt(uuid, {of.key}):
                self.node.violations.append(f"{of.key} is told to have freed {uuid}, but {dirt}")

    def is_over(self, job_id, attempt):
        return (job_id, attempt) in self.node.over

    def held(self):
        return {uuid for attempt in self.attempts.values() if not attempt.freed for uuid in attempt.gpus}

    def exited(self):
        return [attempt.key for attempt in self.attempts.values() if attempt.end is not None and not attempt.freed]

    # --- as the master does ---

    def job(self, id):
        return SimpleNamespace(attempts=[attempt for attempt in self.attempts.values() if attempt.key[0] == id])

    def hear(self, heartbeat):
        for reading in heartbeat.gpus:
            if reading.uuid in self.quarantine and is_released(reading, self):
                if dirt := self.node.dirt(reading.uuid, self.node.freed):
                    self.node.violations.append(f"{reading.uuid} is released, but {dirt}")
                del self.quarantine[reading.uuid]

    def room(self, shared):
        def fits(uuid):
            here = [attempt for attempt in self.attempts.values() if not attempt.freed and uuid in attempt.gpus]
            return uuid not in self.quarantine and (not here or (shared and len(here) == 1 and here[0].shared))

        return [uuid for uuid in UUIDS if fits(uuid)]

    def place(self, rng):
        shared = rng.random() < 0.5
        room = self.room(shared)
        if not room:
            return
        gpus = tuple(rng.sample(room, 1 if shared else rng.randint(1, len(room))))
        attempt = Attempt((str(len(self.attempts) + 1), 1), gpus, shared)
        for uuid in gpus:
            if dirt := self.node.dirt(uuid, self.node.freed):
                self.node.violations.append(f"{uuid} is handed to {attempt.key}, but {dirt}")
        self.handed_over += len(gpus)
        self.attempts[attempt.key] = attempt
        for _ in range(rng.randint(1, 3)):
            held = {uuid: rng.randint(GIB, 5 * GIB) for uuid in gpus}
            self.node.start(attempt.key, held, release_s=rng.choice(RELEASES_S))


class Story:
    """One seed's sequence of what happens."""

    def __init__(self, seed, path, monkeypatch, loop):
        self.rng = random.Random(seed)
        self.node = Node(self.rng, loop.time)
        self.cluster = Cluster(self.node)
        self.path = path
        handle = partial(_Handle, self.node)
        run = partial(instead_of_a_thread, self.node, loop)
        monkeypatch.setattr(attribution_module, "Identity", handle)
        monkeypatch.setattr(attribution_module, "on_daemon_thread", run)
        monkeypatch.setattr(reader_module, "on_daemon_thread", run)
        monkeypatch.setattr(telemetry_module, "who", lambda pid: ("ann", "x") if self.node.stat(pid) else ("", ""))

    async def run(self, steps):
        await self.start_agent()
        for _ in range(steps):
            await asyncio.sleep(self.rng.choice((0.0, 0.01, 0.5, 1.0, 4.0)))
            await self.rng.choices(*zip(*self.acts().items(), strict=True))[0]()
        await self.in_the_end_all_is_free()
        await self.stop_agent()

    def acts(self):
        return {
            self.place: 6, self.exit: 10, self.foreign_comes: 4, self.foreign_goes: 4, self.escape: 3, self.hang: 2,
            self.driver: 3, self.restart: 1,
        }  # fmt: skip

    # --- the agent ---

    async def start_agent(self):
        self.reader = GpuReader(self.node)
        self.attribution = attribution = Attribution(
            self.node.tree, self.node.stat, environments=self.node.environments
        )
        idle = IdleMemory(self.path)
        self.freeing = Freeing(self.cluster.is_over, self.reader, attribution, idle)
        self.releases = {}
        self.telemetry = Telemetry(self.reader, attribution, idle, self.cluster.held)
        self.telemetry.listeners.append(self.freeing.look)
        await self.telemetry.inventory()
        self.beating = asyncio.create_task(self.beat())
        self.release()

    def release(self):
        for key in self.cluster.exited():
            if key not in self.releases:
                note = partial(self.cluster.mark_freed, *key)
                self.releases[key] = Release(key, self.cluster.allocation(*key), self.freeing, note)

    async def stop_agent(self):
        self.beating.cancel()
        await asyncio.gather(self.beating, return_exceptions=True)
        await asyncio.gather(*(release.close() for release in self.releases.values()))

    async def beat(self):
        while True:
            self.cluster.hear(await self.telemetry.heartbeat())
            await asyncio.sleep(HEARTBEAT_S)

    # --- what happens ---

    async def place(self):
        self.cluster.place(self.rng)

    async def exit(self):
        """The supervisor ends an attempt, once nothing is left below it."""
        running = [attempt for attempt in self.cluster.attempts.values() if attempt.end is None]
        if not running:
            return
        attempt = self.rng.choice(running)
        for process in [p for p in self.node.processes.values() if p.owner == attempt.key and p.in_tree]:
            self.node.end(process)
        if attempt.key not in self.node.tree():
            attempt.end = asyncio.get_running_loop().time()
            self.node.over.add(attempt.key)
            self.release()

    async def foreign_comes(self):
        held = {uuid: self.rng.randint(GIB, 10 * GIB) for uuid in self.rng.sample(UUIDS, self.rng.randint(1, 2))}
        self.node.start(None, held, release_s=self.rng.choice(RELEASES_S))

    async def foreign_goes(self):
        foreign = [process for process in self.node.processes.values() if process.owner is None]
        if foreign:
            self.node.end(self.rng.choice(foreign))

    async def escape(self):
        """A process leaves its supervisor's tree; who wipes its environment as well was seen before by the agent."""
        inside = [process for process in self.node.processes.values() if process.owner is not None and process.in_tree]
        if inside:
            process = self.rng.choice(inside)
            process.in_tree = False
            known = (process.pid, process.starttime) in self.known()
            process.wiped = known and self.rng.random() < 0.5

    def known(self):
        return {(pid, known.starttime) for pid, known in self.attribution._known.items()}

    async def hang(self):
        if self.node.processes:
            process = self.rng.choice(list(self.node.processes.values()))
            process.stuck_until = asyncio.get_running_loop().time() + self.rng.choice((1.0, 8.0, 40.0))

    async def driver(self):
        self.node.devices[self.rng.choice(UUIDS)].mode = self.rng.choice(MODES)
        self.node.hanging = self.rng.random() < 0.15

    async def restart(self):
        """What only the last agent had seen, nobody can know."""
        await self.stop_agent()
        for process in self.node.processes.values():
            process.knowable &= not process.wiped
        await self.start_agent()

    async def in_the_end_all_is_free(self):
        """What is healed comes back: nothing stays quarantined, or held by an attempt that is over, for ever."""
        self.node.heal()
        while any(attempt.end is None for attempt in self.cluster.attempts.values()):
            await self.exit()
        for process in list(self.node.processes.values()):
            if not process.knowable:
                self.node.end(process)
        await asyncio.sleep(60.0)
        assert self.cluster.held() == set()
        assert self.cluster.quarantine == {}
        assert self.node.processes == {}


class _Handle:
    """`Identity`, of this node's processes."""

    def __init__(self, node, boot_id, pid, starttime):
        self.node, self.pid, self.starttime = node, pid, starttime

    def is_alive(self):
        stat = self.node.stat(self.pid)
        return stat is not None and stat.starttime == self.starttime

    def signal(self, signum):
        return self.node.signal(self.pid, self.starttime)


def tell(seed, steps, path, monkeypatch):
    with asyncio.Runner(loop_factory=FastLoop) as runner:
        story = Story(seed, path, monkeypatch, runner.get_loop())
        runner.run(story.run(steps))
    assert story.node.violations == [], f"seed {seed}"
    return story.cluster


@pytest.mark.parametrize("seed", range(25))
def test_a_gpu_is_never_handed_on_dirty(seed, tmp_path, monkeypatch):
    tell(seed, 150, tmp_path / "idle.json", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_a_gpu_is_never_handed_on_dirty_however_long_one_tries(seed, tmp_path, monkeypatch):
    tell(seed, 400, tmp_path / "idle.json", monkeypatch)


def test_the_stories_hand_over_gpus_and_leave_some_dirty(tmp_path, monkeypatch):
    handed_over, quarantines = 0, []
    mark = Cluster.mark_freed

    def counted(self, job_id, attempt, dirty):
        quarantines.extend(dirty.values())
        mark(self, job_id, attempt, dirty)

    monkeypatch.setattr(Cluster, "mark_freed", counted)
    for seed in range(5):
        handed_over += tell(seed, 150, tmp_path / f"{seed}.json", monkeypatch).handed_over
    assert handed_over > 30
    assert len(quarantines) > 10
