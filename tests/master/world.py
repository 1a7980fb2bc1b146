"""A master in this process, served on a loopback port, and agents that say and hear what a test wrote down."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from ebbtide_core.cluster import Cluster
from ebbtide_core.model.settings import Settings
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.ledger import Ledger
from ebbtide_master.calls.gate import TokenGate
from ebbtide_master.config.file import Config
from ebbtide_master.identity.caller import Caller, Role
from ebbtide_master.identity.identities import Identities
from ebbtide_master.identity.running_as import AGENTS_OWN, Accounts
from ebbtide_master.main import _recover
from ebbtide_master.notify.notifier import Notifier
from ebbtide_master.service import Service, serving
from ebbtide_master.store.recovery import recovered
from ebbtide_master.store.sqlite import SqliteStore
from ebbtide_protos import home_socket
from ebbtide_protos.v1 import agent_pb2, agent_pb2_grpc, client_pb2, client_pb2_grpc, job_pb2

DEADLINE_S = 30.0
ONE_POOL = Settings()
GIB = 2**30
RUNNING = agent_pb2.ATTEMPT_PHASE_RUNNING
EXITED = agent_pb2.ATTEMPT_PHASE_EXITED
FREED = agent_pb2.ATTEMPT_PHASE_FREED
REFUSED = agent_pb2.ATTEMPT_PHASE_REFUSED


def share(numerator: int, denominator: int = 1) -> job_pb2.Share:
    return job_pb2.Share(numerator=numerator, denominator=denominator)


def make_spec(gpus: int = 1, **fields: Any) -> job_pb2.JobSpec:
    return job_pb2.JobSpec(**({"command": ["train"], "workdir": "/", "gpus_min": share(gpus)} | fields))


def make_hello(name: str, gpus: int | list[agent_pb2.GpuInfo] = 2, **fields: Any) -> agent_pb2.Hello:
    devices = (
        gpus
        if isinstance(gpus, list)
        else [
            agent_pb2.GpuInfo(uuid=f"{name}-{i}", index=i, model="A100", mem_bytes=40 * GIB, healthy=True)
            for i in range(gpus)
        ]
    )
    defaults: dict[str, Any] = {
        "hostname": name, "boot_id": "boot-1", "incarnation": "first", "gpus": devices, "cpus": 8.0,
        "mem_bytes": 64 * GIB, "checkpoint_root_id": "root", "gpu_backend": "fake", "version": "0",
    }  # fmt: skip
    return agent_pb2.Hello(node=name, **(defaults | fields))


def make_status(job: str, attempt: int, phase: int, **fields: Any) -> agent_pb2.AttemptStatus:
    """What a node says of an attempt; one that ended did so by itself, with exit code 0, unless ``exit`` says else."""
    over = phase in (EXITED, FREED)
    defaults: dict[str, Any] = {"pid": 100, "started_at": 1000.0} if phase != REFUSED else {}
    if over:
        defaults["exit"] = agent_pb2.ExitRecord(ended_at=1001.0)
    return agent_pb2.AttemptStatus(job_id=job, attempt=attempt, phase=phase, **(defaults | fields))  # type: ignore[arg-type]


STEPPED_ASIDE = agent_pb2.ExitRecord(
    exit_code=85, stop_requested=True, delivered=True, caught=True, acknowledged=True, ended_at=1001.0,
    checkpointed=job_pb2.CHECKPOINTED_YES,
)  # fmt: skip


class Agent:
    """One stream from a node, as its agent sees it."""

    def __init__(self, stub: agent_pb2_grpc.AgentServiceStub, hello: agent_pb2.Hello, token: str = "") -> None:
        self.hello = hello
        self.heard: list[str] = []
        self.logs: dict[tuple[str, int], bytes] = {}
        self._call: Any = stub.Attach(metadata=(("authorization", f"Bearer {token}"),) if token else None)
        self._writing = asyncio.Lock()

    async def receive(self, kind: str) -> Any:
        """The next message of this kind; others are noted in ``heard`` and passed over."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                message = await self._call.read()
                if message is grpc.aio.EOF:
                    raise AssertionError(f"the stream ended without {kind}, after {self.heard}")
                body = message.WhichOneof("body")
                self.heard.append(body)
                if body == kind:
                    return getattr(message, body)

    async def send(self, **body: Any) -> None:
        async with self._writing:  # a stream takes one message at a time
            await self._call.write(agent_pb2.AgentMessage(**body))

    async def register(self) -> agent_pb2.Welcome:
        await self.send(hello=self.hello)
        welcome: agent_pb2.Welcome = await self.receive("welcome")
        return welcome

    async def report(self, job: str, attempt: int, phase: int, **fields: Any) -> None:
        await self.send(status=make_status(job, attempt, phase, **fields))

    async def ends(self) -> grpc.StatusCode:
        """The status that the stream ended with, once it did; what else came is noted."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while (message := await self._call.read()) is not grpc.aio.EOF:
                    self.heard.append(message.WhichOneof("body"))
            except grpc.aio.AioRpcError:
                pass
            code: grpc.StatusCode = await self._call.code()
            return code

    async def details(self) -> str:
        return str(await self._call.details())

    async def fall_silent(self) -> None:
        """It says that nothing more follows, and goes on listening."""
        await self._call.done_writing()

    async def hang_up(self) -> None:
        await self.fall_silent()
        await self.ends()

    def vanish(self) -> None:
        """The stream breaks without a word."""
        self._call.cancel()


class Master:
    """A serving master and a client's stub for it."""

    def __init__(
        self,
        service: Service,
        cluster: Cluster,
        store: SqliteStore,
        channel: grpc.aio.Channel,
        gate: TokenGate,
        target: str,
    ) -> None:
        self.target = target
        self.identities = gate.identities
        self.service, self.cluster, self.store, self.channel = service, cluster, store, channel
        self.ask: Any = client_pb2_grpc.ClientServiceStub(channel)
        self._agents = agent_pb2_grpc.AgentServiceStub(channel)

    def connect(self, hello: agent_pb2.Hello) -> Agent:
        """Open a stream; nothing is said on it yet."""
        return Agent(self._agents, hello)

    async def agent(self, name: str = "n1", gpus: int | list[agent_pb2.GpuInfo] = 2, **fields: Any) -> Agent:
        """A node that registered, and of which the master knows it."""
        agent = self.connect(make_hello(name, gpus, **fields))
        await agent.register()
        await self.until_node(name, "up")
        return agent

    async def agent_with(self, token: str, name: str = "n1") -> Agent:
        """The same with a token, which a guarded master wants."""
        agent = Agent(self._agents, make_hello(name), token)
        await agent.register()
        await until_node(self.ask, name, "up", token)
        return agent

    async def until_node(self, name: str, state: str) -> client_pb2.Node:
        """The node once it is in ``state``."""
        return await until_node(self.ask, name, state)

    async def submit(self, gpus: int = 1, operation: str = "", hold: bool = False, **spec: Any) -> str:
        request = client_pb2.SubmitRequest(spec=make_spec(gpus, **spec), user="ann", operation_id=operation, hold=hold)
        reply = await self.ask.Submit(request, timeout=DEADLINE_S)
        return str(reply.job_id)

    async def show(self, job: str) -> client_pb2.Job:
        return await self.ask.ShowJob(client_pb2.JobRequest(job_id=job), timeout=DEADLINE_S)  # type: ignore[no-any-return]

    async def becomes(self, job: str, state: str, token: str = "") -> client_pb2.Job:
        """The job once it is in ``state``; a guarded master wants a token."""
        metadata = (("authorization", f"Bearer {token}"),) if token else None
        number = job_pb2.JobState.Value(f"JOB_STATE_{state}")
        async with asyncio.timeout(DEADLINE_S):
            async for message in self.ask.WatchJobs(client_pb2.WatchJobsRequest(job_ids=[job]), metadata=metadata):
                if message.state == number:
                    return message  # type: ignore[no-any-return]
        raise AssertionError(f"job {job} ended as {job_pb2.JobState.Name(message.state)}: {message.reason}")

    async def running(self, agent: Agent, gpus: int = 1, **spec: Any) -> str:
        """A job that runs on ``agent``'s node."""
        job = await self.submit(gpus, **spec)
        launch = await agent.receive("launch")
        assert launch.job_id == job
        await agent.report(job, 1, RUNNING)
        await self.becomes(job, "RUNNING")
        return job

    def slept(self, seconds: float) -> None:
        """As if the machine had slept: the monotonic clock stood still for so long, and the wall's did not."""
        self.service.context.clock._shown -= seconds

    async def kinds(self, after: int = 0) -> list[str]:
        """The journal's events by name."""
        events = self.ask.WatchEvents(client_pb2.WatchEventsRequest(after_sequence=after))
        return [event.kind async for event in events]


class OpenGate(TokenGate):
    """Takes everybody for whom they say they are, as an admin: most tests are about something else."""

    def admit(self, method: str, context: Any) -> Caller:
        return Caller("", Role.ADMIN)

    def allow(self, method: str, message: Any, caller: Caller) -> None:
        pass


@asynccontextmanager
async def a_master(
    home: Path,
    policy: str = "fitgpp",
    store: SqliteStore | None = None,
    settings: Settings = ONE_POOL,
    config: Config | None = None,
    guarded: bool = False,
    reread: Callable[[], Config] | None = None,
    accounts: Accounts = lambda user: AGENTS_OWN,
) -> AsyncIterator[Master]:
    """A master on the journal in ``home``, which it recovers first, as the process does.

    A ``guarded`` one wants tokens, as real ones do.
    """
    async with AsyncExitStack() as stack:
        store = store or SqliteStore(home / "journal.db")
        stack.callback(store.close)
        config, journal = config or Config(), store

        def attempt() -> tuple[Cluster, Notifier, Ledger]:
            cluster = Cluster(create_policy(policy, {}), settings=settings)
            notifier, ledger = Notifier(cluster, journal, config.notify), Ledger(cluster)
            _recover(cluster, journal, notifier.replayed)
            return cluster, notifier, ledger

        cluster, notifier, ledger = recovered(journal, attempt)
        gate = (TokenGate if guarded else OpenGate)(Identities(store.vault), cluster, time.time)
        service = await stack.enter_async_context(
            serving(cluster, store, home, policy, gate, config, notifier, ledger, reread, accounts=accounts)
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        target = stack.enter_context(home_socket.reached(home))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(target, options=options))
        yield Master(service, cluster, store, channel, gate, target)


async def until_node(ask: Any, name: str, state: str, token: str = "") -> client_pb2.Node:
    """The node once it is in ``state``: a node is welcomed before the master has taken it in."""
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    async with asyncio.timeout(DEADLINE_S):
        while True:
            for node in (await ask.ListNodes(client_pb2.ListNodesRequest(), metadata=metadata)).nodes:
                if node.name == name and node.state == state:
                    return node  # type: ignore[no-any-return]
            await asyncio.sleep(0.005)


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    """The status and words that a call fails with."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            await call
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("it was not refused")


async def rest(stream: Any) -> list[Any]:
    """All that is left of a stream that was read from."""
    messages = []
    async with asyncio.timeout(DEADLINE_S):
        while (message := await stream.read()) is not grpc.aio.EOF:
            messages.append(message)
    return messages


def wish(master: Master, verb: str, job: str) -> Any:
    """What `ebb` asks for with this verb, with the least that it needs."""
    if verb == "Resize":
        return master.ask.Resize(client_pb2.ResizeRequest(job_id=job, gpus_min=share(1)))
    if verb == "Change":
        return master.ask.Change(client_pb2.ChangeRequest(job_id=job, priority=5))
    request = client_pb2.CancelRequest(job_id=job) if verb == "Cancel" else client_pb2.JobRequest(job_id=job)
    return getattr(master.ask, verb)(request)
