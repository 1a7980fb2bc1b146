"""Serves the page that Prometheus reads, on loopback only; another program of this machine has to pass it on."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from ebbtide_core.cluster import Cluster
from ebbtide_protos.version import VERSION
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ebbtide_master.clock import Clock
from ebbtide_master.loop import MasterLoop
from ebbtide_master.metrics.meter import EventCounters
from ebbtide_master.metrics.states import ClusterCounts, families, look
from ebbtide_master.store.journal import Store

if TYPE_CHECKING:
    from ebbtide_master.tls.listeners import Listeners

HOST: Final = "127.0.0.1"
ANSWER_S: Final = 10.0


class MetricsPortError(Exception):
    """The port for metrics cannot be listened on."""


class _States(Collector):
    """Asks the master's loop for the counts, from the thread of the page's reader."""

    def __init__(self, ask: Callable[[], ClusterCounts]) -> None:
        self._ask = ask

    def collect(self) -> Iterator[Metric]:
        return families(self._ask())

    def describe(self) -> Iterator[Metric]:
        return iter(())  # otherwise the registry would call `collect` when this is registered


@asynccontextmanager
async def exported(
    loop: MasterLoop, clock: Clock, store: Store, listeners: "Listeners | None", port: int
) -> AsyncIterator[int]:
    """Count what ``loop`` does, and serve the counts and the cluster's state for as long as the block lasts.

    Gives the port. Raises `MetricsPortError`.
    """
    running, registry, release = asyncio.get_running_loop(), CollectorRegistry(), VERSION

    def seen(cluster: Cluster) -> ClusterCounts:
        return look(cluster, clock.now(), store.folder, _certificates(listeners), release)

    def ask() -> ClusterCounts:
        return asyncio.run_coroutine_threadsafe(loop.ask(seen), running).result(ANSWER_S)

    loop.observe(await loop.ask(lambda cluster: EventCounters(cluster, registry)))
    registry.register(_States(ask))
    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        raise MetricsPortError(f"--metrics-port {port}: {error.strerror}") from None
    try:
        yield server.server_port
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


def _certificates(listeners: "Listeners | None") -> dict[tuple[str, str], float]:
    """Return when each certificate ends, by kind and node."""
    if listeners is None:
        return {}
    ends = {("authority", ""): listeners.enrolment.authority.ends}
    if (own := listeners.certificate_ends()) is not None:
        ends["master", ""] = own
    return ends | {("node", node): end for node, end in listeners.enrolment.members().items()}
