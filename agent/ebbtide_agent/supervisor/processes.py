"""The tree of processes below a supervisor, which as a subreaper has every one of its job's among its descendants."""

import signal
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from ebbtide_agent import procfs
from ebbtide_agent.identity import Identity

# A process that blocks a signal is looked at so often, and at this distance, before that is believed.
_LOOKS = 8
_LOOK_S = 0.002
# Our own `srun` hands on what it gets; whether anybody handles the signal, its tasks say.
_PASSES_ON = "Name:\tebb:srun\n"


class Reaction(Enum):
    """What a process does about a signal."""

    NONE = auto()  # it ignores it, or dies by it
    HANDLER = auto()
    WAITS = auto()  # it blocks it, as those do who call sigwait() or read it from a descriptor


@dataclass(frozen=True, slots=True)
class Targets:
    """Whom to send the stop signal, and those of them who handle it."""

    pids: tuple[int, ...]
    handlers: tuple[int, ...] = ()


def descendants(pid: int) -> list[int]:
    """Pids of all processes below this one, parents before their children."""
    found: list[int] = []
    frontier = [pid]
    while frontier:
        below = procfs.children(frontier.pop())
        found += below
        frontier += below
    return found


def stop_targets(
    roots: Sequence[int], children: Callable[[int], Sequence[int]], reaction: Callable[[int], Reaction]
) -> Targets:
    """The topmost processes that handle the signal, from the roots downwards; every process if none does.

    A process that handles it looks after those below it itself: signalling the data loaders of a parent that is saving
    would fail the parent. Below one that only blocks it the search goes on.
    """
    handlers: list[int] = []
    others: list[int] = []
    frontier = list(roots)
    while frontier:
        pid = frontier.pop(0)
        found = reaction(pid)
        if found is Reaction.NONE:
            others.append(pid)
        else:
            handlers.append(pid)
        if found is not Reaction.HANDLER:
            frontier += children(pid)
    return Targets(tuple(handlers or others), tuple(handlers))


def reactions(pids: Iterable[int], signum: int) -> dict[int, Reaction]:
    """What each of these processes would do about the signal; blocks for some milliseconds if one blocks it.

    Shells and others block it whenever they start a program, and then it is not what they wait for.
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
    """What the process would do about the signal at this moment."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return Reaction.NONE
    masks = dict(line.split(":", 1) for line in status.splitlines() if line.startswith("Sig"))
    if status.startswith(_PASSES_ON):
        return Reaction.NONE
    if int(masks["SigCgt"], 16) >> (signum - 1) & 1:
        return Reaction.HANDLER
    return Reaction.WAITS if int(masks["SigBlk"], 16) >> (signum - 1) & 1 else Reaction.NONE


def signal_below(root: int, pids: Iterable[int], signum: int) -> list[Identity]:
    """Signal those of these processes that live below `root`; returns whom it reached."""
    processes = [process for pid in pids if (process := Identity.of(pid)) is not None]
    # Identity first: what has the pid when the signal goes out is then what was proven to be below `root`.
    return [process for process in processes if is_below(process.pid, root) and process.signal(signum)]


def kill_below(root: int, spared: Collection[int] = ()) -> bool:
    """Send SIGKILL to every process below `root` but those `spared`; False if none lives there any more.

    To be repeated until none is left, for some may be forking.
    """
    doomed = [pid for pid in descendants(root) if pid not in spared]
    return bool(signal_below(root, doomed, signal.SIGKILL))


def is_below(pid: int, root: int) -> bool:
    """Whether the process that has this pid now descends from `root`."""
    stat = procfs.read_stat(pid)
    while stat is not None and stat.parent not in (root, 0):
        stat = procfs.read_stat(stat.parent)
    return stat is not None and stat.parent == root
