"""The master process: put together, started, stopped."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from ebbtide_core.cluster import Cluster, InvariantError
from ebbtide_core.events import Event
from ebbtide_core.job import InvalidTransitionError
from ebbtide_core.policies.registry import PolicyError, create_policy
from ebbtide_core.settings import DEFAULT_POLICY, DEFAULT_POOL, PoolSettings, Settings

from ebbtide_master.config.file import Config, read_config
from ebbtide_master.config.table import ConfigError
from ebbtide_master.endpoint import published
from ebbtide_master.notify.notifier import Notifier
from ebbtide_master.service import PortError, serving
from ebbtide_master.store import Store, StoreError, StoreInUseError

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
CONFIG_NAME: Final = "ebbtide.toml"
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_BROKEN: Final = 70

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MasterOptions:
    """How a master is started. ``port`` 0 is any free one; it is recorded in ``home``.

    ``config`` is its configuration file; None: the one in ``home``, if there is one. ``policy`` and its options are
    those of the pool `DEFAULT_POOL`; None: what the file says of it, else the default.
    """

    home: Path
    host: str = "127.0.0.1"
    port: int = 0
    policy: str | None = None
    policy_options: Mapping[str, str] = field(default_factory=dict)
    config: Path | None = None


class StartError(Exception):
    """The master cannot start; ``exit_code`` says what kind of reason the message gives."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def run(options: MasterOptions) -> int:
    """Serve until SIGTERM or SIGINT; the process's exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    try:
        cluster, store, config = _open(options)
        return asyncio.run(_serve(options, cluster, store, config))
    except StartError as error:
        sys.stderr.write(f"ebb: {error}\n")
        return error.exit_code


def _open(options: MasterOptions) -> tuple[Cluster, Store, Config]:
    """Everything that can be wrong before anything runs."""
    if options.host not in LOOPBACK_HOSTS:
        message = f"--host {options.host}: only loopback is served without TLS and identities"
        raise StartError(message, EXIT_USAGE)
    config = _read_config(options)
    settings = _settings(options, config)
    default = settings.pools[DEFAULT_POOL]
    try:
        policy = create_policy(default.policy, default.options)
        return Cluster(policy, settings=settings), Store(options.home / "journal.db"), config
    except PolicyError as error:
        raise StartError(str(error), EXIT_USAGE) from None
    except (StoreInUseError, StoreError) as error:
        raise StartError(str(error), EXIT_FAILED) from None


def _settings(options: MasterOptions, config: Config) -> Settings:
    """What the file says, and how the pool `DEFAULT_POOL` is scheduled if that was said on the command line."""
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


async def _serve(options: MasterOptions, cluster: Cluster, store: Store, config: Config) -> int:
    """Recover, serve until told to stop, and leave the journal closed."""
    try:
        notifier = Notifier(cluster, store, config.notify)
        _recover(cluster, store, notifier.replayed)
        return await _run_server(options, cluster, store, config, notifier)
    except StoreError as error:
        log.critical("journal=failed %s", error)
        return EXIT_BROKEN
    except (InvariantError, InvalidTransitionError) as error:
        log.critical("books=wrong", exc_info=error)
        return EXIT_BROKEN
    finally:
        store.close()


def _recover(cluster: Cluster, store: Store, seen: Callable[[int, float, Event], None] | None = None) -> None:
    """Fold the journal into the cluster. No policy runs, and nothing is asked of the world.

    ``seen`` is told of each line once it was applied: its number, its time, and the event.
    """
    count = 0
    for line in store.events():
        try:
            cluster.replay(line.event, line.time)
        except (InvalidTransitionError, LookupError) as error:
            what = f"line {line.sequence} of the journal, {type(line.event).__name__}"
            raise StoreError(f"{what}, does not follow from those before it: {error}") from error
        if seen is not None:
            seen(line.sequence, line.time, line.event)
        count += 1
    log.info("journal=%s events=%d jobs=%d", store.cluster_id, count, len(cluster.state.jobs))


async def _run_server(
    options: MasterOptions, cluster: Cluster, store: Store, config: Config, notifier: Notifier
) -> int:
    policy = cluster.state.settings.pools[DEFAULT_POOL].policy
    try:
        async with serving(cluster, store, options.host, options.port, policy, config, notifier) as service:
            stopped = _stop_signals()
            with published(options.home, options.host, service.port, store.cluster_id):
                log.info("serving=%s:%d policy=%s epoch=%d", options.host, service.port, policy, service.epoch)
                return await _until_stopped(stopped, service.consumer)
    except PortError as error:
        raise StartError(str(error), EXIT_FAILED) from None


def _stop_signals() -> asyncio.Event:
    """Is set by SIGTERM and SIGINT from now on."""
    stopped = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopped.set)
    return stopped


async def _until_stopped(stopped: asyncio.Event, consumer: asyncio.Task[None]) -> int:
    """Wait for a signal (exit 0) or for the consumer to fail (its error is raised)."""
    waiter = asyncio.create_task(stopped.wait())
    await asyncio.wait([waiter, consumer], return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()
    if consumer.done():
        consumer.result()
    log.info("stopping")
    return 0
