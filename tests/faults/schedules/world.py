"""One schedule: a cluster, people with wishes, faults, and in the end the truth against what the master says."""

import asyncio
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import ebbtide_agent.link.link
import ebbtide_master.clock
import ebbtide_master.nodes.agents
import ebbtide_master.nodes.heartbeats
from ebbtide_agent.link.endpoint import Endpoint
from ebbtide_agent.link.link import MasterLink
from ebbtide_agent.node import NodeDescription
from ebbtide_core.cluster import Cluster
from ebbtide_core.model.types import FINISHED, HeldBy, JobState
from ebbtide_core.nodes import silence
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.digest import digest
from ebbtide_core.views.ledger import Ledger
from ebbtide_master.api.context import Context
from ebbtide_master.api.reloading import ReloadService
from ebbtide_master.api.servicer import client_services, servicer
from ebbtide_master.changes import Changes
from ebbtide_master.clock import Clock
from ebbtide_master.config.file import Config
from ebbtide_master.history.recorder import HistoryRecorder
from ebbtide_master.identity.caller import Caller, Role, set_caller
from ebbtide_master.identity.identities import Identities
from ebbtide_master.loop import MasterLoop, RefusedError, StoppedError
from ebbtide_master.nodes.agents import Agents
from ebbtide_master.nodes.kept_logs import KeptLogs
from ebbtide_master.nodes.sessions import Sessions
from ebbtide_master.nodes.supplies import HeardSupplies
from ebbtide_master.notify.notifier import Notifier
from ebbtide_master.service import _announce
from ebbtide_master.store.environments import Environments
from ebbtide_master.store.recovery import fold
from ebbtide_master.throttle.throttle import Throttle
from ebbtide_protos.v1 import client_pb2, job_pb2

from tests.faults.schedules.disk import Disk, SimulatedStore
from tests.faults.schedules.machine import Machine, Program, Truth, Violation
from tests.faults.schedules.network import Network, broken

NODES: Final = ("a", "b", "c")
POLICIES: Final = ("fitgpp", "fifo", "priority", "fair-share", "hybrid", "malleable-equipartition")
EPOCH_BEGAN: Final = 1_800_000_000.0
HEARTBEAT_S: Final = 10.0
PATIENCE_S: Final = 12 * 3600.0
"""After the last fault; whatever was accepted has ended by then."""
LONGEST_LULL_S: Final = 60.0
"""After which nothing may be written for ever."""
WALL_JUMPS_S: Final = (-3.2e7, -3600.0, -5.0, 5.0, 3600.0, 3.2e7)


class Wall:
    """What people call the time; it can be set."""

    def __init__(self) -> None:
        self.jumped_s = 0.0

    def time(self) -> float:
        return EPOCH_BEGAN + self.jumped_s + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class SimulatedMaster:
    """One life of the master, put together as the process does, but for gRPC."""

    def __init__(self, disk: Disk, rng: Random, policy: str, slowest_s: float) -> None:
        self.store = SimulatedStore(disk, rng, slowest_s)
        self.cluster = Cluster(create_policy(policy, {}))
        config = Config()
        notifier, ledger = Notifier(self.cluster, self.store, config.notify), Ledger(self.cluster)
        fold(self.cluster, self.store, lambda line: notifier.replayed(line.sequence, line.time, line.event))
        clock, changes, self.epoch = Clock(self.store.last_time), Changes(), self.store.next_epoch()
        snapshots: Any = SimpleNamespace()
        environments = Environments(self.store.vault)
        sessions = Sessions(environments, KeptLogs(Path("/nowhere")), config.log_rules)
        self.loop = MasterLoop(self.cluster, self.store, clock, changes, sessions.perform, environments.keep)
        self.agents = Agents(
            self.store.cluster_id,
            self.epoch,
            clock,
            self.loop,
            sessions,
            snapshots,
            HeardSupplies(),
            silent=lambda node: None,
        )
        context = Context(
            about=client_pb2.ClusterInfo(),
            loop=self.loop,
            clock=clock,
            store=self.store,
            changes=changes,
            sessions=sessions,
            snapshots=snapshots,
            supplies=HeardSupplies(),
            environments=environments,
            identities=Identities(self.store.vault),
            wall=clock.now,
            notifier=notifier,
            ledger=ledger,
            history=HistoryRecorder(self.store),
            bounds=config.bounds,
            throttle=Throttle(config.bounds.rates, config.bounds.queued, environments.size_of),
            front=None,
        )
        self.clients = servicer(client_services(context, ReloadService(context, lambda: config, config)))
        self.consumer = asyncio.create_task(self.loop.run(), name=f"master {self.epoch}")

    async def serve(self, network: Network) -> None:
        """From now on agents get through."""
        await _announce(self.loop, self.consumer, self.epoch)
        self.agents.await_nodes(silence.to_await(self.cluster.state), 60.0)
        network.agents = self.agents

    def crash(self, network: Network) -> None:
        """As SIGKILL does it: nothing is finished, and nothing more is written."""
        self.store.crash()
        network.agents = None
        network.cut_all()
        self.consumer.cancel()
        for task in self.agents._silences.values():
            task.cancel()


class World:
    """All that happens under one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.wall = Wall()
        self.truth = Truth(self.wall.time)
        self.network = Network(self.rng)
        self.disk = Disk()
        self.machines = {name: Machine(name, self.truth, self.rng) for name in NODES}
        self.agents: dict[str, asyncio.Task[Any]] = {}
        self.master: SimulatedMaster | None = None
        self.acknowledged: dict[str, str] = {}  # job id by operation id
        self.cancelled: set[str] = set()
        self.faults: list[str] = []
        self.policy = self.rng.choice(POLICIES)
        self.slowest_s = self.rng.choice((0.0, 0.01, 0.5))
        self.failure: BaseException | None = None
        self.folder = Path()

    # --- the schedule ---

    async def run(self, folder: Path) -> None:
        """Raises `Violation`, or what else went wrong."""
        self.folder = folder
        asyncio.get_running_loop().set_exception_handler(self._noticed)
        await self._start_master()
        for name in NODES:
            self._start_agent(name)
        people = [asyncio.create_task(self._submit(number)) for number in range(self.rng.randint(4, 9))]
        people.append(asyncio.create_task(self._meddle()))
        for _ in range(self.rng.randint(5, 15)):
            await asyncio.sleep(self.rng.expovariate(1 / 20.0))
            await self._fault()
        await self._heal()
        await asyncio.gather(*people)
        await self._until_all_is_over()
        await asyncio.sleep(60.0)  # what was handled last is on disk by then
        self._compare()

    def _noticed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, AssertionError):
            self.failure = self.failure or error

    def _check(self) -> None:
        self.failure = self.failure or self.truth.violation
        if self.failure is not None:
            raise self.failure
        if self.master is not None and self.master.consumer.done() and not self.master.consumer.cancelled():
            self.master.consumer.result()
        for agent in self.agents.values():
            if agent.done() and not agent.cancelled():
                agent.result()

    # --- processes ---

    async def _start_master(self) -> None:
        if self.master is None:
            master = SimulatedMaster(self.disk, self.rng, self.policy, self.slowest_s)
            self.master = master
            await master.serve(self.network)

    def _kill_master(self) -> None:
        if self.master is not None:
            self.master.crash(self.network)
            self.master = None

    def _start_agent(self, name: str) -> None:
        if name in self.agents:
            return
        machine = self.machines[name]
        about = NodeDescription(
            name, name, f"boot-{machine.boots}", f"{name}-{self.rng.random()}", 8.0, 64 << 30, "root", address=name
        )
        telemetry: Any = machine
        cluster_file = self.folder / f"{name}.json"
        link = MasterLink(lambda: Endpoint(name, 1), about, machine, machine, telemetry, cluster_file)
        machine.on_change = partial(self._report, link)
        self.agents[name] = asyncio.create_task(link.run(), name=f"agent {name}")

    def _report(self, link: MasterLink, status: Any) -> None:
        link.report(status)

    def _kill_agent(self, name: str) -> None:
        if (agent := self.agents.pop(name, None)) is not None:
            agent.cancel()
            self.machines[name].on_change = None
            self.network.cut(name)

    # --- faults ---

    async def _fault(self) -> None:
        self._check()
        kinds = (
            self._crash_master, self._crash_agent, self._reboot, self._partition, self._half_partition, self._cut,
            self._lose_a_supervisor, self._set_clock, self._crash_both, self._crash_in_a_commit,
            self._crash_in_a_commit,
        )  # fmt: skip
        fault = self.rng.choice(kinds)
        self.faults.append(f"{asyncio.get_running_loop().time():.3f} {fault.__name__}")
        await fault()

    async def _crash_master(self) -> None:
        self._kill_master()
        await asyncio.sleep(self.rng.choice((0.0, 1.0, 100.0)))
        await self._start_master()

    async def _crash_agent(self) -> None:
        name = self.rng.choice(NODES)
        self._kill_agent(name)
        self._later(self.rng.choice((0.0, 5.0, 200.0)), partial(self._start_agent, name))

    async def _crash_both(self) -> None:
        await self._crash_agent()
        await self._crash_master()

    async def _crash_in_a_commit(self) -> None:
        """Whatever is to be written next, be it what somebody has just asked for."""
        if self.master is None:
            return
        failed = asyncio.Event()
        self.master.store.fail = failed.set
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_LULL_S):
                await failed.wait()
        await self._crash_master()

    async def _reboot(self) -> None:
        name = self.rng.choice(NODES)
        self._kill_agent(name)
        self.machines[name].reboot()
        self._later(self.rng.uniform(1.0, 100.0), partial(self._start_agent, name))

    async def _partition(self) -> None:
        self._hold(up=True, down=True)

    async def _half_partition(self) -> None:
        up = self.rng.random() < 0.5
        self._hold(up=up, down=not up)

    def _hold(self, *, up: bool, down: bool) -> None:
        name = self.rng.choice(NODES)
        self.network.hold(name, up=up, down=down)
        self._later(self.rng.choice((1.0, 15.0, 60.0, 300.0)), partial(self.network.heal, name))

    async def _cut(self) -> None:
        self.network.cut(self.rng.choice(NODES))

    async def _lose_a_supervisor(self) -> None:
        self.machines[self.rng.choice(NODES)].kill_a_supervisor()

    async def _set_clock(self) -> None:
        self.wall.jumped_s += self.rng.choice(WALL_JUMPS_S)

    def _later(self, seconds: float, what: Any) -> None:
        asyncio.get_running_loop().call_later(seconds, what)

    async def _heal(self) -> None:
        for name in NODES:
            self.network.heal(name)
            self._start_agent(name)
        await self._start_master()

    # --- people ---

    async def _submit(self, number: int) -> None:
        program = Program(
            steps=self.rng.choice((3, 30, 200)),
            every=self.rng.choice((2, 10)),
            code=self.rng.choice((0, 0, 0, 1)),
            save_s=self.rng.uniform(0.0, 20.0),
            clean=self.rng.random() < 0.8,
        )
        name = f"job{number}"
        self.truth.programs[name] = program
        gpus = job_pb2.Share(numerator=self.rng.randint(1, 2), denominator=1)
        spec = job_pb2.JobSpec(name=name, command=["train"], workdir="/", gpus_min=gpus, gpus_max=gpus, grace_s=10.0)
        if self.rng.random() < 0.5:
            spec.priority = self.rng.randint(1, 99)
        await asyncio.sleep(self.rng.uniform(0.0, 120.0))
        request = client_pb2.SubmitRequest(spec=spec, user="ann", operation_id=f"operation {number}")
        reply = await self._ask("Submit", request)
        self.acknowledged[request.operation_id] = reply.job_id
        again = await self._ask("Submit", request)
        if again.job_id != reply.job_id:
            raise Violation(f"asked again, {request.operation_id} is job {again.job_id}, not {reply.job_id}")

    async def _meddle(self) -> None:
        """Somebody suspends, resumes, holds, releases and now and then cancels jobs."""
        for _ in range(self.rng.randint(0, 8)):
            await asyncio.sleep(self.rng.expovariate(1 / 25.0))
            if not self.acknowledged:
                continue
            job = self.rng.choice(sorted(self.acknowledged.values()))
            verb = self.rng.choice(("Suspend", "Resume", "Hold", "Release", "Cancel"))
            if verb == "Cancel":
                self.cancelled.add(job)
                await self._ask(verb, client_pb2.CancelRequest(job_id=job))
            else:
                await self._ask(verb, client_pb2.JobRequest(job_id=job))

    async def _ask(self, verb: str, request: Any) -> Any:
        """What the master answers, whichever lives; the answer may be lost, and then it is asked again."""
        set_caller(Caller("ann", Role.ADMIN))
        while True:
            self._check()
            try:
                if self.master is None:
                    raise broken("nobody there")
                reply = await getattr(self.master.clients, verb)(request, None)
                if self.rng.random() > 0.1:
                    return reply
            except RefusedError:
                return None
            except (StoppedError, type(broken(""))):
                pass
            await asyncio.sleep(self.rng.uniform(0.1, 2.0))

    # --- the end ---

    async def _until_all_is_over(self) -> None:
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            self._check()
            assert self.master is not None
            jobs = self.master.cluster.state.jobs
            left = [job for job in jobs.values() if job.state not in FINISHED]
            if not left and not any(job.holding for job in jobs.values()):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise Violation("never over: " + ", ".join(f"{job.id} {job.state.name} ({job.reason})" for job in left))
            for job in left:
                if job.held_by is not None or job.state is JobState.SUSPENDED:
                    verb = "Resume" if job.held_by is HeldBy.USER and job.attempts else "Release"
                    await self._ask(verb, client_pb2.JobRequest(job_id=job.id))
                    await self._ask("Release", client_pb2.JobRequest(job_id=job.id))
            await asyncio.sleep(60.0)

    def _compare(self) -> None:
        """What the master says against the truth."""
        assert self.master is not None
        state = self.master.cluster.state
        if sorted(state.jobs) != sorted(set(self.acknowledged.values())):
            raise Violation(f"jobs {sorted(state.jobs)} were accepted as {self.acknowledged}")
        if len(set(self.acknowledged.values())) != len(self.acknowledged):
            raise Violation(f"two operations are one job: {self.acknowledged}")
        if self.truth.living:
            raise Violation(f"jobs {sorted(self.truth.living)} still live")
        for job in state.jobs.values():
            exits = self.truth.exits.get(job.id, set())
            if job.state is JobState.COMPLETED and 0 not in exits:
                raise Violation(f"job {job.id} is said to be completed: its attempts ended with {exits}")
            if job.state is JobState.FAILED and not exits - {0} and not job.retries.restarts:
                raise Violation(f"job {job.id} is said to have failed ({job.reason}): {exits}")
            if job.state is JobState.CANCELLED and job.id not in self.cancelled:
                raise Violation(f"job {job.id} was cancelled by nobody")
        again = Cluster(create_policy(self.policy, {}))
        fold(again, self.master.store)
        if digest(again.state) != digest(state):
            raise Violation("the journal, folded, is not what the master has")


def _shown(module: Any) -> dict[str, Any]:
    return {name: getattr(module, name) for name in dir(module) if not name.startswith("__")}


@contextmanager
def simulated(world: World) -> Iterator[Path]:
    """Time, chance and the network of the real parts are the world's; a folder for the agents' small files."""
    random.seed(world.rng.random())
    fake_aio = SimpleNamespace(secure_channel=lambda endpoint, *_, **__: world.network.open(endpoint.split(":")[0]))
    real = ebbtide_agent.link.link.grpc
    fake_grpc = SimpleNamespace(**(_shown(real) | {"aio": SimpleNamespace(**(_shown(real.aio) | vars(fake_aio)))}))
    folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    with (
        folder as path,
        patch.object(ebbtide_agent.link.link, "grpc", fake_grpc),
        patch.object(ebbtide_master.clock, "time", world.wall),
        patch.object(ebbtide_master.nodes.heartbeats, "HEARTBEAT_S", HEARTBEAT_S),
    ):
        yield Path(path)
