"""Shows the cluster as a whole, and stops all its jobs."""

from collections.abc import AsyncIterator
from typing import Any

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.model.types import JobId
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.views import pool_messages
from ebbtide_master.store.journal import Store


class ClusterService:
    """Shows the state of the cluster, and empties it."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._clock = master.clock
        self._changes = master.changes
        self._sessions = master.sessions
        self._about = master.about
        self._front = master.front

    async def ShowCluster(self, request: client_pb2.ShowClusterRequest, context: Any) -> client_pb2.ClusterInfo:
        """Show which cluster this is, and its state."""

        def info(cluster: Cluster) -> client_pb2.ClusterInfo:
            message = client_pb2.ClusterInfo()
            message.CopyFrom(self._about)
            message.recovering = bool(cluster.state.awaited or cluster.state.unheard)
            message.jobs_unfinished = len(cluster.state.unfinished)
            message.now = self._clock.now()
            message.pools.extend(pool_messages(cluster.state))
            if self._front is not None and (ends := self._front.certificate_ends()) is not None:
                message.certificate_ends = ends
            return message

        return await self._loop.ask(info)

    async def Quiesce(
        self, request: client_pb2.QuiesceRequest, context: Any
    ) -> AsyncIterator[client_pb2.QuiesceProgress]:
        """Stop all jobs, and send the number of attempts that are left, until only silent nodes have any."""
        with self._changes.watch() as watcher:
            await self._loop.tell(lambda _: [e.Quiesced(request.kill)], lambda _: None)
            while True:
                left, reachable = await self._loop.ask(self._attempts_left)
                yield client_pb2.QuiesceProgress(attempts_left=left)
                if not reachable:
                    return
                await watcher.wait_changed()

    def _attempts_left(self, cluster: Cluster) -> tuple[int, int]:
        """Return how many attempts have GPUs that are not free yet, and how many of them have no silent node."""
        held, silent = set[JobId](), set[JobId]()
        for node in cluster.state.nodes.values():
            held |= node.attempts
            silent |= set() if self._sessions.connected(node.id) else node.attempts
        return len(held), len(held - silent)


def cluster_facts(store: Store, epoch: int, version: str, policy_name: str) -> client_pb2.ClusterInfo:
    """Return what does not change about a cluster while its master runs."""
    return client_pb2.ClusterInfo(cluster_id=store.cluster_id, epoch=epoch, version=version, policy=policy_name)
