"""Find what may explain why a job did not save, when the job is asked to leave and when it is killed."""

import signal
from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Final

from ebbtide_agent.processes import process_tree
from ebbtide_agent.processes.launchers import ProcessKind
from ebbtide_agent.processes.stop_propagation import LiveProcess, Reaction, StopStep, Tree


class WireClue(StrEnum):
    """One thing that may explain why the job did not save; the values are the wire's names."""

    CATCHES_TERM = "CLUE_CATCHES_TERM"
    CATCHES_USR1 = "CLUE_CATCHES_USR1"
    CATCHES_USR2 = "CLUE_CATCHES_USR2"
    NOT_ASKED = "CLUE_NOT_ASKED"
    LAUNCHER = "CLUE_LAUNCHER"
    WORKERS_SIGNALLED = "CLUE_WORKERS_SIGNALLED"


_OTHERS: Final = {
    signal.SIGTERM: WireClue.CATCHES_TERM,
    signal.SIGUSR1: WireClue.CATCHES_USR1,
    signal.SIGUSR2: WireClue.CATCHES_USR2,
}


def of_request(tree: Tree, step: StopStep, signum: int) -> Iterator[WireClue]:
    """Yield the clues that the process tree shows when `step` passes the request on."""
    handlers = {pid for pid in step.handlers if tree[pid].kind is ProcessKind.ORDINARY}
    only_launchers = all(tree[pid].kind is ProcessKind.LAUNCHER for pid in step.handlers)
    if only_launchers:
        yield from (clue for other, clue in _OTHERS.items() if other != signum and _is_caught(tree, other))
    below = any(_is_below_launcher(tree, pid) for pid in handlers - {*step.tell})
    if below or (step.handlers and only_launchers):
        yield WireClue.LAUNCHER
    if handlers and any(_looked_after(tree[pid], tree) for pid in step.signal):
        yield WireClue.WORKERS_SIGNALLED


def of_killing(tree: Tree, asked: Collection[int]) -> Iterator[WireClue]:
    """Yield the clues that the tree shows when the remaining processes are killed; `asked` were asked to leave."""
    images = {tree[pid].image for pid in asked if pid in tree}
    left_out = (one for pid, one in tree.items() if pid not in asked and _could_leave(one))
    # A process that was only forked has the handler of its parent, and does nothing with it.
    if any(not one.image or one.image not in images for one in left_out):
        yield WireClue.NOT_ASKED


def _could_leave(process: LiveProcess) -> bool:
    return process.kind is ProcessKind.ORDINARY and process.reaction.handles


def _is_caught(tree: Tree, signum: int) -> bool:
    ordinary = (pid for pid, process in tree.items() if process.kind is ProcessKind.ORDINARY)
    return any(process_tree.reaction(pid, signum) is Reaction.HANDLER for pid in ordinary)


def _is_below_launcher(tree: Tree, pid: int) -> bool:
    while (above := tree.get(tree[pid].parent)) is not None:
        if above.kind is ProcessKind.LAUNCHER:
            return True
        pid = above.pid
    return False


def _looked_after(process: LiveProcess, tree: Tree) -> bool:
    above = tree.get(process.parent)
    spawned = process.kind is ProcessKind.SPAWNED and above is not None and above.reaction.handles
    return process.kind is ProcessKind.WORKER or spawned
