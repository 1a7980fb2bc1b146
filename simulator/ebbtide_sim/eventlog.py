"""Writes one JSON line per event, with enough facts to check a simulation independently."""

import json
from typing import Any, Final, TextIO

from ebbtide_core import events as e
from ebbtide_core.events import Event
from ebbtide_core.model.types import WHOLE, Allocation, StopCause

from ebbtide_sim.workload import SimJob

GIB: Final = 2**30


class EventLog:
    """Writes ``{t, event, job, gpus, cpus, mem_gib}`` per line to ``out``; the same run writes the same bytes.

    ``event`` is ``submit``, ``start``, ``preempt`` (at the first request), ``suspend`` (when its allocation is free),
    ``resume``, ``resize`` (a start with another share than before), ``finish`` or ``drop``. ``gpus`` lists
    ``[node, gpu, share]`` of the new allocation, or of the released one for ``suspend`` and ``finish``.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._allocations: dict[str, Allocation] = {}
        self._preempted: set[str] = set()
        """Jobs that were asked to step aside, and have not left."""

    def submitted(self, now: float, job: SimJob, work: float) -> None:
        """Write that ``job`` was submitted."""
        self._write(now, "submit", job.id, None)

    def dropped(self, now: float, job: str, reason: str) -> None:
        """Write that ``job`` will not run (again)."""
        self._write(now, "drop", job, None)

    def computed(self, job: str, attempt: int, seconds: float, work: float, kept: bool) -> None:
        """Write nothing, because the other events imply this."""

    def recorded(self, now: float, event: Event) -> None:
        """Write a line for ``event`` if it is about a job's allocation or its preemption."""
        match event:
            case e.AttemptPlaced(job=job, allocation=allocation):
                before = self._allocations.get(job)
                kind = "start" if before is None else "resume" if before.share == allocation.share else "resize"
                self._allocations[job] = allocation
                self._write(now, kind, job, allocation)
            case e.StopRequested(job=job, cause=StopCause.PREEMPTED) if job not in self._preempted:
                self._preempted.add(job)
                self._write(now, "preempt", job, None)
            case e.AttemptExited(job=job, exit=exit) if exit.stop_requested:  # the simulator frees the room at the exit
                self._preempted.discard(job)
                self._write(now, "suspend", job, self._allocations[job])
            case e.AttemptExited(job=job):
                self._write(now, "finish", job, self._allocations.pop(job))
            case _:
                pass

    def _write(self, now: float, event: str, job: str, allocation: Allocation | None) -> None:
        line: dict[str, Any] = {"t": now, "event": event, "job": job, "gpus": [], "cpus": 0.0, "mem_gib": 0.0}
        if allocation is not None:
            line["gpus"] = [
                [piece.node, gpu.gpu, gpu.share / WHOLE] for piece in allocation.nodes for gpu in piece.gpus
            ]
            line["cpus"] = sum(piece.cpus for piece in allocation.nodes)
            line["mem_gib"] = sum(piece.mem_bytes for piece in allocation.nodes) / GIB
        self._out.write(json.dumps(line, separators=(",", ":")) + "\n")
