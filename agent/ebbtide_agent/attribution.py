"""Which attempt a process on a GPU belongs to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ebbtide_agent import procfs
from ebbtide_agent.procfs import ProcessStat

AttemptKey = tuple[str, int]  # job id, attempt


@dataclass(frozen=True, slots=True)
class _Known:
    starttime: int
    owner: AttemptKey


class Attribution:
    """Finds the attempt that a process descends from, and remembers it.

    Memory is needed at both ends of a process's life: one whose parent ended hangs below somebody else, and one that
    ended is still listed by the driver for a moment.
    """

    def __init__(
        self,
        pids: Callable[[], Mapping[AttemptKey, tuple[int, ...]]],
        read_stat: Callable[[int], ProcessStat | None] = procfs.read_stat,
    ) -> None:
        self._pids = pids
        self._read_stat = read_stat
        self._known: dict[int, _Known] = {}

    def owners(self, pids: frozenset[int]) -> dict[int, AttemptKey]:
        """The attempts of those of these pids that belong to one; the others are foreign."""
        if not pids:
            return {}
        roots = {pid: attempt for attempt, group in self._pids().items() for pid in group}
        return {pid: owner for pid in pids if (owner := self._owner(pid, roots)) is not None}

    def keep_only(self, pids: frozenset[int]) -> None:
        """Forget every process but these; they are all that the GPUs list."""
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}

    def _owner(self, pid: int, roots: Mapping[int, AttemptKey]) -> AttemptKey | None:
        stat = self._read_stat(pid)
        known = self._known.get(pid)
        if stat is None or not stat.alive:
            return known.owner if known is not None else roots.get(pid)
        if known is not None and known.starttime == stat.starttime:
            return known.owner
        owner = self._ancestry(stat, roots)
        if owner is not None:
            self._known[pid] = _Known(stat.starttime, owner)
        return owner

    def _ancestry(self, stat: ProcessStat, roots: Mapping[int, AttemptKey]) -> AttemptKey | None:
        seen = set[int]()
        while stat.pid not in seen:
            if stat.pid in roots:
                return roots[stat.pid]
            seen.add(stat.pid)
            parent = self._read_stat(stat.parent)
            if parent is None:
                return None
            stat = parent
        return None
