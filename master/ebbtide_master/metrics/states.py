"""Reads counts and states of the cluster for each request of the metrics."""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ebbtide_core.cluster import Cluster
from ebbtide_core.model.types import FINISHED, JobState
from ebbtide_core.views.states import GPU_STATES, NODE_STATES, state_of_gpu, state_of_node
from prometheus_client.core import GaugeMetricFamily, Metric

UNFINISHED = tuple(state for state in JobState if state not in FINISHED)


@dataclass(frozen=True, slots=True)
class ClusterCounts:
    """The state of the cluster at one time; counts are by pool and state."""

    jobs: Mapping[tuple[str, str], int]
    oldest_wait_s: Mapping[str, float]
    gpus: Mapping[tuple[str, str], int]
    nodes: Mapping[tuple[str, str], int]
    nodes_up: Mapping[str, bool]
    certificates: Mapping[tuple[str, str], float]
    epoch: int
    version: str
    free_bytes: int


def look(
    cluster: Cluster, now: float, folder: Path, certificates: Mapping[tuple[str, str], float], version: str
) -> ClusterCounts:
    """Return the state of the cluster at ``now``; ``folder`` is the directory of the journal.

    Of ``certificates``, by kind and node, only those of nodes that are there are told.
    """
    state, disk = cluster.state, os.statvfs(folder)
    pools = list(state.pools)
    jobs = Counter({(pool, each.value.lower()): 0 for pool in pools for each in UNFINISHED})
    waits = dict.fromkeys(pools, 0.0)
    for job in state.unfinished.values():
        jobs[job.pool, job.state.value.lower()] += 1
        if job.state is JobState.PENDING and job.held_by is None:
            waits[job.pool] = max(waits[job.pool], now - job.submitted)
    gpus = Counter({(pool, each): 0 for pool in pools for each in GPU_STATES})
    nodes = Counter({(pool, each): 0 for pool in pools for each in NODE_STATES})
    for node in state.nodes.values():
        nodes[node.facts.pool, state_of_node(node, now)] += 1
        gpus.update((node.facts.pool, state_of_gpu(node, gpu)) for gpu in node.gpus)
    nodes_up: dict[str, bool] = {node.id: node.connected for node in state.nodes.values() if not node.has_ended(now)}
    return ClusterCounts(
        jobs=jobs,
        oldest_wait_s=waits,
        gpus=gpus,
        nodes=nodes,
        nodes_up=nodes_up,
        certificates={key: ends for key, ends in certificates.items() if not key[1] or key[1] in nodes_up},
        epoch=state.epoch,
        version=version,
        free_bytes=disk.f_bavail * disk.f_frsize,
    )


def families(seen: ClusterCounts) -> Iterator[Metric]:
    """Yield the metrics for Prometheus."""
    yield _gauge("ebbtide_jobs", "Unfinished jobs", ("pool", "state"), seen.jobs.items())
    waits = [((pool,), seconds) for pool, seconds in seen.oldest_wait_s.items()]
    yield _gauge("ebbtide_oldest_wait_seconds", "Of the pending job that has waited longest", ("pool",), waits)
    yield _gauge("ebbtide_gpus", "GPUs", ("pool", "state"), seen.gpus.items())
    yield _gauge("ebbtide_nodes", "Nodes", ("pool", "state"), seen.nodes.items())
    up = [((node,), float(connected)) for node, connected in seen.nodes_up.items()]
    yield _gauge("ebbtide_node_up", "Whether the node is connected", ("node",), up)
    what = "When a certificate ends, in Unix seconds; of: authority, master or node"
    yield _gauge("ebbtide_certificate_end_seconds", what, ("of", "node"), seen.certificates.items())
    yield _gauge("ebbtide_store_free_bytes", "Room on the journal's disk", (), [((), seen.free_bytes)])
    info = [((seen.version,), seen.epoch)]
    yield _gauge("ebbtide_master_epoch", "How often a master has started on this journal", ("version",), info)


def _gauge(
    name: str, what: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, what, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family
