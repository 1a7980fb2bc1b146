"""Find the attempt that a process on a GPU belongs to.

The control group decides first, because a process cannot leave it by forking; then descent; then the job's socket in
the environment, which a process inherits even if it has left its tree on a node without control groups.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ebbtide_machine.process import Identity, boot_id
from ebbtide_machine.threads import on_daemon_thread

from ebbtide_agent.contract.attempt_dir import AttemptKey
from ebbtide_agent.processes import procfs
from ebbtide_agent.processes.cgroup import own_group
from ebbtide_agent.processes.procfs import ProcessStat

Owners = Mapping[int, AttemptKey]
"""The attempts that processes belong to, by pid; a pid without one is of no attempt, or not known."""
Environments = Callable[[frozenset[int]], Owners]

# Seconds to wait for environments: reading that of a process that hangs in the driver may take for ever.
_ENVIRONMENT_S = 0.5


@dataclass(frozen=True, slots=True)
class _OwnedProcess:
    starttime: int
    owner: AttemptKey


def _no_groups() -> Mapping[Path, AttemptKey]:
    return {}


def _group(pid: int) -> Path | None:
    return own_group(Path(f"/proc/{pid}"))


class Attribution:
    """Finds the attempt that a process belongs to, and remembers it.

    It has to remember because a process whose parent ended gets another parent, and because the driver still lists a
    process for a moment after its end. `pids` are the processes and `groups` the control groups of the attempts;
    `environments` finds the attempts of processes that are in neither, and may block.
    """

    def __init__(
        self,
        pids: Callable[[], Mapping[AttemptKey, tuple[int, ...]]],
        read_stat: Callable[[int], ProcessStat | None] = procfs.read_stat,
        groups: Callable[[], Mapping[Path, AttemptKey]] = _no_groups,
        environments: Environments | None = None,
        group_of: Callable[[int], Path | None] = _group,
    ) -> None:
        self._pids = pids
        self._read_stat = read_stat
        self._groups = groups
        self._group_of = group_of
        self._environments = environments
        self._known: dict[int, _OwnedProcess] = {}
        self._foreign: dict[int, tuple[int, str]] = {}  # start time and program, if the environment names no attempt
        self._turn = asyncio.Lock()
        self._looking: asyncio.Future[Mapping[int, AttemptKey]] | None = None

    async def owners(self, pids: frozenset[int]) -> dict[int, AttemptKey]:
        """Return the attempts of the pids that belong to one; the other pids are foreign, as far as is known."""
        owners, strangers = self._at_hand(pids)
        if not strangers or self._environments is None:
            return owners
        async with self._turn:  # a second caller finds what the first one has learned
            wanted = {pid: stat for pid, stat in strangers.items() if not self._is_known(pid, stat)}
            if wanted:
                await self._look_into(wanted)
        known = {pid: known for pid in strangers if (known := self._known.get(pid)) is not None}
        return owners | {pid: k.owner for pid, k in known.items() if k.starttime == strangers[pid].starttime}

    def is_foreign(self, pid: int) -> bool:
        """Return whether the process lives and certainly belongs to no attempt here; False while that is not known."""
        stat, known = self._read_stat(pid), self._known.get(pid)
        if stat is None or not stat.alive or (known is not None and known.starttime == stat.starttime):
            return False
        return self._environments is None or self._foreign.get(pid) == _look_of(stat)

    def living(self, key: AttemptKey, pids: frozenset[int]) -> list[Identity]:
        """Return the processes with these pids that are known to be the attempt's and that live."""
        mine = [(pid, known) for pid, known in self._known.items() if pid in pids and known.owner == key]
        processes = [Identity(boot_id(), pid, known.starttime) for pid, known in mine]
        return [process for process in processes if process.is_alive()]

    def keep_only(self, pids: frozenset[int]) -> None:
        """Forget all processes but these, which are all that the GPUs list."""
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}
        self._foreign = {pid: look for pid, look in self._foreign.items() if pid in pids}

    def _at_hand(self, pids: frozenset[int]) -> tuple[dict[int, AttemptKey], dict[int, ProcessStat]]:
        """Return the owners that are found without reading an environment, and the other processes that live."""
        owners = dict[int, AttemptKey]()
        unknown = dict[int, ProcessStat]()
        gone = set[int]()
        for pid in pids:
            stat, known = self._read_stat(pid), self._known.get(pid)
            alive = stat is not None and stat.alive
            if known is not None and (not alive or (stat is not None and stat.starttime == known.starttime)):
                owners[pid] = known.owner
            elif stat is not None and alive:
                unknown[pid] = stat
            else:
                gone.add(pid)
        if unknown or gone:
            found = self._by_group_or_descent(unknown, gone)
            owners |= found
            unknown = {pid: stat for pid, stat in unknown.items() if pid not in found}
        return owners, unknown

    def _by_group_or_descent(self, unknown: Mapping[int, ProcessStat], gone: set[int]) -> dict[int, AttemptKey]:
        groups = self._groups()
        roots = {pid: attempt for attempt, group in self._pids().items() for pid in group}
        found = {pid: roots[pid] for pid in gone & roots.keys()}
        for pid, stat in unknown.items():
            owner = self._by_group(pid, groups) or self._by_descent(stat, roots)
            if owner is not None:
                self._known[pid] = _OwnedProcess(stat.starttime, owner)
                found[pid] = owner
        return found

    def _by_group(self, pid: int, groups: Mapping[Path, AttemptKey]) -> AttemptKey | None:
        group = self._group_of(pid) if groups else None
        if group is None:
            return None
        return next((groups[path] for path in (group, *group.parents) if path in groups), None)

    def _by_descent(self, stat: ProcessStat, roots: Mapping[int, AttemptKey]) -> AttemptKey | None:
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

    def _is_known(self, pid: int, stat: ProcessStat) -> bool:
        known = self._known.get(pid)
        return (known is not None and known.starttime == stat.starttime) or self._foreign.get(pid) == _look_of(stat)

    async def _look_into(self, wanted: Mapping[int, ProcessStat]) -> None:
        """Learn which attempts these processes' environments name, if that is fast; not while another look is stuck."""
        assert self._environments is not None
        if self._looking is not None and not self._looking.done():
            return
        look = self._looking = on_daemon_thread(partial(self._environments, frozenset(wanted)))
        done, _ = await asyncio.wait({look}, timeout=_ENVIRONMENT_S)
        found = look.result() if done else {}
        for pid, stat in wanted.items() if done else ():
            now = self._read_stat(pid)
            if now is None or now.starttime != stat.starttime:
                continue  # another process has this pid now
            if pid in found:
                self._known[pid] = _OwnedProcess(stat.starttime, found[pid])
            elif not (stat.in_kernel or now.in_kernel) or procfs.owner_uid(pid) not in (None, os.geteuid()):
                # A process of the agent's account that sleeps in the kernel was not read, so nothing is known of it.
                self._foreign[pid] = _look_of(stat)


def _look_of(stat: ProcessStat) -> tuple[int, str]:
    """Return what changes when a process executes another program, which may have another environment."""
    return stat.starttime, stat.command
