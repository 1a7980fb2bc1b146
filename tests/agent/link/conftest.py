"""Both ends of a link: a real gRPC server that plays the master, and attempts that only take notes."""

import asyncio
import json
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path

import grpc.aio
import pytest
from ebbtide_agent.gpu.backend import Gpu, GpuReading, NoGpus
from ebbtide_agent.gpu.reader import GpuReader
from ebbtide_agent.gpu_use.attribution import Attribution
from ebbtide_agent.gpu_use.telemetry import Telemetry
from ebbtide_agent.link.endpoint import Endpoint
from ebbtide_agent.link.link import MasterLink
from ebbtide_agent.node import NodeDescription
from ebbtide_protos import home_socket
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc

DEADLINE_S = 30


class Attempts:
    """The face of the agent's attempts: says what the test sets, notes what it is asked to do."""

    def __init__(self, cluster_file: Path) -> None:
        self.cluster_file = cluster_file
        self.cluster_id = ""
        self.left: list[str] = []  # the cluster on disk at each time that one was left
        self.present: dict[tuple[str, int], agent_pb2.AttemptStatus] = {}
        self.orders: list[tuple[object, ...]] = []
        self.renewals: list[float] = []
        self.log = b""
        self.hold = asyncio.Event()
        self.hold.set()

    def add(self, job_id: str, attempt: int, phase: str = "RUNNING") -> agent_pb2.AttemptStatus:
        number = agent_pb2.AttemptPhase.Value(f"ATTEMPT_PHASE_{phase}")
        status = agent_pb2.AttemptStatus(job_id=job_id, attempt=attempt, phase=number)
        self.present[job_id, attempt] = status
        return status

    def statuses(self):
        return list(self.present.values())

    def pids(self):
        return {}

    def leave_cluster(self):
        self.left.append(json.loads(self.cluster_file.read_text())["cluster_id"])

    def join(self, cluster_id):
        self.cluster_id = cluster_id

    def renew(self, at):
        self.renewals.append(at)

    async def launch(self, order):
        await self.hold.wait()
        self.orders.append(("launch", order.job_id, order.attempt))

    async def stop(self, job_id, attempt, grace_s, goes_on=False):
        if job_id == "broken":
            raise RuntimeError("no such attempt")
        self.orders.append(("stop", job_id, attempt, grace_s))

    async def swap(self, job_id, attempt, grace_s, swaps):
        self.orders.append(("swap", job_id, attempt, grace_s, swaps))

    async def resume(self, job_id, attempt, swaps):
        self.orders.append(("resume", job_id, attempt, swaps))

    async def forget(self, job_id, attempt):
        self.orders.append(("forget", job_id, attempt))

    async def read_log(self, job_id, attempt, offset, max_bytes, wait_s, rank=None):
        if job_id == "missing":
            raise FileNotFoundError("the log is gone")
        self.orders.append(("read_log", job_id, attempt, offset, max_bytes, wait_s))
        return agent_pb2.LogData(data=self.log[offset : offset + max_bytes], end=True)


class Gpus(NoGpus):
    """No GPUs, until the driver finds some."""

    def __init__(self) -> None:
        self.found: tuple[Gpu, ...] = ()

    @property
    def kind(self):
        return "nvml" if self.found else "none"

    def gpus(self):
        return self.found

    def read(self, uuid):
        return GpuReading(uuid, mem_total_bytes=16 << 30)


class Conversation:
    """One stream as the master sees it."""

    def __init__(self, messages, context) -> None:
        self._messages = messages
        self._context = context
        self.ended = asyncio.Event()

    async def receive(self, kind: str):
        """The next message of this kind; others are passed over."""
        async with asyncio.timeout(DEADLINE_S):
            async for message in self._messages:
                if message.WhichOneof("body") == kind:
                    return getattr(message, kind)
        raise AssertionError(f"the stream ended without {kind}")

    async def send(self, **body) -> None:
        await self._context.write(agent_pb2.MasterMessage(**body))

    async def welcome(self, cluster_id="c1", epoch=1, heartbeat_s=60.0):
        """Hear Hello and welcome the node; returns the Hello."""
        hello = await self.receive("hello")
        welcome = agent_pb2.Welcome(cluster_id=cluster_id, epoch=epoch, heartbeat_s=heartbeat_s)
        await self.send(welcome=welcome)
        return hello


class Master(agent_pb2_grpc.AgentServiceServicer):
    """A gRPC server that hands every stream to the test."""

    def __init__(self, home: Path) -> None:
        self._streams: asyncio.Queue[Conversation] = asyncio.Queue()
        self._server: grpc.aio.Server | None = None
        self._open = ExitStack()
        self.home = home
        self.streams_seen = 0

    async def Attach(self, request_iterator, context):
        conversation = Conversation(request_iterator, context)
        self.streams_seen += 1
        self._streams.put_nowait(conversation)
        await conversation.ended.wait()

    async def start(self) -> None:
        self._server = grpc.aio.server()
        agent_pb2_grpc.add_AgentServiceServicer_to_server(self, self._server)
        target = self._open.enter_context(home_socket.made(self.home))
        self._server.add_secure_port(target, grpc.local_server_credentials(grpc.LocalConnectionType.UDS))
        await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None
            self._open.close()

    async def attached(self) -> Conversation:
        """The next stream that an agent opens."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._streams.get()


class World:
    """One agent's link and the master it looks for."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.attempts = Attempts(home / "cluster.json")
        self.gpus = Gpus()
        self.master = Master(home)
        self.other_master = Master(home / "other")
        self.wanted = self.master
        self.link: MasterLink | None = None
        self._running: asyncio.Task[None] | None = None

    def find_master(self) -> Endpoint:
        return Endpoint.of(self.wanted.home)

    def start_agent(self) -> None:
        node = NodeDescription("n1", "host1", "boot1", "incarnation1", 8.0, 1 << 34, "root1")
        telemetry = Telemetry(GpuReader(self.gpus), Attribution(self.attempts.pids))
        self.link = MasterLink(
            self.find_master, node, self.attempts, self.attempts, telemetry, self.home / "cluster.json"
        )
        self._running = asyncio.create_task(self.link.run())

    async def stop_agent(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running

    async def ordered(self, *orders: tuple[object, ...]) -> None:
        """Wait until these orders, in this order, are all that was carried out."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.attempts.orders) < len(orders):
                await asyncio.sleep(0.005)
        assert self.attempts.orders == list(orders)


@pytest.fixture
def world(tmp_path):
    @asynccontextmanager
    async def make():
        world = World(tmp_path)
        async with AsyncExitStack() as closing:
            for master in (world.master, world.other_master):
                closing.push_async_callback(master.stop)
            await world.master.start()
            world.start_agent()
            closing.push_async_callback(world.stop_agent)
            yield world

    return make
