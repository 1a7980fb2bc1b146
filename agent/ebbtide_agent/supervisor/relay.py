"""Copy what the job reports into the attempt's status, keep it for the next attempt, and tell the agent."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from ebbtide_agent.contract.attempt_dir import AttemptDir
from ebbtide_agent.processes import process_tree
from ebbtide_agent.supervisor.control import AgentConnections
from ebbtide_agent.supervisor.launching.launch import Rank
from ebbtide_agent.supervisor.reports import Reports
from ebbtide_agent.supervisor.status import Status
from ebbtide_agent.supervisor.streams.output import Output

# Least seconds between two messages about progress to the agent.
PROGRESS_S = 0.3


class ProgressRelay:
    """Reads the job's reports and looks at its output; sends progress at most once in `PROGRESS_S` seconds."""

    def __init__(
        self,
        place: AttemptDir,
        leader: Rank,
        ranks: Mapping[int, Rank],
        reports: Reports,
        output: Output,
        status: Status,
        control: AgentConnections,
        own: Callable[[], list[int]],
    ) -> None:
        """`ranks` are the launched processes that run, by pid; `own` lists this process's children in the attempt."""
        self._place = place
        self._leader = leader
        self._ranks = ranks
        self._reports = reports
        self._output = output
        self._status = status
        self._control = control
        self._own = own
        self._reported_at = -math.inf
        self._has_unreported = False  # whether there is progress to send
        self._earlier_cpu_s: float | None = None  # of the programs that its shells had run before its first step
        self._checkpoints_at_stop: int | None = None  # None: no stop was requested
        self.checkpoint_at: float | None = None  # when the first checkpoint after the stop request was reported

    @property
    def next_at(self) -> float:
        """When there is something to do next, on the monotonic clock."""
        return min(self._output.next_at, self._reported_at + PROGRESS_S if self._has_unreported else math.inf)

    def receive(self) -> None:
        """Take in the reports that have arrived."""
        if self._reports.read():
            self.note_checkpoint()
            self._record_imports()
            self._note_first_step()
            self._note_port()
            self._has_unreported = True

    def note_stop(self) -> None:
        """Note a request to stop: a checkpoint that was published before now is no answer to it."""
        self._checkpoints_at_stop = self._reports.checkpoints

    def note_checkpoint(self) -> None:
        """Remember when the first checkpoint after the stop request was reported."""
        before = self._checkpoints_at_stop
        if before is not None and self.checkpoint_at is None and self._reports.checkpoints > before:
            self.checkpoint_at = time.monotonic()

    def note_start(self) -> None:
        """Copy into the status what the first rank has reported of the time until its first step."""
        if self._reports.start is not None:
            earlier_cpu_s = self._earlier_cpu_s or 0.0
            self._status.start = replace(self._reports.start, warm=self._leader.is_warm, earlier_cpu_s=earlier_cpu_s)

    def look_at_output(self) -> None:
        """Look at what was printed, if a look is due, and publish the log rules that were found."""
        if self._output.look(time.monotonic()):
            self._status.log_matches = list(self._output.matches)
            self._control.publish(self._status.to_json())

    def tell_progress(self) -> None:
        """Publish the progress that was reported, if it is due."""
        now = time.monotonic()
        if not self._has_unreported or now < self._reported_at + PROGRESS_S:
            return
        self._has_unreported, self._reported_at = False, now
        reports, status = self._reports, self._status
        status.progress, status.checkpoint, status.sdk = reports.progress, reports.checkpoint, reports.sdk
        self.note_start()
        self._control.publish(self._status.to_json())

    def _note_first_step(self) -> None:
        """Measure the CPU time of what its shells ran before; the next attempt's measure shows if that is repeated."""
        start = self._reports.start
        if start is not None and start.stepped_at and self._earlier_cpu_s is None:
            self._earlier_cpu_s = process_tree.earlier_cpu_s(self._own())

    def _note_port(self) -> None:
        """Record for tunnels the port that the job's server was told to listen on."""
        if self._reports.port is not None:
            with suppress(OSError):
                self._place.record_port(self._reports.port)
            self._reports.port = None

    def _record_imports(self) -> None:
        """Keep for the next attempt what a launched process, and no other of the job's, has reported of its start."""
        imports, status = self._reports.imports, self._status
        rank = None if imports is None else self._ranks.get(imports["pid"])
        if imports is None or rank is None or status.told:
            return
        with suppress(OSError):  # e.g. the disk is full: the next attempt will start cold
            self._place.record_imports(imports)
            status.told = True
