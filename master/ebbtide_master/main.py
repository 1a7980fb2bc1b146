"""Starts the master process, lets it serve, and stops it."""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Otherwise gRPC writes a line for every handshake that fails, and any stranger could fill the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

from ebbtide_core.cluster import Cluster, InvariantError
from ebbtide_core.events import Event
from ebbtide_core.job.job import InvalidTransitionError
from ebbtide_core.model import limits
from ebbtide_core.model.settings import DEFAULT_POLICY, DEFAULT_POOL, PoolSettings, Settings
from ebbtide_core.policies.registry import PolicyError, create_policy
from ebbtide_core.views.ledger import Ledger

from ebbtide_master.api.reloading import ReloadService
from ebbtide_master.backup.backing_up import backing_up
from ebbtide_master.backup.backups import advice
from ebbtide_master.calls.edge import GRPC_LOG, is_worth_a_line
from ebbtide_master.calls.gate import Gate, TokenGate
from ebbtide_master.config.database import UrlError, has_password
from ebbtide_master.config.file import CONFIG_NAME, Config, read_config
from ebbtide_master.config.table import ConfigError
from ebbtide_master.endpoint import published
from ebbtide_master.identity.identities import Identities
from ebbtide_master.identity.local import provide_token
from ebbtide_master.identity.running_as import accounts_of
from ebbtide_master.notify.notifier import Notifier
from ebbtide_master.service import PortError, Service, serving
from ebbtide_master.store.journal import Store, StoreError, StoreInUseError
from ebbtide_master.store.opening import open_store
from ebbtide_master.store.recovery import fold, recovered

if TYPE_CHECKING:
    from ebbtide_master.tls.listeners import Listeners

LOOPBACK: Final = "127.0.0.1"
COLLECTED: Final = (2_000, 2, 10_000)
"""Thresholds of Python's garbage collector: new objects until the young ones are searched for cycles, then how much
more rarely older ones are. Each job is some hundred objects that stay, and a search through those of 10,000 jobs stops
the master for a tenth of a second. Many small searches of young objects take as long as few large ones, but none of
them makes a scheduling pass wait for 15 ms."""
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_BROKEN: Final = 70
LAST_WORDS_S: Final = 0.5
WRONG_PAUSE_S: Final = 2.0
"""Seconds after which a standby looks again whether its configuration is right."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MasterOptions:
    """How a master is started. It serves its own account on a socket in ``home``, and other accounts over TLS.

    A ``host``, ``port`` or ``agent_port`` means that other accounts are served: an authority is made if there is none.
    Their defaults for None are loopback, the port that `ebb master init` remembered, and the port after it. Port 0 is
    any free port; both ports are published.

    ``config`` is the configuration file; None means the one in ``home``, if it exists. ``policy`` and its options are
    those of the pool `DEFAULT_POOL`; None means what the file says, else the default. ``metrics_port`` None means what
    the file says, else no metrics; 0 is any free port. ``store`` is the URL of the database with the journal; empty
    means what the file says, else a file in ``home``.
    """

    home: Path
    host: str | None = None
    port: int | None = None
    agent_port: int | None = None
    policy: str | None = None
    policy_options: Mapping[str, str] = field(default_factory=dict)
    config: Path | None = None
    store: str = ""
    metrics_port: int | None = None


class StartError(Exception):
    """The master cannot start: the message gives the reason, and ``exit_code`` is the process's exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run(options: MasterOptions) -> int:
    """Serve until SIGTERM or SIGINT, and return the process's exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger(GRPC_LOG).addFilter(is_worth_a_line)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, _leave)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # a reload has to wait until the master serves
    _allow_open_files()
    gc.set_threshold(*COLLECTED)
    try:
        store, config = _open(options)
        return asyncio.run(_serve(options, store, config))
    except StartError as error:
        sys.stderr.write(f"ebb: {error}\n")
        return error.exit_code


def _leave(signum: int, frame: object) -> None:
    """Exit at a signal before the asyncio loop handles signals: a master may wait for long until it leads."""
    raise SystemExit(0)


def _allow_open_files() -> None:
    """Raise the limit of open files to `limits.OPEN_FILES`, or to the hard limit: each connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, limits.OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _open(options: MasterOptions) -> tuple[Store, Config]:
    """Read the configuration and open the journal, to find all that can be wrong before anything runs.

    A standby may wait for days until the journal is open, so the configuration is read again then. While that is wrong,
    the standby lets others lead, and waits on.
    """
    config = _checked(options)
    wants_ports = any(said is not None for said in (options.host, options.port, options.agent_port))
    if wants_ports and not _speaks_tls(options) and config.journal.store:
        message = (
            "masters on one database need the same authority: 'ebb master init' on one machine, "
            f"and its ca.pem and ca.key in {options.home / 'tls'} on the others"
        )
        raise StartError(message, EXIT_USAGE)
    while True:
        store = _open_store(options, config)
        try:
            current = _checked(options)
            break
        except StartError:
            store.close()
            _wait_until_right(options)
    try:
        if current.journal.store != config.journal.store:
            where = f"{options.config or options.home / CONFIG_NAME}: journal.store"
            raise StartError(f"{where}: was changed while this master waited: start it again", EXIT_FAILED)
        if wants_ports and not _speaks_tls(options):
            _make_authority(options.home)
        return store, current
    except StartError:
        store.close()
        raise


def _open_store(options: MasterOptions, config: Config) -> Store:
    try:
        return open_store(config.journal.store, options.home)
    except StoreInUseError as error:
        raise StartError(str(error), EXIT_FAILED) from None
    except StoreError as error:
        raise StartError(f"{error}{advice(options.home)}", EXIT_FAILED) from None


def _wait_until_right(options: MasterOptions) -> None:
    """Wait until the configuration is right, and log what is wrong with it; others may lead meanwhile.

    The journal stays closed, because each lead counts the epoch up.
    """
    said = ""
    while True:
        try:
            _checked(options)
            return
        except StartError as error:
            if str(error) != said:
                said = str(error)
                log.error("configuration=wrong leads=no %s", said)
        time.sleep(WRONG_PAUSE_S)


def _checked(options: MasterOptions) -> Config:
    """Read the configuration, and make a cluster with it to try it. Raises `StartError`."""
    config = _read(options)
    _new_cluster(config)
    return config


def _new_cluster(config: Config) -> Cluster:
    default = config.settings.pools[DEFAULT_POOL]
    try:
        return Cluster(create_policy(default.policy, default.options), settings=config.settings)
    except PolicyError as error:
        raise StartError(str(error), EXIT_USAGE) from None


def _make_authority(home: Path) -> None:
    from ebbtide_master.tls.folder import TlsFolder

    try:
        TlsFolder.of(home).create_authority(time.time())
    except OSError as error:
        raise StartError(f"no authority for certificates could be made: {error}", EXIT_FAILED) from None


def _read(options: MasterOptions) -> Config:
    """Read the configuration, in which the command line counts before the file. Raises `StartError`."""
    config = _read_config(options)
    journal = replace(config.journal, store=_url(options, config))
    return replace(config, settings=_settings(options, config), journal=journal)


def _url(options: MasterOptions, config: Config) -> str:
    """Return the URL of the database with the journal, or an empty string if the journal is a file."""
    if not options.store:
        return config.journal.store
    try:
        secret = has_password(options.store)
    except UrlError as error:
        raise StartError(f"--store: {error}", EXIT_USAGE) from None
    if secret:
        where = f"[journal] store of {options.home / CONFIG_NAME} (mode 0600)"
        message = f"--store: others can see the password on a command line: put it into PGPASSFILE, or {where}"
        raise StartError(message, EXIT_USAGE)
    return options.store


def _settings(options: MasterOptions, config: Config) -> Settings:
    """Return the settings of the file, with the policy for the pool `DEFAULT_POOL` from the command line, if given."""
    if options.policy is None and not options.policy_options:
        return config.settings
    if config.names_default_pool:
        option = "--policy" if options.policy is not None else "--policy-option"
        where = options.config or options.home / CONFIG_NAME
        raise StartError(f"{option}: {where} has [pools.{DEFAULT_POOL}]: say it there", EXIT_USAGE)
    default = PoolSettings(policy=options.policy or DEFAULT_POLICY, options=options.policy_options)
    return replace(config.settings, pools={**config.settings.pools, DEFAULT_POOL: default})


def _read_config(options: MasterOptions) -> Config:
    path = options.config or options.home / CONFIG_NAME
    if options.config is None and not path.exists():
        return Config()
    try:
        return read_config(path)
    except ConfigError as error:
        raise StartError(str(error), EXIT_USAGE) from None


def _reread(options: MasterOptions) -> Config:
    """Read the configuration again. Raises `ConfigError` for what a start would refuse."""
    try:
        return _read(options)
    except StartError as error:
        raise ConfigError(str(error)) from None


async def _serve(options: MasterOptions, store: Store, config: Config) -> int:
    """Recover the cluster, serve until a signal, close the journal, and return the exit code."""

    def attempt() -> tuple[Cluster, Notifier, Ledger]:
        cluster = _new_cluster(config)
        notifier, ledger = Notifier(cluster, store, config.notify), Ledger(cluster)
        _recover(cluster, store, notifier.replayed)
        return cluster, notifier, ledger

    try:
        try:
            cluster, notifier, ledger = recovered(store, attempt)
            gc.freeze()  # what was recovered stays in memory
        except StoreError as error:
            raise StoreError(f"{error}{advice(options.home)}") from error
        identities = Identities(store.vault)
        await provide_token(identities, options.home, time.time())
        return await _run_server(options, cluster, store, config, notifier, ledger, identities)
    except StoreError as error:
        log.critical("journal=failed %s", error)
        return EXIT_BROKEN
    except (InvariantError, InvalidTransitionError) as error:
        log.critical("books=wrong", exc_info=error)
        return EXIT_BROKEN
    finally:
        await _last_words()
        store.close()


async def _last_words() -> None:
    """Wait for calls that are still being answered, because gRPC logs a traceback for each that is cut off."""
    if calls := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(calls, timeout=LAST_WORDS_S)


def _recover(cluster: Cluster, store: Store, seen: Callable[[int, float, Event], None]) -> None:
    """Fold the journal into the cluster; ``seen`` is called with number, time and event of each applied line."""
    count = fold(cluster, store, lambda line: seen(line.sequence, line.time, line.event))
    log.info("journal=%s events=%d jobs=%d", store.cluster_id, count, len(cluster.state.jobs))


async def _run_server(
    options: MasterOptions,
    cluster: Cluster,
    store: Store,
    config: Config,
    notifier: Notifier,
    ledger: Ledger,
    identities: Identities,
) -> int:
    gate: Gate = TokenGate(identities, cluster, time.time)
    listeners = _listeners(options, store)
    if listeners is not None:
        from ebbtide_master.calls.certificates import CertificateGate

        gate = CertificateGate(gate, listeners.enrolment)
    policy = cluster.state.settings.pools[DEFAULT_POOL].policy
    try:
        reread = partial(_reread, options)
        async with serving(
            cluster,
            store,
            options.home,
            policy,
            gate,
            config,
            notifier,
            ledger,
            reread,
            listeners,
            accounts_of(identities, personal=listeners is None),
        ) as service:
            stopped = _stop_signals()
            _reload_signal(service.reloading)
            ports: dict[str, str | int] = {}
            if listeners is not None:
                ports = {"host": _from_here(listeners.host), "port": service.port, "agent_port": service.agent_port}
            with published(options.home, store.cluster_id, ports):
                where = f"{listeners.host}:{service.port}" if listeners is not None else options.home
                log.info("serving=%s policy=%s epoch=%d", where, policy, service.epoch)
                journal = replace(config.journal, backup_every_s=0.0) if config.journal.store else config.journal
                async with backing_up(store.folder, journal), _metrics(options, config, service, store, listeners):
                    return await _until_stopped(stopped, service.consumer, store.lost)
    except PortError as error:
        raise StartError(str(error), EXIT_FAILED) from None


@asynccontextmanager
async def _metrics(
    options: MasterOptions, config: Config, service: Service, store: Store, listeners: "Listeners | None"
) -> AsyncIterator[None]:
    """Serve metrics for as long as the block lasts, if a port for them is configured."""
    port = config.metrics_port if options.metrics_port is None else options.metrics_port
    if port is None:
        yield
        return
    from ebbtide_master.metrics.exporter import HOST, MetricsPortError, exported

    try:
        async with exported(service.loop, service.context.clock, store, listeners, port) as bound:
            log.info("metrics=http://%s:%d/metrics", HOST, bound)
            yield
    except MetricsPortError as error:
        raise StartError(str(error), EXIT_FAILED) from None


def _from_here(host: str) -> str:
    """Return the address at which this machine reaches a master that listens on ``host``."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _speaks_tls(options: MasterOptions) -> bool:
    return (options.home / "tls" / "ca.pem").exists()


def _listeners(options: MasterOptions, store: Store) -> "Listeners | None":
    """Open the TLS listeners; None without an authority."""
    if not _speaks_tls(options):
        return None
    from ebbtide_master.tls.authority import CertificateError
    from ebbtide_master.tls.listeners import open_listeners

    try:
        host = LOOPBACK if options.host is None else options.host
        return open_listeners(options.home, host, options.port, options.agent_port, store.vault, time.time)
    except (CertificateError, OSError) as error:
        raise StartError(f"the certificates of this master cannot be used: {error}", EXIT_FAILED) from None


def _stop_signals() -> asyncio.Event:
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    return stopped


def _reload_signal(reloading: ReloadService) -> None:
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def reload() -> None:
        task = loop.create_task(reloading.on_signal())
        tasks.add(task)  # the asyncio loop alone would not keep the task
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGHUP, reload)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # one that was asked for before follows now


async def _until_stopped(stopped: asyncio.Event, consumer: asyncio.Task[None], lost: Future[None]) -> int:
    """Wait for a signal and return exit code 0; raise the error if the consumer or the journal fails before."""
    waiter, failed = asyncio.create_task(stopped.wait()), asyncio.wrap_future(lost)
    ends: list[asyncio.Future[Any]] = [waiter, consumer, failed]
    for end in ends:  # if a second one fails, its error is ignored
        end.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    for task in (consumer, failed):
        if task.done():
            task.result()
    failed.cancel()
    log.info("stopping")
    return 0
