"""Watch an attempt's processes from the moment they run until none is left: one thread around one selector."""

import math
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.contract.intent import Intent
from ebbtide_agent.helper import forking
from ebbtide_agent.helper.answer import NoAnswer
from ebbtide_agent.helper.task import HelperTask
from ebbtide_agent.helper.worker import Worker
from ebbtide_agent.processes import process_tree, procfs
from ebbtide_agent.processes.process_tree import descendants
from ebbtide_agent.supervisor import limits
from ebbtide_agent.supervisor.control import AgentConnections
from ebbtide_agent.supervisor.launching import fake_gpus
from ebbtide_agent.supervisor.launching.launch import Rank
from ebbtide_agent.supervisor.lease import Lease, boottime
from ebbtide_agent.supervisor.leaving.ending import AttemptEnding, DueAction
from ebbtide_agent.supervisor.leaving.leave_request import LeaveRequest
from ebbtide_agent.supervisor.limits import MemoryWatch
from ebbtide_agent.supervisor.relay import ProgressRelay
from ebbtide_agent.supervisor.reports import Reports
from ebbtide_agent.supervisor.sealing.checkpoint_look import CheckpointLook
from ebbtide_agent.supervisor.session_processes import SessionEntry, SessionProcesses
from ebbtide_agent.supervisor.sockets import Sockets
from ebbtide_agent.supervisor.status import Exit, Phase, Status
from ebbtide_agent.supervisor.streams.output import Output
from ebbtide_agent.supervisor.streams.standard_input import InputPipe, StandardInput
from ebbtide_agent.supervisor.swapping import SwapEnd, Swapping
from ebbtide_agent.swap.sequence import SwapOutcome as Outcome

# Seconds between looks at the lease, because a wait does not notice that the machine slept.
_LEASE_LOOK_S = 1.0
# Seconds for what may take long at the end, such as to seal what was written; after a stop, seconds beyond the grace
# period.
_SETTLE_S = 60.0
_SETTLE_AFTER_STOP_S = 1.2
# The same for output on its way to the file of --output.
_OUTPUT_S = 5.0
_OUTPUT_AFTER_STOP_S = 0.8
# Seconds between repetitions of SIGKILL until no process is left.
_SWEEP_S = 0.02
# These must not end a supervisor: its job would be without one. The job does not inherit handlers, unlike SIG_IGN.
_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


T = TypeVar("T")


class Watch:
    """Reaps and kills processes, and drives other parts; `returncodes`, `ending`, `exit` say how the attempt ended."""

    def __init__(
        self,
        intent: Intent,
        signum: int,
        ranks: list[Rank],
        reports: Reports,
        status: Status,
        sockets: Sockets,
        entry: SessionEntry,
        output: Output,
        worker: Worker,
        enforced: bool,
        pipe: InputPipe | None,
    ) -> None:
        """`enforced`: the kernel keeps the attempt to its memory limit, if it has one."""
        self._output = output
        self._worker = worker
        self._intent = intent
        self.signum = signum
        self._ranks = {rank.identity.pid: rank for rank in ranks}
        self._reports = reports
        self._status = status
        self._group = entry.group
        self._me = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._sweeping = False
        self.control = AgentConnections(self._selector, sockets.control, self._obey)
        self._sessions = SessionProcesses(self._selector, entry)
        self._input = None
        if sockets.input is not None and pipe is not None:
            self._input = StandardInput(self._selector, sockets.input, pipe)
        self.ending = AttemptEnding({rank.local_rank for rank in ranks})
        self.exit = Exit()
        self.returncodes: dict[int, int] = {}  # by local rank
        self._is_over = False  # no process of the attempt is left
        self._end_by = math.inf  # the end of the grace period of the stop that was requested
        self._swapping = Swapping(intent, Path(intent.node_dir, "swaps"), self._me, self._selector)
        self._memory = MemoryWatch(intent, enforced, self._selector, self._members)
        self._swap_ends_at = 0.0  # the end of the grace period of the request to swap
        self._out_again_s: float | None = None  # grace period of a request that came while the attempt was moved back
        self.look = CheckpointLook(intent, self._selector, worker)
        how, end = (signum, intent.signal_target, intent.session), (self.ending, self.exit, self.look)
        self.leaving = LeaveRequest(*how, self._ranks, *end, self._selector, sockets.participants, self._own)
        place = AttemptDir.of(Path(intent.node_dir), status.job_id, status.attempt)
        self.relay = ProgressRelay(place, ranks[0], self._ranks, reports, output, status, self.control, self._own)
        term_s = intent.failover_after_s
        self._lease = None if term_s is None else Lease(term_s, intent.grace_s, intent.leased_at)

    def run(self, agents: Sequence[tuple[socket.socket, bytes]]) -> None:
        """Watch until no process of the attempt is left; `agents` are connections with what each has received."""
        wakeup = _signal_pipe()
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: os.read(wakeup, 4096))
        self._selector.register(self._reports.socket, selectors.EVENT_READ, self.relay.receive)
        self.control.publish(self._status.to_json())
        for connection, received in agents:
            self.control.adopt(connection, received)
        self._output.begin(time.monotonic())
        while self._reap() or self._others_live():
            self._act()
            for key, _ in self._selector.select(self._timeout_s()):
                key.data()
            self.relay.look_at_output()
            self.relay.tell_progress()
        self.look.give_up()
        self._memory.close()
        self._sessions.close()
        if self._input is not None:
            self._input.close()
        self.leaving.close()
        self._is_over = True

    def patience_s(self) -> float:
        """Return the seconds that output may take to reach its file, now that no process of the attempt is left."""
        return min(_OUTPUT_S, max(0.0, self._end_by + _OUTPUT_AFTER_STOP_S - time.monotonic()))

    def answer_to(self, task: Callable[..., T], *arguments: Any) -> T | NoAnswer:
        """Run a task in a helper process, when no process of the attempt is left, and return its answer.

        Orders are obeyed meanwhile. Raises the OSError that the task raised.
        """
        asked = HelperTask(task, *arguments, account=self._intent.account, within_s=_SETTLE_S, worker=self._worker)
        self._selector.register(asked, selectors.EVENT_READ, _do_nothing)
        while not asked.receive():
            asked.deadline = min(asked.deadline, self._end_by + _SETTLE_AFTER_STOP_S)
            for key, _ in self._selector.select(max(0.0, asked.deadline - time.monotonic())):
                key.data()
        self._selector.unregister(asked)
        return asked.end()

    def _reap(self) -> bool:
        """Reap the processes that have ended, orphans of the job included; return False if no process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return bool(self._ranks) or self._has_others(forking.unreaped())
            returncode = os.waitstatus_to_exitcode(status)
            rank = self._ranks.pop(pid, None)
            if rank is not None:
                self._note_end(rank, returncode)
            elif (moved := self._swapping.reaped(pid, returncode)) is not None:
                self._note_move(moved)
            elif not forking.note_reaped(pid):
                self._sessions.reaped(pid, returncode)

    def _has_others(self, known: frozenset[int]) -> bool:
        """Return whether there are children besides `known`. The caller knows that there is a child."""
        return not known or bool(set(procfs.children(self._me)) - known)

    def _others_live(self) -> bool:
        """Return whether the attempt's control group has processes that are not children of this one."""
        return self._group is not None and not self._group.is_empty_within(_SWEEP_S)

    def _note_end(self, rank: Rank, returncode: int) -> None:
        rank.ended(returncode)
        returncode = self.leaving.rank_ended(rank.identity, returncode)
        fake_gpus.unregister(self._intent, rank.identity.pid)
        self.returncodes[rank.local_rank] = returncode
        if self._swapping.is_out and not self.exit.swap_failure:
            self.exit.swap_failure = "ended while it was swapped out"
        self.ending.rank_ended(rank.local_rank, returncode != 0, time.monotonic())

    def _note_move(self, moved: SwapEnd) -> None:
        """Report that the attempt left its GPU or is back; if the move failed, stop it, to resume from a checkpoint."""
        ending, reason = moved.result.ending, moved.result.reason
        status, swapping = self._status, self._swapping
        if self._sweeping or not self.ending.running:
            return  # the attempt has ended meanwhile, and only that is reported
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
        self._sessions.kill_late()
        self._end_with_lease()
        now = time.monotonic()
        if not self._sweeping and self._memory.finds_too_much(now):
            self.exit.memory_failure = limits.failure(self._intent)
            self.ending.kill_at = now
        self._end_without_input(now)
        self.leaving.go_on(now, over=self._sweeping)
        handlers_live = self.leaving.handlers_live()
        due = DueAction.KILL if self._sweeping else self.ending.due(now, handlers_live)
        if due is DueAction.SIGNAL:
            if not self.look.goes_on(now):
                self.leaving.begin()
        elif due is DueAction.KILL:
            if not self._sweeping:
                self._sweeping = True
                self.leaving.note_killing(handlers_live)
            if self._group is not None:
                self._group.kill()
            process_tree.kill_below(self._me, forking.unreaped())

    def _end_without_input(self, now: float) -> None:
        """Kill an attempt whose input is lost, because it must not take half of its input for all of it."""
        if self._input is None or self._sweeping or self.exit.stop_requested:
            return
        if failure := self._input.failure(now):
            self.exit.input_failure = failure
            self.ending.kill_at = now

    def _end_with_lease(self) -> None:
        """Stop an attempt whose lease is ending: nothing may be left when the master may take the attempt for over."""
        now = boottime()
        if self._lease is None or not self._lease.is_ending(now):
            return
        self.exit.fenced |= not self.exit.stop_requested
        self._stop_within(self._lease.left_s(now))

    def _members(self) -> list[int]:
        """Return all processes of the attempt, those of sessions included."""
        if self._group is not None:
            return self._group.pids()
        helpers = forking.unreaped()
        return [pid for pid in descendants(self._me) if pid not in helpers]

    def _own(self) -> list[int]:
        """Return this process's children without those of sessions, which are not asked to leave."""
        others = self._sessions.pids | forking.unreaped()
        return [pid for pid in procfs.children(self._me) if pid not in others]

    def _obey(self, order: dict[str, Any]) -> None:
        if self._is_over and order.get("do") not in ("stop", "swap"):
            return
        grace_s, swaps = order.get("grace_s"), order.get("swaps")
        match order.get("do"):
            case "stop" if isinstance(grace_s, int | float) and grace_s >= 0:
                self.exit.fenced |= order.get("fenced") is True and not self.exit.stop_requested
                self._stop_within(float(grace_s))
            case "lease" if self._lease is not None and isinstance(order.get("at"), int | float):
                self._lease.renew(float(order["at"]), boottime())
            case "swap" if swaps == self._swapping.count and isinstance(grace_s, int | float) and grace_s >= 0:
                self._begin_swap(float(grace_s))
            case "resume" if swaps == self._swapping.count and self._swapping.is_out and not self._swapping.busy:
                self._begin_resume()

    def _stop_within(self, grace_s: float) -> None:
        # An attempt that is off its GPU, or being moved, computes nothing and handles no signal.
        elsewhere = self._swapping.is_out or self._swapping.busy
        self._request_stop(0.0 if elsewhere else grace_s)

    def _begin_swap(self, grace_s: float) -> None:
        if self._swapping.busy and self._swapping.is_out:
            self._out_again_s = grace_s  # the attempt is on its way back, and leaves as soon as it is there
        if not self._ranks:  # it is over, or about to be
            self._end_by = min(self._end_by, time.monotonic() + grace_s)
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
        at, now = time.time(), time.monotonic()
        self._end_by = min(self._end_by, now + grace_s)  # holds for an attempt that is over, too
        if self._is_over:
            return  # its end is no answer to a stop that comes now
        self.ending.request_stop(grace_s, now)
        if not self.exit.stop_requested:
            self.relay.receive()  # a checkpoint that was published before now does not answer this request
            self.relay.note_stop()
            self.exit.stop_requested = True
            self.exit.stop_requested_at = at
            self.leaving.prepare(grace_s)

    def note_killed_by_agent(self, fenced: bool) -> None:
        """Note that the agent killed the processes because this one hung, and perhaps never heard of a stop request."""
        self.exit.killed = not self.exit.memory_failure
        if not self.exit.stop_requested:
            self.exit.stop_requested, self.exit.fenced = True, fenced
            self.exit.stop_requested_at = time.time()
            self.ending.stop_requested_at = time.monotonic()
            self.relay.note_stop()

    def _timeout_s(self) -> float | None:
        if self._sweeping:
            return _SWEEP_S
        moments = [self.ending.kill_at, self._sessions.kill_at, self.relay.next_at, self._memory.next_at]
        moments += [self.look.deadline, self.leaving.next_at]
        if self._swapping.deadline is not None:
            moments.append(self._swapping.deadline)
        if self._input is not None and not self.exit.stop_requested:
            moments.append(self._input.lost_at)
        if self._lease is not None:
            moments.append(time.monotonic() + _LEASE_LOOK_S)
        return None if min(moments) == math.inf else max(0.0, min(moments) - time.monotonic())


def _signal_pipe() -> int:
    """Return a descriptor that becomes readable when a child ends."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for signum in _HANDLED:
        signal.signal(signum, _do_nothing)
    return readable


def _do_nothing(*_: object) -> None:
    pass
