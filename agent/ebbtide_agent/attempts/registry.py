"""Keeps the attempts that this agent has launched or adopted from an earlier agent."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from ebbtide_machine.threads import on_daemon_thread
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.attempts import recovery, survivors
from ebbtide_agent.attempts.orphans import Orphans
from ebbtide_agent.attempts.places import NodeDirectories
from ebbtide_agent.attempts.release import Gpus
from ebbtide_agent.attempts.standbys import Standbys
from ebbtide_agent.attempts.supervised import Supervised
from ebbtide_agent.contract.attempt_dir import AttemptDir, AttemptKey
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.mps.sharing import GpuSharing

log = logging.getLogger(__name__)

# How long the start waits for the first statuses of adopted supervisors; one may just be reading a large checkpoint.
_ADOPTION_S = 5.0


class Registry:
    """Follows each attempt, whose supervisor outlives this object and its process.

    `report` is called on the event loop with the whole status after every change.
    """

    def __init__(
        self,
        places: NodeDirectories,
        orphans: Orphans,
        standbys: Standbys,
        sharing: GpuSharing,
        gpus: Gpus,
        report: Callable[[agent_pb2.AttemptStatus], None],
    ) -> None:
        self._node_dir = places.node_dir
        self._orphans = orphans
        self._standbys = standbys
        self._sharing = sharing
        self._gpus = gpus
        self._report = report
        self._attempts: dict[AttemptKey, Supervised] = {}
        self.attempts: Mapping[AttemptKey, Supervised] = MappingProxyType(self._attempts)
        self.renewed = 0.0  # send time of the last message that the master acknowledged (CLOCK_BOOTTIME)
        self._unaccounted = frozenset[AttemptKey]()  # attempts that have processes here, but no directory any more

    async def adopt_all(self) -> None:
        """Adopt every attempt that is on disk, and watch those of which only processes are left.

        Raises OSError.
        """
        for place, intent in await asyncio.to_thread(recovery.read_intents, self._node_dir):
            self.adopt(place, intent)
        adopted = [asyncio.ensure_future(attempt.settled.wait()) for attempt in self._attempts.values()]
        if adopted:
            _, pending = await asyncio.wait(adopted, timeout=_ADOPTION_S)
            for waiter in pending:
                waiter.cancel()
        try:
            await self._look_for_unaccounted()
        except (OSError, ValueError, RuntimeError):  # no descriptors or threads, or odd /proc: adoption is done anyway
            log.exception("event=orphans-unknown")

    async def close(self) -> None:
        """Stop following; running attempts go on."""
        await asyncio.gather(*(attempt.close() for attempt in self._attempts.values()))

    def add(self, place: AttemptDir, intent: Intent) -> Supervised:
        """Follow an attempt that is about to be launched."""
        attempt = Supervised(place, intent, self._changed, self._sharing.verdict, self._gpus)
        self._attempts[attempt.key] = attempt
        return attempt

    def adopt(self, place: AttemptDir, intent: Intent) -> None:
        """Follow an attempt that may have a supervisor already."""
        attempt = self.add(place, intent)
        self._sharing.adopt(intent)
        attempt.adopt()

    def discard(self, key: AttemptKey) -> None:
        """Drop an attempt that could not be launched, with its place on a shared GPU."""
        del self._attempts[key]
        self._sharing.forget(key)

    def forget(self, key: AttemptKey) -> None:
        """Drop everything but the log of an attempt that is over. Raises OSError."""
        known = self._attempts.get(key)
        if known is None:
            self._orphans.forget(key)
            return
        if not known.is_over:
            log.warning("event=forget-ignored reason=still-running job=%s attempt=%d", *key)
            return
        known.forget()
        del self._attempts[key]

    def renew(self, at: float) -> None:
        """Renew all leases: the master has acknowledged what was sent at that time (CLOCK_BOOTTIME)."""
        self.renewed = max(self.renewed, at)
        for attempt in self._attempts.values():
            attempt.renew(self.renewed)

    def fail(self, key: AttemptKey, failure: str) -> None:
        """End an attempt whose MPS server has failed."""
        attempt = self._attempts.get(key)
        if attempt is not None and not attempt.is_over:
            attempt.fail(failure)

    async def running_attempt(self, launching: Supervised) -> int | None:
        """Return the job's other attempt that still has processes here, even without directory or lock; else None."""
        job_id = launching.intent.job_id
        for attempt in self._attempts.values():
            if attempt.intent.job_id == job_id and attempt is not launching and not attempt.is_over:
                return attempt.intent.attempt
        if all(job != job_id for job, _ in self._unaccounted):
            return None
        still_running = await self._look_for_unaccounted(launching.key)
        return next((attempt for job, attempt in still_running if job == job_id), None)

    async def _look_for_unaccounted(self, launching: AttemptKey | None = None) -> frozenset[AttemptKey]:
        """Return the attempts that have processes here, but are over or unknown."""
        running = await on_daemon_thread(partial(survivors.by_any_sign, self._node_dir))
        accounted = {key for key, attempt in self._attempts.items() if key != launching and not attempt.is_over}
        # An orphan that sleeps in the kernel may not be found again.
        self._unaccounted = frozenset(running.keys() | self._orphans.alive()) - accounted
        known = self._attempts.keys() - {launching}  # their end is recorded, so they are no orphans
        await self._orphans.take({key: running[key] for key in running.keys() - accounted - known})
        return self._unaccounted

    def _changed(self, status: agent_pb2.AttemptStatus) -> None:
        attempt = self._attempts.get((status.job_id, status.attempt))
        if attempt is not None:
            self._standbys.consider(attempt)
        if attempt is not None and attempt.is_over:
            self._sharing.forget(attempt.key)
        self._report(status)
