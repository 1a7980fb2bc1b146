"""Ask an attempt's processes to leave: through the SDK those that take part in it, and the others by the signal.

`processes.stop_propagation` decides which process is asked when, and `ending` decides when all are killed.
"""

import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from ebbtide_machine.process import Identity

from ebbtide_agent.contract.intent import StopSignalTarget
from ebbtide_agent.processes import process_tree, procfs
from ebbtide_agent.processes.process_tree import descendants
from ebbtide_agent.processes.stop_propagation import LiveProcess, StopPropagation, StopStep, Tree
from ebbtide_agent.supervisor import clues
from ebbtide_agent.supervisor.launching.launch import Rank
from ebbtide_agent.supervisor.leaving.descriptors import part_of_descriptors
from ebbtide_agent.supervisor.leaving.ending import LEADER, AttemptEnding, all_failed, ended_after_others
from ebbtide_agent.supervisor.leaving.participants import Participants
from ebbtide_agent.supervisor.sealing.checkpoint_look import CheckpointLook
from ebbtide_agent.supervisor.status import Exit

# Seconds between looks at processes whose end wakes nobody.
_LOOK_S = 0.1


class LeaveRequest:
    """Passes the request on, and notes which processes were asked, which could act on it, and how they ended."""

    def __init__(
        self,
        signum: int,
        target: StopSignalTarget,
        session: bool,
        ranks: Mapping[int, Rank],
        ending: AttemptEnding,
        outcome: Exit,
        look: CheckpointLook,
        selector: selectors.BaseSelector,
        participants: socket.socket,
        own: Callable[[], list[int]],
    ) -> None:
        """`signum` goes to the processes that `target` names; `ranks` are the running launched processes by pid.

        The shell of a `session`, which a user types into, is not kept from starting more. `own` lists the children of
        this process, except those that are not the attempt's, or that learn of its end in another way.
        """
        self._signum = signum
        self._target = target
        self._is_session = session
        self._ranks = ranks
        self._ending = ending
        self._exit = outcome
        self._look = look
        self._selector = selector
        self._own = own
        self._me = os.getpid()
        self._participants = Participants(selector, participants, self._join)
        self._asking: StopPropagation | None = None  # once the request to leave was passed on
        # Processes that were asked to leave and can do so by themselves, with their return codes as far as they are
        # known.
        self._handlers: dict[Identity, int | None] = {}
        # All processes that were asked, as many as may be with a pidfd that shows the end; the others are looked at.
        self._awaited: dict[Identity, int | None] = {}
        self._most = part_of_descriptors(4)
        self._ended: set[int] = set()  # pids of parents that were ended because all processes below them had left
        self._drivers: set[Identity] = set()  # processes that are kept although they are no shells
        self._left_with: list[int] = []  # return codes of those, as far as their shells had not reaped them
        self.cut_short: frozenset[str] = frozenset()  # checkpoint files that were being written when their writer died

    @property
    def next_at(self) -> float:
        """When the next process has to be asked or looked at, on the monotonic clock."""
        next_at = math.inf if self._asking is None else self._asking.next_at()
        return min(next_at, time.monotonic() + _LOOK_S) if None in self._awaited.values() else next_at

    def prepare(self, grace_s: float) -> None:
        """List the checkpoint directory before any process is asked, and keep shells from starting anything more."""
        if grace_s == 0.0:
            return  # no process may write anything any more
        self._keep()
        with suppress(OSError):
            self._look.begin(grace_s, process_tree.interpreters(self._own()))

    def begin(self) -> None:
        """Pass the request to leave on to the processes that should get it."""
        now = time.monotonic()
        if self._target is StopSignalTarget.AUTO:
            self._participants.tell_all(max(0.0, self._ending.kill_at - now))
            self._asking = StopPropagation()
            self._keep()
            tree = self._tree()
            reached = self._perform_first(self._asking.begin(tree, now), tree)
        else:
            reached = self._signal_exactly()
        self._ending.signalled()
        if self._ending.failed_rank is None:
            self._exit.delivered = reached and LEADER in self._ending.running

    def go_on(self, now: float, *, over: bool) -> None:
        """Ask the next processes, if one that was asked has ended or has had its time.

        Ask none once the attempt is being killed (`over`).
        """
        ended = self._note_ended()
        if self._asking is None or over or not (ended or now >= self._asking.next_at()):
            return
        if self._keeps:
            candidates = self._asking.may_be_drivers(self._tree())
            self._drivers |= process_tree.keep_drivers(self._me, candidates, self._signum)
        while time.monotonic() < self._ending.kill_at:  # a bound, because a job may start new handlers without end
            tree = self._tree()
            if self._note_ended():
                continue  # to end the parent of a process that has just left would be to lose how that ended
            step = self._asking.go_on(tree, now)
            self._forget_handlers(self._asking.mistaken)
            if not step:
                return
            self._perform(step, others_left=True)

    def handlers_live(self) -> bool:
        """Return whether processes that were asked, and can leave by themselves, still run while no launched process
        does."""
        return not self._ending.running and any(process.is_alive() for process in self._handlers)

    def rank_ended(self, process: Identity, returncode: int) -> int:
        """Note how a launched process ended, and return the return code that counts."""
        self._note_left(process, returncode)
        return (
            ended_after_others(returncode, self._left_with, self._signum) if process.pid in self._ended else returncode
        )

    def failed_to_save(self) -> bool:
        """Return whether all processes that were asked, except ended parents, ended with an exit code that says
        failure."""
        return all_failed([code for process, code in self._handlers.items() if process.pid not in self._ended])

    def note_killing(self, handlers_live: bool) -> None:
        """Note, before the remaining processes are killed, whether that is early, and what they are writing."""
        if self._ending.stop_requested_at is None:
            return
        died = bool(self._ending.running or handlers_live)
        self._exit.killed = died and not (self._exit.memory_failure or self._exit.input_failure)
        if self._exit.killed:
            self._exit.clues += clues.of_killing(self._tree(), {process.pid for process in self._awaited})
        self.cut_short |= self._look.being_written(descendants(self._me), not died)

    def close(self) -> None:
        """Close the connections of participants and stop watching processes."""
        self._participants.close()
        for process in list(self._awaited):
            self._forget(process)

    def _signal_exactly(self) -> bool:
        """Signal the processes that the user named, and return whether the signal reached any."""
        launched = [rank.identity.pid for rank in self._ranks.values()]
        tree = self._tree()
        named = launched if self._target is StopSignalTarget.LEADER else list(tree)
        handlers = tuple(pid for pid in named if pid in tree and tree[pid].reaction.handles)
        return self._perform_first(StopStep(signal=tuple(named), release=tuple(tree), handlers=handlers), tree)

    def _perform_first(self, step: StopStep, tree: Tree) -> bool:
        reached = self._perform(step)
        if self._exit.stop_requested:
            self._exit.clues += clues.of_request(tree, step, self._signum)
        return reached

    def _note_ended(self) -> bool:
        """Note the return codes of asked processes that have ended and are not reaped yet; return whether any has
        ended."""
        ended = [process for process in self._awaited if not process.is_alive()]
        for process in ended:
            if (returncode := procfs.returncode(process.pid)) is not None:
                if process.pid not in self._ended:  # how a parent ends that was ended says nothing of those below it
                    self._left_with.append(returncode)
                self._note_left(process, returncode)
            self._forget(process)
        return bool(ended)

    def _forget_handlers(self, mistaken: set[int]) -> None:
        """Expect nothing of processes that could not act on the request."""
        for process in [process for process in self._handlers if process.pid in mistaken]:
            del self._handlers[process]
        self._exit.caught &= bool(self._handlers)

    def _note_left(self, process: Identity, returncode: int) -> None:
        if process in self._handlers:
            self._handlers[process] = returncode

    def _join(self, pid: int) -> None:
        """Note that a process now answers through the SDK; it was asked already if the request to leave has been passed
        on."""
        if self._asking is not None:
            self._perform(self._asking.joined(self._tree(), pid, time.monotonic()))

    def _perform(self, step: StopStep, *, others_left: bool = False) -> bool:
        """Carry the step out, and return whether it reached any process.

        Participants have been asked all at once before.
        """
        dying = [pid for pid in (*step.signal, *step.kill) if pid not in step.handlers]
        self.cut_short |= self._look.being_written(dying, others_left)
        asked = [process for pid in step.tell if (process := Identity.of(pid)) is not None]
        asked += process_tree.signal_below(self._me, step.signal, self._signum)
        process_tree.signal_below(self._me, step.kill, signal.SIGKILL)
        process_tree.signal_below(self._me, step.release, signal.SIGCONT)
        for process in asked:
            self._await(process)
        self._ended |= {*step.parents}
        able = [process for process in asked if process.pid in step.handlers]
        for process in able:
            self._handlers.setdefault(process, None)
        if self._exit.stop_requested:
            self._exit.caught |= bool(able)
        return bool(asked)

    def _await(self, process: Identity) -> None:
        """Notice when the process has ended, whichever process reaps it: the selector is woken as far as it can be."""
        if process in self._awaited:
            return
        if len(self._awaited) >= self._most:
            self._awaited[process] = None
            return
        with suppress(ProcessLookupError):
            self._awaited[process] = descriptor = os.pidfd_open(process.pid)
            self._selector.register(descriptor, selectors.EVENT_READ, _do_nothing)

    def _forget(self, process: Identity) -> None:
        descriptor = self._awaited.pop(process)
        if descriptor is not None:
            self._selector.unregister(descriptor)
            os.close(descriptor)

    def _tree(self) -> dict[int, LiveProcess]:
        answering = self._participants.answering()
        return process_tree.tree(self._own(), self._signum, answering, self._look.arguments, self._drivers)

    def _keep(self) -> None:
        """Keep shells and drivers from starting anything more, until the asked processes or the end release them."""
        if self._keeps:
            self._drivers |= process_tree.keep(self._me, self._own, self._signum)

    @property
    def _keeps(self) -> bool:
        by_us = self._target is StopSignalTarget.AUTO and not self._is_session
        return by_us and LEADER in self._ending.running


def _do_nothing(*_: object) -> None:
    pass
