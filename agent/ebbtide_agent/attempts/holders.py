"""Tells the code that watches the use of GPUs which attempts hold GPUs, and with which processes."""

from pathlib import Path

from ebbtide_protos.v1 import agent_pb2, job_pb2

from ebbtide_agent.attempts import survivors
from ebbtide_agent.attempts.orphans import Orphans
from ebbtide_agent.attempts.places import NodeDirectories
from ebbtide_agent.attempts.registry import Registry
from ebbtide_agent.attempts.translation import allocation_of
from ebbtide_agent.contract.attempt_dir import AttemptKey


class Holders:
    """Answers for known attempts and for orphans, and notes what was observed of an attempt's use of its GPUs."""

    def __init__(self, places: NodeDirectories, registry: Registry, orphans: Orphans) -> None:
        self._places = places
        self._known = registry.attempts
        self._orphans = orphans

    def statuses(self) -> list[agent_pb2.AttemptStatus]:
        """Return the statuses of all attempts that are not forgotten."""
        return [attempt.whole_status() for attempt in self._known.values()] + self._orphans.statuses()

    def held(self) -> frozenset[str]:
        """Return the UUIDs of all GPUs that are allocated and not proven free."""
        return frozenset(gpu.uuid for key in self.holding() for gpu in self.allocation(*key))

    def holding(self) -> list[AttemptKey]:
        """Return the attempts whose GPUs are not proven free."""
        over = (agent_pb2.ATTEMPT_PHASE_FREED, agent_pb2.ATTEMPT_PHASE_REFUSED)
        return [(status.job_id, status.attempt) for status in self.statuses() if status.phase not in over]

    def pids(self) -> dict[AttemptKey, tuple[int, ...]]:
        """Return the pids of each live attempt's processes without its supervisor."""
        own = {key: attempt.pids() for key, attempt in list(self._known.items()) if attempt.supervisor() is not None}
        return own | self._orphans.pids()

    def pids_of(self, job_id: str, attempt: int) -> tuple[int, ...]:
        """Return the pids of the attempt's processes without its supervisor; none for an orphan."""
        known = self._known.get((job_id, attempt))
        return () if known is None else known.pids()

    def groups(self) -> dict[Path, AttemptKey]:
        """Return the control groups of the attempts that have one."""
        found = {key: attempt.place.cgroup() for key, attempt in list(self._known.items())}
        return {path: key for key, path in found.items() if path is not None}

    def by_environment(self, pids: frozenset[int]) -> dict[int, AttemptKey]:
        """Return the attempts of this node that the processes' environments name. May block."""
        return survivors.attempts_of(self._places.node_dir, pids)

    def is_over(self, job_id: str, attempt: int) -> bool:
        """Return whether it is proven that the attempt has ended; False if nothing is known about it."""
        known = self._known.get((job_id, attempt))
        return known.is_over if known is not None else self._places.attempt(job_id, attempt).is_forgotten()

    def allocation(self, job_id: str, attempt: int) -> tuple[job_pb2.GpuAllocation, ...]:
        """Return the GPUs that the attempt was launched on; empty for an unknown attempt."""
        known = self._known.get((job_id, attempt))
        return self._orphans.allocation((job_id, attempt)) if known is None else allocation_of(known.intent)

    def gpus_of(self, job_id: str, attempt: int) -> frozenset[str]:
        """Return the UUIDs of the GPUs that the attempt has alone. A shared GPU's utilisation says nothing about it."""
        given = self.allocation(job_id, attempt)
        return frozenset(gpu.uuid for gpu in given if gpu.share.numerator >= gpu.share.denominator)

    def idle_limits(self) -> dict[AttemptKey, float]:
        """Return the seconds that running attempts with an idle limit may be unused."""
        limits = {key: attempt.intent.idle_limit_s for key, attempt in self._known.items() if attempt.runs}
        return {key: limit for key, limit in limits.items() if limit is not None}

    def note_unused(self, job_id: str, attempt: int, since: float, left_s: float) -> None:
        """Report since when the attempt is unused (Unix seconds, 0 if used), and the seconds left to it."""
        known = self._known.get((job_id, attempt))
        if known is not None:
            known.note_unused(since, left_s)

    def note_memory(self, seen: agent_pb2.AttemptStatus, tell: bool) -> None:
        """Note the GPU memory of the attempt that `seen` names; report it now if `tell`, else with the next change."""
        known = self._known.get((seen.job_id, seen.attempt))
        if known is not None:
            known.note_memory(seen, tell)
