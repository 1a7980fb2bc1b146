"""Reads and signals the process tree below a supervisor, which as a subreaper is above all processes of its job."""

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ebbtide_machine.process import Identity

from ebbtide_agent.processes import procfs
from ebbtide_agent.processes.launchers import ProcessKind, kind_of
from ebbtide_agent.processes.stop_propagation import KEPT, LiveProcess, Reaction

# A process waits for a signal only if it still blocks it after so many looks, so many seconds apart.
_LOOKS = 8
_LOOK_S = 0.002
_MOST_INTERPRETERS: Final = 256
_MOST_THREADS: Final = 256
# Ebbtide's own `srun` passes signals on; whether one is handled depends on its tasks.
_PASSES_ON = "Name:\tebb:srun\n"
_NONE: Final[Mapping[int, Sequence[str]]] = MappingProxyType({})


def descendants(pid: int) -> list[int]:
    """Return the pids of all processes below this one, parents before their children."""
    return _from(procfs.children(pid))


def tree(
    roots: Iterable[int],
    signum: int,
    answering: Collection[int] = (),
    arguments: Mapping[int, Sequence[str]] = _NONE,
    drivers: Collection[Identity] = (),
) -> dict[int, LiveProcess]:
    """Return these processes and all below them, by pid.

    `answering` are the pids of those that take part through the SDK, `arguments` the command lines that were read, and
    `drivers` the processes that `keep` returned. Blocks for some milliseconds if a process blocks the signal.
    """
    driving = {(driver.pid, driver.starttime) for driver in drivers}
    pids = _from(roots)
    handling = reactions(pids, signum)
    found: dict[int, LiveProcess] = {}
    for pid in pids:
        stat = procfs.read_stat(pid)
        if stat is not None and stat.alive:
            kind = kind_of(stat.command, procfs.program(pid), tuple(arguments.get(pid, ())))
            if kind is ProcessKind.ORDINARY and (pid, stat.starttime) in driving and pid not in answering:
                kind = ProcessKind.DRIVER
            # A shell that blocks the signal is only starting a command, and may have been stopped meanwhile.
            blocks = handling[pid] is Reaction.WAITS
            found[pid] = LiveProcess(
                pid,
                stat.parent,
                stat.starttime,
                kind,
                Reaction.DIES if blocks and kind in KEPT else handling[pid],
                pid in answering,
                stat.image,
                stat.cpu_s,
            )
    return found


def interpreters(roots: Iterable[int]) -> list[int]:
    """Return the Python interpreters among these processes and below them, whose kind only their arguments tell."""
    found = (pid for pid in _from(roots) if procfs.program(pid).startswith("python"))
    return list(islice(found, _MOST_INTERPRETERS))


def keep(root: int, roots: Callable[[], Iterable[int]], signum: int) -> set[Identity]:
    """Stop all shells and drivers among these processes and below them; they stand still on return, or do soon.

    Returns the drivers, because nothing tells a stopped driver from other processes. A shell may be starting another
    one meanwhile, so the search is repeated until it finds no more.
    """
    kept: set[int] = set()
    drivers: set[Identity] = set()
    for _ in range(_LOOKS):
        stats = [stat for pid in _from(roots()) if (stat := procfs.read_stat(pid)) is not None and stat.alive]
        kinds = {stat.pid: kind_of(stat.command, procfs.program(stat.pid)) for stat in stats}
        driving = [
            stat.pid for stat in stats if kinds[stat.pid] is ProcessKind.ORDINARY and _only_waits(stat.pid, signum)
        ]
        drivers |= {driver for pid in driving if (driver := Identity.of(pid)) is not None}
        found = [stat for stat in stats if kinds[stat.pid] in KEPT or stat.pid in driving or stat.pid in kept]
        # Parents first: with job control a shell goes on when the command that it waits for is stopped.
        new = [stat.pid for stat in found if stat.pid not in kept]
        if not new and all(stat.stopped or stat.in_kernel for stat in found):
            break
        signal_below(root, new, signal.SIGSTOP)
        kept |= {*new}
        if not new:
            time.sleep(_LOOK_S)
    return drivers


def keep_drivers(root: int, pids: Iterable[int], signum: int) -> set[Identity]:
    """Stop the drivers among these processes, and return them."""
    return {*signal_below(root, [pid for pid in pids if _only_waits(pid, signum)], signal.SIGSTOP)}


def _only_waits(pid: int, signum: int) -> bool:
    """Return whether the process only waits for a child, and would die by the signal; False if the kernel hides it.

    Such a process has no hand in what the child does: it reads nothing of it, and serves it nothing.
    """
    channels: set[str] = set()
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        if len(threads) > _MOST_THREADS:
            return False
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/wchan") as file:
                channel = file.read()
            if not channel.startswith(("do_wait", "futex")):
                return False  # at the first thread that computes, mostly the very first: a request to leave waits
            channels.add(channel)
    except OSError:
        return False
    return "do_wait" in channels and reaction(pid, signum) is Reaction.DIES


def earlier_cpu_s(roots: Iterable[int]) -> float:
    """Return the CPU seconds of commands that shells among these processes and below them have run to their end."""
    stats = [stat for pid in _from(roots) if (stat := procfs.read_stat(pid)) is not None and stat.alive]
    shells = [stat for stat in stats if kind_of(stat.command, procfs.program(stat.pid)) in KEPT]
    return sum(stat.children_cpu_s for stat in shells)


def _from(roots: Iterable[int]) -> list[int]:
    found = list(roots)
    for pid in found:
        found += procfs.children(pid)
    return found


def reactions(pids: Iterable[int], signum: int) -> dict[int, Reaction]:
    """Return what each of these processes would do about the signal.

    Blocks for some milliseconds if one blocks the signal, because shells and others do that whenever they start a
    program, and are not waiting for it then.
    """
    found = {pid: reaction(pid, signum) for pid in pids}
    for _ in range(_LOOKS):
        waiting = [pid for pid, what in found.items() if what is Reaction.WAITS]
        if not waiting:
            break
        time.sleep(_LOOK_S)
        found |= {pid: reaction(pid, signum) for pid in waiting}
    return found


def reaction(pid: int, signum: int) -> Reaction:
    """Return what the process would do about the signal at this moment."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return Reaction.DIES
    masks = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Sig"))
    if status.startswith(_PASSES_ON):
        return Reaction.DIES

    def is_in(mask: str) -> bool:
        return bool(int(masks[mask], 16) >> (signum - 1) & 1)

    if is_in("SigCgt"):
        return Reaction.HANDLER
    if is_in("SigBlk"):
        return Reaction.WAITS
    return Reaction.IGNORES if is_in("SigIgn") else Reaction.DIES


def signal_below(root: int, pids: Iterable[int], signum: int) -> list[Identity]:
    """Signal those of these processes that live below `root`, and return the ones that were reached."""
    processes = [process for pid in pids if (process := Identity.of(pid)) is not None]
    # The identity comes first, so that the process that gets the signal is the one that was proven to be below `root`.
    return [process for process in processes if is_below(process.pid, root) and process.signal(signum)]


def kill_below(root: int, spared: Collection[int] = ()) -> bool:
    """Send SIGKILL to every process below `root` except `spared`; return False if none lives there any more.

    Repeat it until it returns False, because some may be forking.
    """
    doomed = [pid for pid in descendants(root) if pid not in spared]
    return bool(signal_below(root, doomed, signal.SIGKILL))


def is_below(pid: int, root: int) -> bool:
    """Return whether the process that has this pid now descends from `root`."""
    stat = procfs.read_stat(pid)
    while stat is not None and stat.parent not in (root, 0):
        stat = procfs.read_stat(stat.parent)
    return stat is not None and stat.parent == root
