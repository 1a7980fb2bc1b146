"""Carries out the master's orders for the attempts of one node."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.accounts.accounts import BY_DEFAULT, AllowedAccounts
from ebbtide_agent.attempts.access import AttemptAccess
from ebbtide_agent.attempts.holders import Holders
from ebbtide_agent.attempts.launching import Launching
from ebbtide_agent.attempts.orphans import Orphans
from ebbtide_agent.attempts.places import NodeDirectories
from ebbtide_agent.attempts.registry import Registry
from ebbtide_agent.attempts.release import Gpus
from ebbtide_agent.attempts.spawner import Spawner
from ebbtide_agent.attempts.standbys import Standbys
from ebbtide_agent.attempts.supervised import Supervised
from ebbtide_agent.files.exchange import Exchange
from ebbtide_agent.files.snapshots import SnapshotCache
from ebbtide_agent.mps.sharing import GpuSharing
from ebbtide_agent.network import ANY, Network

log = logging.getLogger(__name__)


def _ignore(status: agent_pb2.AttemptStatus) -> None:
    pass


class Attempts:
    """Assembles the parts that launch, track and report attempts, and carries out the master's orders with them.

    `on_change` is called on the event loop with the whole status after every change. `places` must name the cluster
    before the first launch. `warm` is how many standby processes may be kept; none starts before an attempt has made
    steps for `settled_s`. `sharing` knows how attempts share a GPU.
    """

    def __init__(
        self,
        places: NodeDirectories,
        gpus: Gpus,
        exchange: Exchange,
        on_change: Callable[[agent_pb2.AttemptStatus], None] = _ignore,
        fake_gpu_dir: Path | None = None,
        network: Network = ANY,
        warm: int = 0,
        settled_s: float = 0.0,
        sharing: GpuSharing | None = None,
        allowed: AllowedAccounts = BY_DEFAULT,
    ) -> None:
        self._places = places
        self._sharing = sharing or GpuSharing(places.node_dir)
        self._spawner = Spawner()
        self._standbys = Standbys(self._spawner, warm, settled_s=settled_s)
        self._orphans = Orphans(places.node_dir, gpus, on_change)
        self._snapshots = SnapshotCache(places.node_dir, exchange)
        self._registry = Registry(places, self._orphans, self._standbys, self._sharing, gpus, on_change)
        self._launching = Launching(
            places,
            self._registry,
            self._orphans,
            self._spawner,
            self._standbys,
            self._sharing,
            exchange,
            self._snapshots,
            on_change,
            fake_gpu_dir,
            network,
            allowed,
        )
        self.holders = Holders(places, self._registry, self._orphans)
        self.access = AttemptAccess(places, self._registry, self._snapshots)
        self._tidying: asyncio.Task[NoReturn] | None = None

    async def start(self) -> None:
        """Get ready to launch, and adopt every attempt that is on disk. Raises OSError or TimeoutError."""
        self._places.make()
        await self._spawner.start()
        await self._sharing.start(self._registry.fail)
        await self._registry.adopt_all()
        self._sharing.watch()
        tidying = self._snapshots.tidy(self._jobs_here, lambda: self._places.workdirs_of_accounts)
        self._tidying = asyncio.create_task(tidying, name="what snapshots have left")

    async def close(self) -> None:
        """Stop all parts; running attempts go on."""
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.gather(self._tidying, return_exceptions=True)
        await self._launching.close()
        await self._registry.close()
        await self._orphans.close()
        await self._sharing.close()
        await self._standbys.close()
        await self._spawner.close()

    def leave_cluster(self) -> None:
        """Set aside what jobs of the node's cluster have left, because another cluster's jobs have the same ids.

        None of its attempts may be here any more. Raises OSError.
        """
        if (aside := self._places.set_aside()) is not None:
            log.warning("event=cluster-left cluster=%s files=%s", self._places.cluster_id, aside)

    def join(self, cluster_id: str) -> None:
        """Keep the checkpoints of jobs that are launched from now on under this cluster's id."""
        self._places.cluster_id = cluster_id

    async def launch(self, order: agent_pb2.Launch) -> None:
        """Start the attempt. If it was started before, only report its status again."""
        await self._launching.launch(order)

    async def stop(self, job_id: str, attempt: int, grace_s: float, goes_on: bool = False) -> None:
        """Ask the attempt to end within the grace period; a second request can only shorten the period.

        If the job `goes_on` later, its next process may do its imports while this one saves.
        """
        known = self._registry.attempts.get((job_id, attempt))
        if known is not None:
            if goes_on and not known.is_over:
                self._standbys.prepare(known)
            log.info("event=stop job=%s attempt=%d grace_s=%g", job_id, attempt, grace_s)
            known.stop(grace_s)
        elif self._orphans.stop((job_id, attempt), grace_s):
            log.info("event=stop-orphan job=%s attempt=%d grace_s=%g", job_id, attempt, grace_s)
        else:
            await self._launching.cancel((job_id, attempt))

    async def swap(self, job_id: str, attempt: int, grace_s: float, swaps: int) -> None:
        """Ask the attempt to swap its GPU memory to host memory, or else to end within the grace period.

        `swaps` is how often it was swapped out before. If that number is wrong, the order is old and has no effect.
        """
        known = self._registry.attempts.get((job_id, attempt))
        if known is not None:
            log.info("event=swap job=%s attempt=%d grace_s=%g swaps=%d", job_id, attempt, grace_s, swaps)
            known.swap(grace_s, swaps)
        else:
            await self.stop(job_id, attempt, grace_s)

    async def resume(self, job_id: str, attempt: int, swaps: int) -> None:
        """Ask the attempt, which was swapped out `swaps` times, to return to its GPU."""
        known = self._registry.attempts.get((job_id, attempt))
        if known is not None:
            log.info("event=resume job=%s attempt=%d swaps=%d", job_id, attempt, swaps)
            known.resume(swaps)

    def supervised(self) -> list[Supervised]:
        """Return the attempts that were launched or adopted and not forgotten."""
        return list(self._registry.attempts.values())

    def renew(self, at: float) -> None:
        """Renew all leases: the master has acknowledged what was sent at that time (CLOCK_BOOTTIME)."""
        self._registry.renew(at)

    async def forget(self, job_id: str, attempt: int) -> None:
        """Drop everything but the log of an attempt that is over. Raises OSError."""
        self._registry.forget((job_id, attempt))

    def statuses(self) -> list[agent_pb2.AttemptStatus]:
        """Return the statuses of all attempts that are not forgotten, including those that wait for something."""
        phase, waiting = agent_pb2.ATTEMPT_PHASE_LAUNCHING, self._launching.waiting()
        launching = [agent_pb2.AttemptStatus(job_id=job, attempt=number, phase=phase) for job, number in waiting]
        return launching + self.holders.statuses()

    def _jobs_here(self) -> frozenset[str]:
        return frozenset(job for job, _ in (*self._registry.attempts, *self._launching.waiting()))
