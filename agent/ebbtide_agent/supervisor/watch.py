"""The life of an attempt's processes, from the moment they run until none is left: one thread around one selector."""

import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ebbtide_protos.process import Identity

from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.contract.intent import Intent, SignalTarget
from ebbtide_agent.helper import forking
from ebbtide_agent.helper.answer import Unknown
from ebbtide_agent.helper.errand import Errand
from ebbtide_agent.helper.worker import Worker
from ebbtide_agent.processes import process_tree, procfs
from ebbtide_agent.processes.asking import Asking, Process, Step, Tree
from ebbtide_agent.processes.process_tree import descendants
from ebbtide_agent.supervisor import clues, evidence, fake_gpus, limits
from ebbtide_agent.supervisor.control import Control
from ebbtide_agent.supervisor.ending import LEADER, LEAVING, Due, Ending
from ebbtide_agent.supervisor.evidence import Contents
from ebbtide_agent.supervisor.guests import Door, Guests
from ebbtide_agent.supervisor.launch import Rank
from ebbtide_agent.supervisor.lease import Lease, boottime
from ebbtide_agent.supervisor.limits import MemoryWatch
from ebbtide_agent.supervisor.output import Output
from ebbtide_agent.supervisor.participants import Participants
from ebbtide_agent.supervisor.reports import Reports
from ebbtide_agent.supervisor.sockets import Sockets
from ebbtide_agent.supervisor.status import Exit, Phase, Status
from ebbtide_agent.supervisor.swapping import Moved, Swapping
from ebbtide_agent.swap.sequence import Ending as Outcome

# Progress goes to the agent at most this often.
PROGRESS_S = 0.3
# How often a lease is looked at: what waits for time to go by does not see that the machine slept.
_LEASE_LOOK_S = 1.0
# What the look at the checkpoint directory may take before the stop signal is sent.
_LOOK_S = 1.0
# What may take long at the end, such as to seal what was written, gets so much, and after a stop so much more than the
# grace period.
_SETTLE_S = 60.0
_SETTLE_AFTER_STOP_S = 1.2
# The same for what is on its way to the file of --output.
_OUTPUT_S = 5.0
_OUTPUT_AFTER_STOP_S = 0.8
# How often SIGKILL is repeated until no process is left.
_SWEEP_S = 0.02
# These must not end a supervisor: its job would be without one. Handlers, unlike SIG_IGN, are not inherited by it.
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


T = TypeVar("T")


class Watch:
    """Reaps, signals and kills; afterwards `returncodes`, `ending` and `exit` tell how it went."""

    def __init__(
        self,
        intent: Intent,
        signum: int,
        ranks: list[Rank],
        reports: Reports,
        status: Status,
        sockets: Sockets,
        door: Door,
        output: Output,
        worker: Worker,
        enforced: bool,
    ) -> None:
        """`enforced`: the kernel keeps the attempt to its memory, as far as it has to be kept."""
        self._output = output
        self._worker = worker
        self._intent = intent
        self.signum = signum
        self._ranks = {rank.identity.pid: rank for rank in ranks}
        self._leader = ranks[0]
        self._reports = reports
        self._status = status
        self._group = door.group
        self._me = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._asking: Asking | None = None  # once the request to leave was passed on
        # Who was asked to leave and can do it by itself, and with which return code it did, where that is known.
        self._handlers: dict[Identity, int | None] = {}
        self._awaited: dict[Identity, int] = {}  # these and others that were asked, with descriptors that tell the end
        self._ended: set[int] = set()  # because all below them had left
        self._drivers: set[Identity] = set()  # that are kept, though no shells
        self._left_with: list[int] = []  # return codes of those, as far as their shells had not buried them
        self._arguments: dict[int, list[str]] = {}  # of interpreters, when the stop was requested
        self._earlier_cpu_s: float | None = None  # of what its shells have run before its first step
        self._sweeping = False
        self._told_at = -math.inf
        self._untold = False  # progress that waits for its turn
        self.control = Control(self._selector, sockets.control, self._obey)
        self._guests = Guests(self._selector, door)
        self._participants = Participants(self._selector, sockets.participants, self._join)
        self.ending = Ending({rank.local_rank for rank in ranks})
        self.exit = Exit()
        self.returncodes: dict[int, int] = {}  # by local rank
        self.cut_short: frozenset[str] = frozenset()  # checkpoint files that were being written when their writer died
        self.contents_at_stop: Contents | None = None  # None: nobody knows
        self._saves_in = intent.checkpoint_dir
        self._looking: Errand[Any] | None = None  # at the checkpoint directory, before the stop signal is sent
        self._is_over = False  # no process of it is left
        self._end_by = math.inf  # the end of the grace period of the stop that was requested
        self.checkpoint_at: float | None = None  # when the first one after the stop request was published
        self._checkpoints_at_stop = 0
        self._swapping = Swapping(intent, self._me, self._selector)
        self._memory = MemoryWatch(intent, enforced, self._selector, self._members)
        self._swap_ends_at = 0.0  # the end of the grace period of the request to swap
        self._out_again_s: float | None = None  # of one that came while the attempt was on its way back
        term_s = intent.failover_after_s
        self._lease = None if term_s is None else Lease(term_s, intent.grace_s, intent.leased_at)

    def run(self, channel: socket.socket, received: bytes) -> None:
        """Watch until no process of the attempt is left."""
        wakeup = _signal_pipe()
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: os.read(wakeup, 4096))
        self._selector.register(self._reports.socket, selectors.EVENT_READ, self._hear)
        self.control.publish(self._status.to_json())
        self.control.adopt(channel, received)
        self._output.begin(time.monotonic())
        while self._reap() or self._others_live():
            self._act()
            for key, _ in self._selector.select(self._timeout_s()):
                key.data()
            self._look_at_output()
            self._tell_progress()
        self._look_no_more()
        self._memory.close()
        self._guests.close()
        self._participants.close()
        for process in list(self._awaited):
            self._forget(process)
        self._is_over = True

    def patience_s(self) -> float:
        """How long what was printed may take on its way to its file, now that no process of the attempt is left."""
        return min(_OUTPUT_S, max(0.0, self._end_by + _OUTPUT_AFTER_STOP_S - time.monotonic()))

    def answer_to(self, task: Callable[..., T], *arguments: Any) -> T | Unknown:
        """What a helper's process says when no process of the attempt is left; orders are heard meanwhile.

        Raises the OSError that the task raised.
        """
        asked = Errand(task, *arguments, account=self._intent.account, within_s=_SETTLE_S, worker=self._worker)
        self._selector.register(asked, selectors.EVENT_READ, _do_nothing)
        while not asked.hear():
            asked.deadline = min(asked.deadline, self._end_by + _SETTLE_AFTER_STOP_S)
            for key, _ in self._selector.select(max(0.0, asked.deadline - time.monotonic())):
                key.data()
        self._selector.unregister(asked)
        return asked.end()

    def _reap(self) -> bool:
        """Bury whatever has ended, orphans of the job included; False if no process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return bool(self._ranks) or self._has_others(forking.on_their_way())
            returncode = os.waitstatus_to_exitcode(status)
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                self._note_end(rank, returncode)
            elif (moved := self._swapping.reaped(pid, returncode)) is not None:
                self._note_move(moved)
            elif not forking.buried(pid):
                self._guests.reaped(pid, returncode)

    def _has_others(self, known: frozenset[int]) -> bool:
        """Whether there are children but for these; there are some for certain."""
        return not known or bool(set(procfs.children(self._me)) - known)

    def _others_live(self) -> bool:
        """Whether there are processes in the attempt's control group that are nobody's children here."""
        return self._group is not None and not self._group.is_empty_within(_SWEEP_S)

    def _note_end(self, rank: Rank, returncode: int) -> None:
        rank.ended(returncode)
        self._note_left(rank.identity, returncode)
        if rank.identity.pid in self._ended and (returncode < 0 or _is_failure(returncode)):
            # It would have ended as those below it did. That one of them succeeded does not say that all is done: it is
            # read as if it had ended by the signal, also where it had to be killed, or calls it a failure to be ended.
            returncode = max((code for code in self._left_with if code > 0), key=_is_failure, default=-self.signum)
        fake_gpus.unregister(self._intent, rank.identity.pid)
        self.returncodes[rank.local_rank] = returncode
        if self._swapping.is_out and not self.exit.swap_failure:
            self.exit.swap_failure = "ended while it was swapped out"
        self.ending.rank_ended(rank.local_rank, returncode != 0, time.monotonic())

    def _note_move(self, moved: Moved) -> None:
        """The attempt is off its GPU, or back on it, or it has to go on from its last checkpoint."""
        ending, reason = moved.result.ending, moved.result.reason
        status, swapping = self._status, self._swapping
        if self._sweeping or not self.ending.running:
            return  # its end, which came meanwhile, says all
        if ending is Outcome.BROKEN or (moved.out and ending is Outcome.UNTOUCHED):
            way = "out to host memory" if moved.out else "back to its GPU"
            self.exit.swap_failure = f"could not be moved {way}: {reason}"
            runs = ending is Outcome.UNTOUCHED
            self._request_stop(max(0.0, self._swap_ends_at - time.monotonic()) if runs else 0.0)
            return
        status.phase = Phase.SWAPPED if swapping.is_out else Phase.RUNNING
        status.swaps, status.swapped_bytes = swapping.count, swapping.mem_bytes
        status.swap_s, status.swap_note = round(moved.seconds, 3), reason
        self.control.publish(status.to_json())
        grace_s, self._out_again_s = self._out_again_s, None
        if grace_s is not None and not swapping.is_out:
            self._begin_swap(grace_s)

    def _act(self) -> None:
        if (moved := self._swapping.end_if_late()) is not None:
            self._note_move(moved)
        self._guests.kill_late()
        self._end_with_lease()
        now = time.monotonic()
        if not self._sweeping and self._memory.finds_too_much(now):
            self.exit.memory_failure = limits.failure(self._intent)
            self.ending.kill_at = now
        self._ask_further(now)
        handlers_live = self._handlers_live()
        due = Due.KILL if self._sweeping else self.ending.due(now, handlers_live)
        if due is Due.SIGNAL:
            if not self._still_looking(now):
                self._deliver()
        elif due is Due.KILL:
            if not self._sweeping:
                self._sweeping = True
                self._note_killing(handlers_live)
            if self._group is not None:
                self._group.kill()
            process_tree.kill_below(self._me, forking.on_their_way())

    def _end_with_lease(self) -> None:
        """The master may take the attempt for over when its lease ends: nothing of it is to be left then."""
        now = boottime()
        if self._lease is None or not self._lease.is_ending(now):
            return
        self.exit.fenced |= not self.exit.stop_requested
        self._stop_within(self._lease.left_s(now))

    def _handlers_live(self) -> bool:
        return not self.ending.running and any(process.is_alive() for process in self._handlers)

    def _deliver(self) -> None:
        """Pass the request to leave on to those who are to know."""
        now = time.monotonic()
        if self._intent.signal_target is SignalTarget.AUTO:
            self._participants.tell_all(max(0.0, self.ending.kill_at - now))
            self._asking = Asking()
            self._keep()
            tree = self._tree()
            reached = self._perform_first(self._asking.begin(tree, now), tree)
        else:
            reached = self._signal_exactly()
        self.ending.signalled()
        if self.ending.failed_rank is None:
            self.exit.delivered = reached and LEADER in self.ending.running

    def _signal_exactly(self) -> bool:
        """Signal whom the user named; whether that reached anybody."""
        launched = [rank.identity.pid for rank in self._ranks.values()]
        tree = self._tree()
        named = launched if self._intent.signal_target is SignalTarget.LEADER else list(tree)
        handlers = tuple(pid for pid in named if pid in tree and tree[pid].reaction.handles)
        return self._perform_first(Step(signal=tuple(named), release=tuple(tree), handlers=handlers), tree)

    def _perform_first(self, step: Step, tree: Tree) -> bool:
        reached = self._perform(step)
        if self.exit.stop_requested:
            self.exit.clues += clues.of_request(tree, step, self.signum)
        return reached

    def _ask_further(self, now: float) -> None:
        """Ask those whose turn has come: somebody who was asked has ended, or has had time for it."""
        ended = self._note_ended()
        if self._asking is None or self._sweeping or not (ended or now >= self._asking.next_at()):
            return
        if self._keeps:
            candidates = self._asking.may_be_drivers(self._tree())
            self._drivers |= process_tree.keep_drivers(self._me, candidates, self.signum)
        while time.monotonic() < self.ending.kill_at:  # a job may have as many new handlers as it likes
            tree = self._tree()
            if self._note_ended():
                continue  # to end the parent of a process that has just left would be to lose how that ended
            if not (step := self._asking.go_on(tree, now)):
                return
            self._perform(step, others_left=True)

    def _note_ended(self) -> bool:
        """Note how those have ended that were asked, as far as nobody has buried them; whether any has."""
        ended = [process for process in self._awaited if not process.is_alive()]
        for process in ended:
            if (returncode := procfs.returncode(process.pid)) is not None:
                if process.pid not in self._ended:  # how a parent ends that was ended says nothing of those below it
                    self._left_with.append(returncode)
                self._note_left(process, returncode)
            self._forget(process)
        return bool(ended)

    def _note_left(self, process: Identity, returncode: int) -> None:
        if process in self._handlers:
            self._handlers[process] = returncode

    def failed_to_save(self) -> bool:
        """Whether all who were asked, parents of those aside, ended with an exit code that says that they failed.

        Where that of anybody is not known, as of one that another process has buried, nothing is said.
        """
        codes = [code for process, code in self._handlers.items() if process.pid not in self._ended]
        return bool(codes) and all(code is not None and code > 0 and code not in LEAVING for code in codes)

    def _join(self, pid: int) -> None:
        """A process has said that it answers; it was asked already, if anybody was."""
        if self._asking is not None:
            self._perform(self._asking.joined(self._tree(), pid, time.monotonic()))

    def _perform(self, step: Step, *, others_left: bool = False) -> bool:
        """Whether it reached anybody. Who is to be told was told: all who take part are, at once."""
        dying = [pid for pid in (*step.signal, *step.kill) if pid not in step.handlers]
        self.cut_short |= self._being_written(dying, others_left)
        asked = [process for pid in step.tell if (process := Identity.of(pid)) is not None]
        asked += process_tree.signal_below(self._me, step.signal, self.signum)
        process_tree.signal_below(self._me, step.kill, signal.SIGKILL)
        process_tree.signal_below(self._me, step.release, signal.SIGCONT)
        for process in asked:
            self._await(process)
        self._ended |= {*step.parents}
        able = [process for process in asked if process.pid in step.handlers]
        for process in able:
            self._handlers.setdefault(process, None)
        if self.exit.stop_requested:
            self.exit.caught |= bool(able)
        return bool(asked)

    def _await(self, process: Identity) -> None:
        """Look as soon as it has ended, whoever buries it."""
        if process not in self._awaited:
            with suppress(ProcessLookupError):
                self._awaited[process] = descriptor = os.pidfd_open(process.pid)
                self._selector.register(descriptor, selectors.EVENT_READ, _do_nothing)

    def _forget(self, process: Identity) -> None:
        descriptor = self._awaited.pop(process)
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _tree(self) -> dict[int, Process]:
        answering = self._participants.answering()
        return process_tree.tree(self._own(), self.signum, answering, self._arguments, self._drivers)

    def _members(self) -> list[int]:
        """All processes of the attempt, guests too."""
        if self._group is not None:
            return self._group.pids()
        helpers = forking.on_their_way()
        return [pid for pid in descendants(self._me) if pid not in helpers]

    def _own(self) -> list[int]:
        """Children of this process, without guests: they hear of the end by its coming."""
        others = self._guests.pids | forking.on_their_way()
        return [pid for pid in procfs.children(self._me) if pid not in others]

    def _note_killing(self, handlers_live: bool) -> None:
        """Those who are left will die: note whether that is early, and what they are writing."""
        if self.ending.stop_requested_at is None:
            return
        died = bool(self.ending.running or handlers_live)
        self.exit.killed = died and not self.exit.memory_failure
        if self.exit.killed:
            self.exit.clues += clues.of_killing(self._tree(), {process.pid for process in self._awaited})
        self.cut_short |= self._being_written(descendants(self._me), not died)

    def _being_written(self, pids: list[int], others_left: bool) -> frozenset[str]:
        """Checkpoint files that are cut short when these die.

        Helpers of one who left by itself may have had files open all the time; new ones are saves.
        """
        writing = evidence.being_written(self._saves_in, pids)
        before = frozenset() if self.contents_at_stop is None else self.contents_at_stop.paths()
        return writing - before if others_left else writing

    def _obey(self, order: dict[str, Any]) -> None:
        if self._is_over and order.get("do") != "stop":
            return
        grace_s, swaps = order.get("grace_s"), order.get("swaps")
        match order.get("do"):
            case "stop" if isinstance(grace_s, int | float) and grace_s >= 0:
                self._stop_within(float(grace_s))
            case "lease" if self._lease is not None and isinstance(order.get("at"), int | float):
                self._lease.renew(float(order["at"]), boottime())
            case "swap" if swaps == self._swapping.count and isinstance(grace_s, int | float) and grace_s >= 0:
                self._begin_swap(float(grace_s))
            case "resume" if swaps == self._swapping.count and self._swapping.is_out and not self._swapping.busy:
                self._begin_resume()

    def _stop_within(self, grace_s: float) -> None:
        # Whoever is out, or on the way, computes nothing and hears no signal.
        elsewhere = self._swapping.is_out or self._swapping.busy
        self._request_stop(0.0 if elsewhere else grace_s)

    def _begin_swap(self, grace_s: float) -> None:
        if self._swapping.busy and self._swapping.is_out:
            self._out_again_s = grace_s  # it is on its way back, and leaves as soon as it is there
        if self._swapping.busy or self._swapping.is_out or self.exit.stop_requested or not self._ranks:
            return
        self._swap_ends_at = time.monotonic() + grace_s
        try:
            self._swapping.begin_out(grace_s)
        except OSError as error:
            self.exit.swap_failure = f"could not be moved out to host memory: {error}"
            self._request_stop(grace_s)

    def _begin_resume(self) -> None:
        try:
            self._swapping.begin_back()
        except OSError as error:
            self.exit.swap_failure = f"could not be moved back to its GPU: {error}"
            self._request_stop(0.0)

    def _request_stop(self, grace_s: float) -> None:
        now = time.monotonic()
        self._end_by = min(self._end_by, now + grace_s)  # first: whatever else happens, this holds
        if self._is_over:
            return  # it is no answer to a stop that comes now
        self.ending.request_stop(grace_s, now)
        if not self.exit.stop_requested:
            self._hear()  # what was published before now does not answer this request
            self._checkpoints_at_stop = self._reports.checkpoints
            self.exit.stop_requested = True
            self.exit.stop_requested_at = time.time()
            self._begin_to_look(grace_s)

    def _begin_to_look(self, grace_s: float) -> None:
        """Find out what is in the checkpoint directory before anybody is asked, while no shell begins anything more."""
        if grace_s == 0.0:
            return  # nobody is to write anything any more
        self._keep()
        within_s = min(_LOOK_S, grace_s / 2)
        with suppress(OSError):
            asked = str(self._intent.checkpoint_dir), process_tree.interpreters(self._own())
            looking = Errand(
                evidence.look, *asked, account=self._intent.account, within_s=within_s, worker=self._worker
            )
            self._looking = looking
            self._selector.register(looking, selectors.EVENT_READ, self._hear_of_contents)

    def _keep(self) -> None:
        """Shells and drivers are to begin nothing more: they are released by those who are asked, or by the end."""
        if self._keeps:
            self._drivers |= process_tree.keep(self._me, self._own, self.signum)

    @property
    def _keeps(self) -> bool:
        by_us = self._intent.signal_target is SignalTarget.AUTO and not self._intent.session
        return by_us and LEADER in self.ending.running

    def _still_looking(self, now: float) -> bool:
        if self._looking is not None and now >= self._looking.deadline:
            self._look_no_more()
        return self._looking is not None

    def _hear_of_contents(self) -> None:
        if self._looking is not None and self._looking.hear():
            self._selector.unregister(self._looking)
            looking, self._looking = self._looking, None
            with suppress(OSError, LookupError, TypeError, ValueError):
                found = looking.end()
                if not isinstance(found, Unknown):
                    self.contents_at_stop = Contents.from_json(found["files"])
                    self._saves_in = Path(found["real"])
                    self._arguments = {int(pid): list(map(str, of)) for pid, of in found["arguments"].items()}

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._selector.unregister(self._looking)
            self._looking.drop()
            self._looking = None

    def _hear(self) -> None:
        if self._reports.read():
            self.note_checkpoint()
            self._note_told()
            self._note_first_step()
            self._note_port()
            self._untold = True

    def _note_first_step(self) -> None:
        """Measure what its shells have run before: whether a resume repeats that, shows when it is measured again."""
        start = self._reports.start
        if start is not None and start.stepped_at and self._earlier_cpu_s is None:
            self._earlier_cpu_s = process_tree.earlier_cpu_s(self._own())

    def _note_port(self) -> None:
        """Keep the port that its server was told to listen on, for tunnels."""
        if self._reports.port is not None:
            with suppress(OSError):
                self._place().record_port(self._reports.port)
            self._reports.port = None

    def _place(self) -> AttemptDir:
        return AttemptDir.of(Path(self._intent.node_dir), self._status.job_id, self._status.attempt)

    def _note_told(self) -> None:
        """Keep for the next attempt what a launched process, and no other of the job's, has said of its start."""
        told, status = self._reports.told, self._status
        rank = None if told is None else self._ranks.get(told["pid"])
        if told is None or rank is None or status.told:
            return
        with suppress(OSError):  # e.g. the disk is full: the next attempt will start cold
            self._place().record_told(told)
            status.told = True

    def note_start(self) -> None:
        """Take over what the first rank has said of the way to its first step."""
        if self._reports.start is not None:
            earlier_cpu_s = self._earlier_cpu_s or 0.0
            self._status.start = replace(self._reports.start, warm=self._leader.is_warm, earlier_cpu_s=earlier_cpu_s)

    def note_checkpoint(self) -> None:
        """Remember when the first checkpoint after the stop request was reported."""
        asked = self.exit.stop_requested
        if asked and self.checkpoint_at is None and self._reports.checkpoints > self._checkpoints_at_stop:
            self.checkpoint_at = time.monotonic()

    def note_killed_by_agent(self, fenced: bool) -> None:
        """The agent killed what this process, which hung, did not; maybe it never heard that a stop was requested."""
        self.exit.killed = not self.exit.memory_failure
        if not self.exit.stop_requested:
            self.exit.stop_requested, self.exit.fenced = True, fenced
            self.exit.stop_requested_at = time.time()
            self.ending.stop_requested_at = time.monotonic()
            self._checkpoints_at_stop = self._reports.checkpoints

    def _look_at_output(self) -> None:
        if self._output.look(time.monotonic()):
            self._status.log_matches = list(self._output.matches)
            self.control.publish(self._status.to_json())

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if not self._untold or now < self._told_at + PROGRESS_S:
            return
        self._untold, self._told_at = False, now
        self._status.progress, self._status.checkpoint = self._reports.progress, self._reports.checkpoint
        self.note_start()
        self.control.publish(self._status.to_json())

    def _timeout_s(self) -> float | None:
        if self._sweeping:
            return _SWEEP_S
        untold_at = self._told_at + PROGRESS_S if self._untold else math.inf
        moments = [self.ending.kill_at, self._guests.kill_at, self._output.next_at, untold_at, self._memory.next_at]
        if self._looking is not None:
            moments.append(self._looking.deadline)
        if self._asking is not None:
            moments.append(self._asking.next_at())
        if self._swapping.deadline is not None:
            moments.append(self._swapping.deadline)
        if self._lease is not None:
            moments.append(time.monotonic() + _LEASE_LOOK_S)
        return None if min(moments) == math.inf else max(0.0, min(moments) - time.monotonic())


def _signal_pipe() -> int:
    """A descriptor that becomes readable when a child ends."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for signum in _HANDLED:
        signal.signal(signum, _do_nothing)
    return readable


def _is_failure(returncode: int) -> bool:
    """Whether it says that something failed, and not only that it left."""
    return returncode > 0 and returncode not in LEAVING


def _do_nothing(*_: object) -> None:
    pass
