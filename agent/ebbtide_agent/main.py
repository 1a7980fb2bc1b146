"""Runs the agent's process, one per node directory, until SIGTERM. Attempts go on without it."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from pathlib import Path

from ebbtide_machine.lock import locked
from ebbtide_machine.place import NotTrusted, make_folder
from ebbtide_machine.process import Identity
from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import agent_pb2
from ebbtide_protos.v1.job_pb2 import GpuAllocation

from ebbtide_agent import agent_log, gpu, mps
from ebbtide_agent.accounts.accounts import BY_DEFAULT, AllowedAccounts
from ebbtide_agent.attempts import standbys
from ebbtide_agent.attempts.attempts import Attempts
from ebbtide_agent.attempts.places import NodeDirectories
from ebbtide_agent.channels.table import ChannelTable
from ebbtide_agent.contract.attempt_dir import AttemptKey
from ebbtide_agent.files.exchange import Exchange
from ebbtide_agent.files.retention import Retention, RetentionTask
from ebbtide_agent.gpu import chosen
from ebbtide_agent.gpu.backend import GpuBackend
from ebbtide_agent.gpu.nvml import has_real_gpus
from ebbtide_agent.gpu.opening import open_in_process
from ebbtide_agent.gpu.profiles import parse_profile
from ebbtide_agent.gpu.reader import GpuReader
from ebbtide_agent.gpu_use.attribution import Attribution
from ebbtide_agent.gpu_use.foreign_processes import ForeignProcessNotifier, parse_command
from ebbtide_agent.gpu_use.freeing import Freeing
from ebbtide_agent.gpu_use.idle_use import IdleMemory
from ebbtide_agent.gpu_use.telemetry import Telemetry
from ebbtide_agent.gpu_use.unused_sessions import UnusedSessions
from ebbtide_agent.gpu_use.watchdog import Watchdog
from ebbtide_agent.jsonfile import DISK_FULL, write_json
from ebbtide_agent.link import joined, membership
from ebbtide_agent.link.credentials import Credentials
from ebbtide_agent.link.endpoint import Endpoint, local_master, parse_endpoint
from ebbtide_agent.link.link import MasterLink
from ebbtide_agent.mps.sharing import GpuSharing
from ebbtide_agent.network import Network, address_of
from ebbtide_agent.node import NodeDescription, describe, node_name
from ebbtide_agent.node_end import NOTICE, NodeEnd
from ebbtide_agent.pilot.pilot import Lent, Pilot
from ebbtide_agent.supervisor import limits

__all__ = ["AgentOptions", "has_real_gpus", "run"]

log = logging.getLogger(__name__)

_FAILED = 1
_WRONG_USE = 2


@dataclass(frozen=True)
class AgentOptions:
    """The settings of one agent."""

    home: Path
    name: str = ""  # "": the host's name
    master: str = ""  # HOST:PORT or unix:HOME, several with commas; "": where the node joined, else home/master.json
    gpus: str = gpu.REAL  # "auto": real ones by NVML; "none"; or a fake profile
    only_gpus: tuple[str, ...] = ()  # the UUIDs or indexes of those to offer; (): all
    checkpoint_root: Path | None = None  # None: home/checkpoints
    cpus: float | None = None  # None: the CPUs that this process may run on
    mem_bytes: int | None = None  # None: the machine's
    interface: str = ""  # by which other nodes reach this one; "": the one that leads to the master
    warm: int = standbys.DEFAULT_SIZE  # the most standby processes
    ports: str = ""  # FIRST-LAST for the ranks' rendezvous; "": the default
    mps: str = mps.AUTO  # "auto": on real GPUs if it is installed; "off"; or a control program
    share_with_foreign: bool = False  # whether shares of a GPU may be allocated beside foreign processes
    pool: str = "default"  # the pool of the node
    labels: tuple[tuple[str, str], ...] = ()  # keys and values by which jobs select nodes
    taints: tuple[str, ...] = ()  # keep away all jobs that do not tolerate them
    keep: Retention = Retention()  # noqa: RUF009 (frozen) how long, and how much of, finished jobs' files are kept
    allowed: AllowedAccounts = BY_DEFAULT  # whose jobs run here
    until: float | None = None  # when the node is gone, in Unix seconds; None: it stays
    owner: str = ""  # who lends the node until then
    on_foreign: str = ""  # command that is run for each foreign process on a GPU; "": none
    lent: Lent | None = None  # how another scheduler lends the node; None: it does not, and attempts outlive the agent


class CannotRun(Exception):
    """The agent cannot start here; the message is one line."""


def run(options: AgentOptions) -> int:
    """Run the agent until SIGTERM or SIGINT, then leave every attempt running; a lent node is cleared first.

    Return the exit status: 0 after a stop, 1 if the agent cannot run here or attempts are left on a node that is given
    back, 2 for invalid options.
    """
    agent_log.configure()
    try:
        name = node_name(options.name)
        find_master = _master_finder(options, options.home / "nodes" / name)
        network = Network.parse(options.interface, options.ports)
        parse_command(options.on_foreign)
        if gpu.is_fake(options.gpus):
            parse_profile(options.gpus)
        mps.find_binary(options.mps, fake=gpu.is_fake(options.gpus))
    except ValueError as error:
        return _fail(error, _WRONG_USE)
    node_dir = options.home / "nodes" / name
    try:
        make_folder(node_dir)
        with _only_agent(node_dir):
            left = asyncio.run(_serve(options, name, node_dir, find_master, network))
    except (CannotRun, NotTrusted, OSError, ValueError) as error:
        return _fail(error, _FAILED)
    if left:
        jobs = ", ".join(sorted({status.job_id for status in left}))
        return _fail(CannotRun(f"the node's time is over, and the master has not taken leave of jobs {jobs}"), _FAILED)
    return 0


def _fail(error: Exception, status: int) -> int:
    print(f"ebb agent: {error}", file=sys.stderr)  # noqa: T201
    return status


def _master_finder(options: AgentOptions, node_dir: Path) -> Callable[[], Endpoint]:
    """Return the function that finds the master at each try: from the options, the joining, or the same home."""
    if not options.master:
        return partial(_joined_master, options.home, node_dir)
    endpoints = [parse_endpoint(part.strip()) for part in options.master.split(",")]
    for endpoint in endpoints:
        if endpoint.home is None and joined.load(node_dir) is None:
            # A master may start processes here, so its identity must be proven.
            raise ValueError(
                f"nothing proves who the master at {endpoint} is: join its cluster first ('ebb agent join')"
            )
    turn = cycle(endpoints)  # each try goes to the next, because one that is stuck must not keep the node
    return lambda: next(turn)


def _joined_master(home: Path, node_dir: Path) -> Endpoint:
    member = joined.load(node_dir)
    return local_master(home) if member is None or not member.address else member.endpoint


@contextmanager
def _only_agent(node_dir: Path) -> Iterator[None]:
    """Lock the node directory. Raises CannotRun if another agent has locked it."""
    handle = os.open(node_dir / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not locked(handle):
            holder = os.pread(handle, 32, 0).decode().strip() or "unknown"
            raise CannotRun(f"an agent already runs on {node_dir} (pid {holder})")
        with _logged_if_full("agent-lock-not-filled"):
            line = f"{os.getpid()}\n".encode()
            os.pwrite(handle, line, 0)  # in the file's own room, because there may be no other
            os.ftruncate(handle, len(line))
        yield
    finally:
        os.close(handle)


@contextmanager
def _logged_if_full(event: str) -> Iterator[None]:
    """Log and pass over that there is no room on the disk, so that what fills it can be stopped; raise other errors."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        log.error("event=%s error=%r", event, str(error))


async def _serve(
    options: AgentOptions, name: str, node_dir: Path, find_master: Callable[[], Endpoint], network: Network
) -> list[agent_pb2.AttemptStatus]:
    """Serve until a signal asks to stop. Raises what keeps the agent from starting.

    Return the statuses of the attempts that are left on a lent node.
    """
    serving = asyncio.create_task(_serve_for_ever(options, name, node_dir, find_master, network), name="agent")
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, serving.cancel)
    left = list[agent_pb2.AttemptStatus]()
    with suppress(asyncio.CancelledError):
        left = await serving
    log.info("event=stopped node=%s", name)
    return left


async def _serve_for_ever(
    options: AgentOptions, name: str, node_dir: Path, find_master: Callable[[], Endpoint], network: Network
) -> list[agent_pb2.AttemptStatus]:
    listeners: list[Callable[[agent_pb2.AttemptStatus], None]] = []

    def changed(status: agent_pb2.AttemptStatus) -> None:
        for listen in listeners:
            listen(status)

    checkpoint_root = options.checkpoint_root or options.home / "checkpoints"
    node = _describe(options, name, checkpoint_root, network)
    cluster_file = node_dir / "cluster.json"
    fake_dir = node_dir / "gpus"
    fake = gpu.is_fake(options.gpus)
    sharing = GpuSharing(node_dir, mps.find_binary(options.mps, fake=fake))
    gpus = _GpuAnswers()
    exchange = Exchange()
    places = NodeDirectories(node_dir, checkpoint_root, membership.load(cluster_file).cluster_id)
    attempts = Attempts(
        places,
        gpus,
        exchange,
        on_change=changed,
        fake_gpu_dir=fake_dir if fake else None,
        network=network,
        warm=options.warm,
        settled_s=standbys.SETTLED_S,
        sharing=sharing,
        allowed=options.allowed,
    )
    holders = attempts.holders
    # The parts that use the GPU backend are closed before it is.
    async with AsyncExitStack() as backends, AsyncExitStack() as closing:
        await attempts.start()
        closing.push_async_callback(attempts.close)
        backend = await on_daemon_thread(
            partial(open_in_process, options.gpus, fake_dir, in_use=bool(holders.holding()))
        )
        backends.callback(backend.close)
        reader = GpuReader(_offered(options, backend, fake_dir if fake else None, backends))
        attribution = Attribution(holders.pids, groups=holders.groups, environments=holders.by_environment)
        idle = IdleMemory(node_dir / "idle.json")
        freeing = Freeing(holders.is_over, reader, attribution, idle)
        end = NodeEnd(_said_end(options), node_dir / NOTICE)
        telemetry = Telemetry(reader, attribution, idle, holders.held, sharing, end)
        ending = asyncio.create_task(end.run(attempts.supervised), name="end of the node")
        closing.callback(ending.cancel)
        watchdog = Watchdog(holders, reader, attribution, idle)
        closing.push_async_callback(watchdog.close)
        channels = ChannelTable(attempts.access, name)
        telemetry.listeners += [freeing.look, watchdog.look, UnusedSessions(holders, channels).look]
        gpus.reader.set_result(reader)
        if command := parse_command(options.on_foreign):
            notifier = ForeignProcessNotifier(command, name, attribution.is_foreign)
            closing.push_async_callback(notifier.close)
            telemetry.listeners.append(notifier.look)
        for signum, going in ((signal.SIGUSR1, True), (signal.SIGUSR2, False)):  # a shutdown begins; it is called off
            asyncio.get_running_loop().add_signal_handler(signum, telemetry.note_shutdown, going)
        await telemetry.inventory()  # measures the idle GPUs before anything starts on them
        proof = Credentials(options.home, name, node_dir)
        tidying = asyncio.create_task(RetentionTask(node_dir, checkpoint_root, exchange, options.keep).run(places))
        closing.callback(tidying.cancel)
        link = MasterLink(
            find_master, node, attempts, attempts.access, telemetry, cluster_file, exchange, channels, proof
        )
        # Earlier changes are in the statuses that the link sends first; later ones are reported.
        listeners.append(link.report)
        gpus.freeing.set_result(freeing)
        _announce(node_dir / "agent.json", name, reader.kind)
        closing.callback((node_dir / "agent.json").unlink, missing_ok=True)
        facts = (name, os.getpid(), len(reader.gpus), reader.kind, node.cgroup or "none")
        held = (limits.cpus_are(), limits.memory_is())
        log.info("event=serving node=%s pid=%d gpus=%d backend=%s cgroup=%s cpus=%s mem=%s", *facts, *held)
        if options.lent is not None:
            return await _until_given_back(
                Pilot(options.lent, node_dir, telemetry, attempts.statuses, lambda: attempts.access.read_at), link
            )
        return await link.run()


async def _until_given_back(pilot: Pilot, link: MasterLink) -> list[agent_pb2.AttemptStatus]:
    """Keep the node attached until it has left; return the statuses of what is left on it then.

    The first signal asks it to leave, and a second Ctrl-C ends the agent at once.
    """
    loop, serving = asyncio.get_running_loop(), asyncio.current_task()
    assert serving is not None

    def interrupted() -> None:
        pilot.ask()
        loop.add_signal_handler(signal.SIGINT, serving.cancel)

    loop.add_signal_handler(signal.SIGTERM, pilot.ask)
    loop.add_signal_handler(signal.SIGINT, interrupted)
    attached = asyncio.create_task(link.run(), name="link to the master")
    try:
        return await pilot.run()
    finally:
        attached.cancel()
        await asyncio.gather(attached, return_exceptions=True)


def _offered(options: AgentOptions, backend: GpuBackend, fake_dir: Path | None, claims: AsyncExitStack) -> GpuBackend:
    """Return `backend` with the GPUs that the options or the lender name, claimed for this agent. Raises ValueError."""
    step = None if options.lent is None else options.lent.step
    if options.only_gpus:
        uuids = chosen.choose(backend.gpus(), options.only_gpus)
    elif step is not None:
        uuids = frozenset(step.choose(backend.gpus()))
    else:
        return backend
    claims.enter_context(chosen.claimed(uuids, fake_dir))
    return chosen.ChosenGpus(backend, uuids)


def _said_end(options: AgentOptions) -> agent_pb2.Loan | None:
    return None if options.until is None else agent_pb2.Loan(until=options.until, owner=options.owner)


def _describe(options: AgentOptions, name: str, checkpoint_root: Path, network: Network) -> NodeDescription:
    """Describe this machine as the options say. Raises OSError if the checkpoint root is not writable."""
    address = address_of(network.interface) if network.interface else ""
    return replace(
        describe(name, options.cpus, options.mem_bytes, checkpoint_root, address),
        share_with_foreign=options.share_with_foreign,
        pool=options.pool,
        labels=dict(options.labels),
        taints=options.taints,
    )


class _GpuAnswers:
    """Answers attempts about the node's GPUs, once their reader exists; attempts may ask before and wait."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.reader: asyncio.Future[GpuReader] = loop.create_future()
        self.freeing: asyncio.Future[Freeing] = loop.create_future()

    async def gone(self, uuids: Sequence[str]) -> str:
        return await (await asyncio.shield(self.reader)).gone(uuids)

    async def prove_free(self, key: AttemptKey, allocation: tuple[GpuAllocation, ...]) -> Mapping[str, str]:
        return await (await asyncio.shield(self.freeing)).prove_free(key, allocation)


def _announce(path: Path, name: str, gpu_backend: str) -> None:
    """Publish for the node's tools that the agent serves, and as which process."""
    me = Identity.of(os.getpid())
    assert me is not None
    facts = {"node": name, "started_at": time.time(), "gpu_backend": gpu_backend}
    with _logged_if_full("agent-not-announced"):
        write_json(path, asdict(me) | facts | {"cpu_limits": limits.cpus_are(), "mem_limits": limits.memory_is()})
