"""Show the demo: as a live picture on a terminal, elsewhere as a line for each event."""

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from ebbtide_protos.v1 import client_pb2
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ebbtide_cli.demo.board import Board
from ebbtide_cli.demo.proof import DemoClaim
from ebbtide_cli.demo.timeline import styles_for, timeline
from ebbtide_cli.describing.facts import state_of
from ebbtide_cli.describing.jobs import gpus_words, progress_words
from ebbtide_cli.terminal.text import printable

LABEL_WIDTH = 12
WIDEST = 100


class View:
    """Show the scenario while it runs. ``gpus`` are UUIDs in the order of their index."""

    def __init__(self, console: Console, gpus: Sequence[str]) -> None:
        self._console = console
        self._gpus = gpus
        self._began = time.monotonic()
        self._states: dict[str, str] = {}
        self._lock = threading.Lock()
        self.board = Board(self._changed)
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._picture, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def tell(self, chapter: str) -> None:
        """Print a chapter's title."""
        self._console.print(Text(f"{self._elapsed()}  {chapter}", "bold"))

    def _changed(self, job: client_pb2.Job) -> None:
        """Print a line for each new state, unless a live picture shows it."""
        words = f"{state_of(job)} on {gpus_words(job)} GPU" if job.gpus_allocated.numerator else state_of(job)
        if self._console.is_terminal or self._states.get(job.job_id) == words:
            return
        self._states[job.job_id] = words
        reason = "" if job.reason in ("running", "completed") else f"  ({printable(job.reason)})"
        self._console.print(Text(f"{self._elapsed()}    {job.spec.name}: {words}{reason}"))

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:5.1f} s"

    def _picture(self) -> Group:
        jobs = list(self.board.jobs().values())
        styles = styles_for([job.spec.name for job in jobs])
        table = Table.grid(padding=(0, 2))
        for job in jobs:
            loss = f"loss {job.progress.loss:.4f}" if job.progress.HasField("loss") else ""
            table.add_row(
                Text(job.spec.name, styles[job.spec.name]),
                state_of(job),
                gpus_words(job),
                progress_words(job),
                loss,
                Text(printable(job.reason), "bright_black"),
            )
        return Group(Text(), timeline(jobs, self._gpus, time.time(), self._width()), Text(), table)

    def _width(self) -> int:
        return max(20, min(WIDEST, self._console.width) - LABEL_WIDTH)

    def show_end(self, jobs: Sequence[client_pb2.Job], claims: Sequence[DemoClaim], seed: int) -> None:
        """Print the final picture, the table of what happened, and the checked claims."""
        console = self._console
        console.print()
        console.print(timeline(jobs, self._gpus, time.time(), self._width()))
        console.print()
        console.print("What happened, in seconds:")
        console.print(_history(jobs, self._gpus))
        console.print()
        for claim in claims:
            mark = Text("✓ holds  ", "green") if claim.holds else Text("✗ FAILS  ", "bold red")
            console.print(mark.append(claim.text, "default").append(f" ({claim.evidence})", "bright_black"))
        console.print(Text(f"\nSeed {seed}: 'ebb demo --seed {seed}' trains the same again."))


def _history(jobs: Sequence[client_pb2.Job], gpus: Sequence[str]) -> Table:
    """Tabulate when each job was submitted, started, asked to suspend, freed its GPUs, resumed and ended, and where.

    Times are in seconds of the demo.
    """
    origin = min((job.submit_time for job in jobs), default=0.0)
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for column in ("job", "submitted", "started", "asked", "freed", "resumed", "ended", "on GPUs"):
        table.add_column(column, justify="left" if column in ("job", "on GPUs") else "right", no_wrap=True)
    for job in jobs:
        stops = list(job.suspensions)
        table.add_row(
            job.spec.name,
            _time(job.submit_time, origin),
            _time(job.start_time, origin),
            ", ".join(_time(stop.requested, origin) for stop in stops) or "-",
            ", ".join(_time(stop.gpu_free, origin) for stop in stops) or "-",
            ", ".join(_time(stop.resumed, origin) for stop in stops) or "-",
            _time(job.end_time, origin),
            " then ".join(_indices(attempt, gpus) for attempt in job.attempts),
        )
    return table


def _time(seconds: float, origin: float) -> str:
    return f"{seconds - origin:.1f}" if seconds else "-"


def _indices(attempt: client_pb2.AttemptSummary, gpus: Sequence[str]) -> str:
    return ",".join(str(gpus.index(gpu.uuid)) for node in attempt.allocation for gpu in node.gpus)
