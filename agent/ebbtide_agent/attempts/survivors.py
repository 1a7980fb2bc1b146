"""Finds a job's processes that have no supervisor any more, by what only they can have (see `attempt_ownership`).

A process's identity is taken before its proof is read, so a pid that is reused in between is never signalled. Locks are
looked for first, because open files can be read even of a process in uninterruptible sleep; its environment cannot.
"""

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Literal

from ebbtide_machine.process import Identity

from ebbtide_agent.attempts.attempt_ownership import AttemptOwnership, variable
from ebbtide_agent.contract.attempt_dir import AttemptDir, AttemptKey
from ebbtide_agent.processes import procfs
from ebbtide_agent.processes.process_scan import look_into
from ebbtide_agent.processes.process_tree import descendants, is_below

_GPUS = b"CUDA_VISIBLE_DEVICES="


def of_attempt(node_dir: Path, key: AttemptKey) -> list[Identity]:
    """Return the attempt's processes, their descendants, and the processes that inherited its job's lock. Blocks.

    Call it only when the attempt's supervisor is dead and no other attempt of the job can be starting.
    """
    known, candidates = AttemptOwnership(node_dir), _own_processes()
    holders = look_into(candidates, partial(_holds, known, key[0]), asleep_too=True)
    rest = [process for process in candidates if process not in holders]
    found = [*holders, *look_into(rest, partial(_is_of, known, key))]
    return [*found, *(child for process in found for child in _descendants(process) if child not in found)]


def by_any_sign(node_dir: Path) -> dict[AttemptKey, list[Identity]]:
    """Return all processes that agents of this node launched, with their supervisors, by attempt. Blocks."""
    known, candidates = AttemptOwnership(node_dir), _own_processes()
    found = look_into(candidates, known.by_lock, asleep_too=True)
    found |= look_into([process for process in candidates if process not in found], known.by_socket)
    attempts: dict[AttemptKey, list[Identity]] = {}
    for process, key in found.items():
        attempts.setdefault(key, []).append(process)
    return attempts


def attempts_of(node_dir: Path, pids: frozenset[int]) -> dict[int, AttemptKey]:
    """Return the attempts of these processes, as far as agents of this node launched them. May block."""
    processes = [process for pid in pids if (process := Identity.of(pid)) is not None]
    return {process.pid: key for process, key in look_into(processes, AttemptOwnership(node_dir).by_socket).items()}


def gpus_of(place: AttemptDir, processes: Iterable[Identity]) -> list[str]:
    """Return the UUIDs of the GPUs that the attempt's processes were given, as far as known. Blocks.

    Of environments, only those of the agent's account are believed: others could name GPUs that they do not have.
    """
    given = place.given_gpus()
    if given is not None:
        return sorted(given)
    own = [process for process in processes if procfs.real_uid(process.pid) == os.geteuid()]
    values = look_into(own, lambda pid: variable(pid, _GPUS) or None).values()
    return sorted({uuid for value in values for uuid in value.decode(errors="replace").split(",") if uuid})


def _holds(known: AttemptOwnership, job_id: str, pid: int) -> Literal[True] | None:
    return True if known.holds(pid, job_id) else None


def _is_of(known: AttemptOwnership, key: AttemptKey, pid: int) -> Literal[True] | None:
    return True if known.by_socket(pid) == key else None


def _descendants(ancestor: Identity) -> list[Identity]:
    """Return the processes below this one, whatever environment and files they have now."""
    below = [process for pid in descendants(ancestor.pid) if (process := Identity.of(pid)) is not None]
    return [process for process in below if is_below(process.pid, ancestor.pid)]


def _own_processes() -> list[Identity]:
    """Return the processes that can be the agent's: all if it is root, else those of its account."""
    uid = os.geteuid()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
    mine = [pid for pid in pids if uid in (0, procfs.owner_uid(pid))]
    return [process for pid in mine if (process := Identity.of(pid)) is not None]
