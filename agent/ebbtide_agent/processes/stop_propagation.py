"""Decides which processes a request to leave reaches, in which order, and which stay stopped meanwhile. Pure.

The processes that can answer are asked, whatever started them: those that take part through the SDK, else the topmost
that handle the stop signal. Shells, and drivers that only wait, are kept stopped until the processes below them have
left, and are asked only then, so that they begin no next command. docs/reference/stopping.md says the same in words.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final

from ebbtide_agent.processes.launchers import ProcessKind

LINGER_S: Final = 10.0
"""Seconds in which a launcher may end by itself, once the asked processes have left: it may still write results."""
SETTLE_S, SWALLOWED_S = 1.0, 5.0
"""A process that computes nothing from SETTLE_S to SWALLOWED_S after it was asked is taken to swallow the signal."""
_IDLE_CPU_S: Final = 0.02
LATE_S: Final = (0.02, 0.1, 0.5)
"""Seconds after the request at which to look again for drivers, which may have only begun to wait for a child."""
KEPT: Final = frozenset({ProcessKind.SHELL, ProcessKind.BUILDER, ProcessKind.DRIVER})
"""The kinds of processes that are kept stopped after a request, so that they begin nothing more."""


class Reaction(Enum):
    """What a process does when it gets a signal."""

    DIES = auto()
    IGNORES = auto()
    HANDLER = auto()
    WAITS = auto()  # it blocks the signal, as a process does that calls sigwait() or reads it from a descriptor

    @property
    def handles(self) -> bool:
        """Return whether code of the process's own acts on the signal."""
        return self in (Reaction.HANDLER, Reaction.WAITS)


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """One live process of the attempt, at one moment."""

    pid: int
    parent: int
    starttime: int = 0  # jiffies since boot; with the pid it tells the process from a later one
    kind: ProcessKind = ProcessKind.ORDINARY
    reaction: Reaction = Reaction.DIES
    answers: bool = False  # it asks through the SDK whether it should leave
    # Addresses of its program in memory, which are the same in a copy that was only forked.
    image: tuple[int, ...] = ()
    cpu_s: float = 0.0


Tree = Mapping[int, LiveProcess]
"""All live processes of the attempt, by pid."""


@dataclass(frozen=True, slots=True)
class StopStep:
    """The pids of processes with which something is to be done now, in this order."""

    tell: tuple[int, ...] = ()  # ask each over its own connection
    signal: tuple[int, ...] = ()  # send the stop signal
    kill: tuple[int, ...] = ()
    release: tuple[int, ...] = ()  # continue, in case that they are stopped
    handlers: tuple[int, ...] = ()  # the asked processes that can leave by themselves
    parents: tuple[int, ...] = ()  # the asked processes that are asked because all below them have left

    def __bool__(self) -> bool:
        return bool(self.tell or self.signal or self.kill)


@dataclass(slots=True)
class _AskedProcess:
    """A process that was asked to leave."""

    starttime: int
    at: float
    takes_part: bool = False  # it takes part through the SDK, and looks after the processes below it
    blocked: bool = False  # it blocked the signal, as one does that waits for it, or that is only starting
    settled_cpu_s: float | None = None  # its CPU time SETTLE_S after it was asked
    looked_below: bool = False  # the processes below it were asked in its place, or need not be
    given_up: bool = False  # a shell that waits for one above it, as a copy does that was forked to become a command
    image: tuple[int, ...] = ()  # of a shell that may be such a copy, with the handler of the shell above it

    @property
    def next_look_s(self) -> float:
        """Return how many seconds after it was asked its CPU time is read next."""
        return SETTLE_S if self.settled_cpu_s is None else SWALLOWED_S


@dataclass(frozen=True, slots=True)
class _Seen:
    """What is remembered of a process, because its parent may end, and then the kernel names another parent."""

    starttime: int
    parent: int
    image: tuple[int, ...]


@dataclass(slots=True)
class StopPropagation:
    """One request to leave, until no process is left that could answer it."""

    _asked: dict[int, _AskedProcess] = field(default_factory=dict)
    _followed: set[int] = field(default_factory=set)  # asked processes that ended, whose descendants were then asked
    _seen: dict[int, _Seen] = field(default_factory=dict)
    _first: frozenset[int] = frozenset()  # processes that lived when the request began
    _alive: set[int] = field(default_factory=set)  # asked processes that lived at the last look
    mistaken: set[int] = field(default_factory=set)  # processes that were asked, but do nothing about the signal
    _alone_since: float = math.inf  # no process that was asked as one that could save lives since then
    _rest_asked: bool = False
    _late_looks: list[float] = field(default_factory=list)  # times of looks that are still to come, the last first

    def begin(self, tree: Tree, now: float) -> StopStep:
        """Return which processes are asked first. The kept processes have been stopped before."""
        self._look_at(tree)
        self._first = frozenset(tree)
        others = [pid for pid, process in tree.items() if process.kind not in KEPT]
        answering = [pid for pid, process in tree.items() if process.answers]
        handlers = [] if answering else handlers_in(tree) or handlers_in(tree, spawned=True)
        if not (answering or handlers):
            return self._ask_all(tree)  # no process has anything to save
        step = self._ask(tree, now, tell=answering, signal=handlers, release=others)
        # A shell may just be starting a driver.
        if self.may_be_drivers(tree) or any(process.kind in KEPT for process in tree.values()):
            self._late_looks = [now + after for after in reversed(LATE_S)]
        return step

    def joined(self, tree: Tree, pid: int, now: float) -> StopStep:
        """Ask a process that has begun to take part since."""
        self._look_at(tree)
        return self._ask(tree, now, tell=[pid]) if pid in tree and pid not in self._alive else StopStep()

    def go_on(self, tree: Tree, now: float) -> StopStep:
        """Return which processes are asked next, once an asked one has ended or at `next_at`; repeat until none are."""
        self._look_at(tree)
        while self._late_looks and self._late_looks[-1] <= now:
            self._late_looks.pop()
        if self._rest_asked:
            return StopStep()
        if now >= self._alone_since + LINGER_S:
            return self._ask_all(tree)
        if self._forget_mistaken(tree) and not self._alive:
            others = {pid: tree[pid] for pid in tree.keys() - self._asked.keys()}
            if handlers := handlers_in(others) or handlers_in(others, spawned=True):
                return self._ask(tree, now, signal=handlers)
        if found := self._left_behind(tree) or self._below_who_swallowed(tree, now) or self._elsewhere(tree):
            return self._ask(tree, now, signal=found)
        if ending := self._parents_to_end(tree):
            self._ask(tree, now, signal=ending)
            return replace(_end(tree, ending), parents=tuple(ending))
        return StopStep() if self._alive else self._ask_others(tree, now)

    def next_at(self) -> float:
        """Return when to look at the processes again, if none of them ends before that."""
        if self._rest_asked:
            return math.inf
        asked = [self._asked[pid] for pid in self._alive]
        looks = [one.at + one.next_look_s for one in asked if not one.takes_part and not one.looked_below]
        return min([self._alone_since + LINGER_S, *looks, *self._late_looks[-1:]])

    def may_be_drivers(self, tree: Tree) -> set[int]:
        """Return the processes that would die by the signal, above a live asked process or below an asked shell.

        Those that only wait are drivers, which would go on after their child.
        """
        self._look_at(tree)
        # What a shell has started since then belongs to its trap.
        commands = {below for pid in self._alive if tree[pid].kind in KEPT for below in self._first_below(pid, tree)}
        near = self._above(self._alive) | commands | self._below(commands, tree)
        return {pid for pid in near & tree.keys() - self._asked.keys() if _dies(tree[pid])}

    def _ask(
        self,
        tree: Tree,
        now: float,
        *,
        tell: Collection[int] = (),
        signal: Collection[int] = (),
        release: Iterable[int] = (),
    ) -> StopStep:
        for pid in (*tell, *signal):
            blocked = pid not in tell and tree[pid].reaction is Reaction.WAITS
            image = _of_a_copy(tree[pid], tree)
            self._asked[pid] = _AskedProcess(
                tree[pid].starttime, now, takes_part=pid in tell, blocked=blocked, image=image
            )
            self._alive.add(pid)
        self.mistaken -= {*signal}
        self._alone_since = math.inf
        handlers = (*tell, *(pid for pid in signal if _is_able(tree[pid])))
        # A process that looks after those below it may have to wait for a shell among them, so they are released.
        looked_after = self._below({pid for pid in (*tell, *signal) if tree[pid].kind not in KEPT}, tree)
        return StopStep(tuple(tell), tuple(signal), release=(*release, *signal, *looked_after), handlers=handlers)

    def _look_at(self, tree: Tree) -> None:
        for pid, process in tree.items():
            seen = self._seen.get(pid)
            same = seen is not None and seen.starttime == process.starttime
            parent = seen.parent if seen is not None and same else process.parent
            self._seen[pid] = _Seen(process.starttime, parent, process.image)
        self._alive = {pid for pid, asked in self._asked.items() if _is_in(tree, pid, asked.starttime)}

    def _forget_mistaken(self, tree: Tree) -> bool:
        """Forget asked processes that do nothing about the signal, and return whether there were any.

        Copies of shells that have become commands since have not got it. A process that blocked the signal, and ignores
        it now, was only starting, as Python's resource tracker does it: it has dropped the signal.
        """
        images = {pid: self._asked[pid].image for pid in self._alive if self._asked[pid].image}
        # A process that is just ending has no memory any more, and so no image.
        commands = {pid for pid, image in images.items() if tree[pid].image not in ((), image)}
        ignoring = {pid for pid in self._alive if self._asked[pid].blocked and tree[pid].reaction is Reaction.IGNORES}
        for pid in commands | ignoring:
            del self._asked[pid]
        self._alive -= commands | ignoring
        self.mistaken |= ignoring
        return bool(commands | ignoring)

    def _left_behind(self, tree: Tree) -> list[int]:
        """Return the handlers of the signal below an asked process that has ended without taking them along.

        Copies of that process do not count: they have its handler only because they were forked from it.
        """
        ended = {pid for pid, asked in self._asked.items() if not asked.takes_part} - self._alive - self._followed
        self._followed |= ended
        return [found for pid in ended for found in handlers_in(self._others_below(pid, tree))]

    def _below_who_swallowed(self, tree: Tree, now: float) -> list[int]:
        found: list[int] = []
        for pid in self._alive:
            asked, process = self._asked[pid], tree[pid]
            if asked.takes_part or asked.looked_below:
                continue
            if asked.settled_cpu_s is None and now >= asked.at + SETTLE_S:
                asked.settled_cpu_s = process.cpu_s
            if asked.settled_cpu_s is not None and now >= asked.at + SWALLOWED_S:
                asked.looked_below = True
                if process.cpu_s - asked.settled_cpu_s <= _IDLE_CPU_S:
                    handlers = handlers_in(self._others_below(pid, tree))
                    found += handlers
                    # A shell runs its trap when the command that it waits for has ended, so that command is asked.
                    # What the trap itself has started came later.
                    if process.kind is ProcessKind.SHELL:
                        asked.given_up = not self._below({pid}, tree)
                        looked_after = self._below(handlers, tree) | self._above(handlers)
                        found += self._first_below(pid, tree) - looked_after - {*handlers}
        return found

    def _elsewhere(self, tree: Tree) -> list[int]:
        """Return the handlers of the signal in other branches than processes that took part, once these have left."""
        participants = {pid for pid, asked in self._asked.items() if asked.takes_part}
        if self._alive or not participants:
            return []
        launchers = {pid for pid in self._above(participants) & tree.keys() if tree[pid].kind is ProcessKind.LAUNCHER}
        others = tree.keys() - self._asked.keys() - self._below(participants | launchers, tree)
        handlers = handlers_in({pid: tree[pid] for pid in others})
        return [pid for pid in handlers if tree[pid].kind is ProcessKind.ORDINARY]

    def _others_below(self, pid: int, tree: Tree) -> dict[int, LiveProcess]:
        image = self._seen[pid].image
        below = self._below({pid}, tree) - self._asked.keys()
        return {other: tree[other] for other in below if tree[other].image != image or not image}

    def _first_below(self, pid: int, tree: Tree) -> set[int]:
        return self._below({pid}, tree) & self._first - self._asked.keys()

    def _parents_to_end(self, tree: Tree) -> set[int]:
        """Return the lowest of the kept processes above asked ones that have all left; of all kept ones if none lives.

        A process above asked ones that is not kept, but would die by the signal, has nothing to do any more, and is
        returned too. So are kept processes if an asked shell waits for nothing else: it runs its trap when they end.
        """
        above = self._above(self._asked)
        kept = {pid for pid, process in tree.items() if process.kind in KEPT} - self._asked.keys()
        dying = {pid for pid in above & tree.keys() if _dies(tree[pid])} - self._asked.keys()
        ending = (kept & above if self._alive else kept) | dying
        ending -= self._above(pid for pid in self._alive if not self._asked[pid].given_up)
        for pid in self._alive:
            waited_for = self._first_below(pid, tree) if tree[pid].kind is ProcessKind.SHELL else set()
            ending |= waited_for if waited_for <= kept else set()
        return ending - self._above(ending)

    def _ask_others(self, tree: Tree, now: float) -> StopStep:
        """End the rest, which has no reason to go on after all that could save; launchers end by themselves, soon."""
        self._alone_since = min(self._alone_since, now)
        launchers = tree.keys() & self._above(self._asked)
        others = tree.keys() - launchers - self._below(launchers, tree) - self._asked.keys()
        for pid in others:
            self._asked[pid] = _AskedProcess(tree[pid].starttime, now, looked_below=True)
            self._alive.add(pid)
        return _end(tree, others)

    def _ask_all(self, tree: Tree) -> StopStep:
        """Signal all processes; one that ignores the signal has the grace period all the same."""
        self._rest_asked = True
        step = _end(tree, tree)
        ignoring = tuple(pid for pid in step.kill if _is_shell_that_ignores(tree[pid]))
        kill = tuple(pid for pid in step.kill if pid not in ignoring)
        return replace(step, signal=step.signal + ignoring, kill=kill, release=step.release + ignoring)

    def _above(self, pids: Iterable[int]) -> set[int]:
        """Return the pids of all processes that one of these descends from, ended or not."""
        found: set[int] = set()
        for pid in pids:
            while (seen := self._seen.get(pid)) is not None and seen.parent not in found:
                pid = seen.parent
                found.add(pid)
        return found

    def _below(self, pids: Collection[int], tree: Tree) -> set[int]:
        """Return the pids of the tree's processes that descend from one of these, ended or not."""
        known: dict[int, bool] = {}
        for start in tree:
            way: list[int] = []
            pid, found = start, False
            while (seen := self._seen.get(pid)) is not None and pid not in known:
                known[pid] = False  # a way that leads back here ends
                way.append(pid)
                if seen.parent in pids:
                    found = True
                    break
                pid = seen.parent
            else:
                found = known.get(pid, False)
            known.update(dict.fromkeys(way, found))
        return {pid for pid in tree if known[pid]}


def handlers_in(tree: Tree, *, spawned: bool = False) -> list[int]:
    """Return the pids of the topmost processes that handle the signal, in every branch.

    A process that handles the signal looks after those below it itself: signalling the data loaders of a parent that is
    saving would make the parent fail. Below a process that only blocks the signal the search goes on. A handler of a
    launcher or a shell counts only if no process below it has one; that of a spawned process only with `spawned`.
    """
    own = (ProcessKind.ORDINARY, ProcessKind.SPAWNED) if spawned else (ProcessKind.ORDINARY,)
    found: dict[int, list[int]] = {}
    order = _parents_first(tree)
    for process in reversed(order):
        below = found.get(process.pid, [])
        match process.kind:
            case kind if kind in own and process.reaction is Reaction.HANDLER:
                mine = [process.pid]
            case kind if kind in own and process.reaction is Reaction.WAITS:
                mine = [process.pid, *below]
            case ProcessKind.WORKER | ProcessKind.SPAWNED if process.kind not in own:
                mine = []
            case ProcessKind.SHELL | ProcessKind.LAUNCHER if process.reaction.handles and not below:
                mine = [process.pid]
            case _:
                mine = below
        found[process.pid] = mine
        if process.parent in tree:
            found[process.parent] = mine + found.get(process.parent, [])
    return [pid for process in order if process.parent not in tree for pid in found[process.pid]]


def _parents_first(tree: Tree) -> list[LiveProcess]:
    children: dict[int, list[LiveProcess]] = {}
    for process in tree.values():
        children.setdefault(process.parent, []).append(process)
    order = [process for process in tree.values() if process.parent not in tree]
    for process in order:
        order += children.get(process.pid, [])
    return order


def _end(tree: Tree, pids: Iterable[int]) -> StopStep:
    """End these processes by the signal; kill those that would ignore it, or would remove what they are making."""
    ending = [tree[pid] for pid in pids]
    kill = {one.pid for one in ending if one.kind is ProcessKind.BUILDER or _is_shell_that_ignores(one)}
    signal = tuple(one.pid for one in ending if one.pid not in kill)
    able = tuple(pid for pid in signal if _is_able(tree[pid]))
    return StopStep(signal=signal, kill=tuple(kill), release=signal, handlers=able)


def _is_able(process: LiveProcess) -> bool:
    """Return whether the process may have something to save: a data loader never has, even if it handles the signal."""
    return process.reaction.handles and process.kind is not ProcessKind.WORKER


def _dies(process: LiveProcess) -> bool:
    return process.kind is ProcessKind.ORDINARY and process.reaction is Reaction.DIES


def _is_shell_that_ignores(process: LiveProcess) -> bool:
    return process.kind is ProcessKind.SHELL and process.reaction is Reaction.IGNORES


def _of_a_copy(process: LiveProcess, tree: Tree) -> tuple[int, ...]:
    """Return the process's image if it may be a copy of the shell above it, about to become a command; else ()."""
    above = tree.get(process.parent)
    same = above is not None and above.kind is process.kind is ProcessKind.SHELL and above.image == process.image
    return process.image if same and above is not None and above.reaction.handles else ()


def _is_in(tree: Tree, pid: int, starttime: int) -> bool:
    return pid in tree and tree[pid].starttime == starttime
