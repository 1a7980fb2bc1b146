"""``ebb observe``: record what runs on the GPUs of a node without a scheduler."""

import logging
import select
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ebbtide_cli.cluster import LocalSettings
from ebbtide_cli.commands.verb import DURATION, examples, json_option
from ebbtide_cli.errors import FAILED, USAGE, Failure
from ebbtide_cli.home import Home
from ebbtide_cli.interrupts import stop_signals
from ebbtide_cli.terminal.output import StatusLine, print_json
from ebbtide_cli.terminal.text import plural
from ebbtide_cli.values import format_duration

if TYPE_CHECKING:
    from ebbtide_agent.gpu.backend import GpuBackend
    from ebbtide_agent.observing.recording import Summary

SHORTEST_S = 0.1


@dataclass(frozen=True, slots=True)
class SteadyClock:
    """Unix time that does not jump while it is used; a byte on `stop` asks to stop."""

    stop: int
    offset_s: float = field(default_factory=lambda: time.time() - time.monotonic())

    def now(self) -> float:
        """Return the time in Unix seconds."""
        return time.monotonic() + self.offset_s

    def wait_until(self, at: float) -> bool:
        """Wait until a time; return False if asked to stop meanwhile."""
        return not select.select([self.stop], [], [], max(0.0, at - self.now()))[0]


@click.command(
    epilog=examples(
        "ebb observe --out lab.csv",
        "ebb observe --out lab.csv --every 15s --for 7d --min 300s --anonymous",
        "ebb simulate --workload lab.csv --nodes 1x4 --policy fitgpp",
    )
)
@click.option(
    "--out", metavar="FILE", required=True, type=click.Path(path_type=Path), help="CSV file to write jobs to."
)
@click.option(
    "--every", metavar="TIME", type=DURATION, default="15s", show_default=True, help="Time between two samples."
)
@click.option("--for", "for_s", metavar="TIME", type=DURATION, help="Time to record for (default: until Ctrl-C).")
@click.option("--min", "min_s", metavar="TIME", type=DURATION, default="300s", show_default=True,
              help="Leave out processes that used a GPU for less than this.")  # fmt: skip
@click.option("--commands", is_flag=True, help="Record whole command lines, not only the program's name.")
@click.option("--anonymous", is_flag=True, help="Record a number for each user instead of the name.")
@click.option(
    "--gpus",
    metavar="PROFILE",
    default="auto",
    show_default=True,
    help="GPUs to watch: auto (the real ones), or fake ones.",
)
@click.option(
    "--node",
    metavar="NAME",
    default="",
    help="Node whose fake GPUs to watch (default: the one of 'ebb up', named like the host).",
)
@json_option
def command(
    out: Path,
    every: float,
    for_s: float | None,
    min_s: float,
    commands: bool,
    anonymous: bool,
    gpus: str,
    node: str,
    as_json: bool,
) -> None:
    """Record the processes on this node's GPUs as jobs that 'ebb simulate' can replay; it changes nothing.

    It needs neither a master nor an agent. Stopped and started again with the same FILE, it continues the recording.
    """
    from ebbtide_agent.observing.observe import ObservationPlan, observe
    from ebbtide_agent.observing.recording import CannotRecord, opened, replay_command

    if every < SHORTEST_S:
        raise Failure(f"observe: --every: {every:g} s is less than {SHORTEST_S:g} s", USAGE)
    if not out.absolute().parent.is_dir():
        raise Failure(f"observe: --out {out}: its directory does not exist", USAGE)
    plan = ObservationPlan(every, for_s, commands)
    try:
        with (
            _looked_at(gpus, node) as backend,
            opened(out, backend.gpus(), min_s, anonymous) as recording,
            stop_signals() as stop,
            StatusLine(wanted=not as_json) as line,
        ):
            summary = observe(backend, recording, plan, SteadyClock(stop), lambda s: line.show(*_progress(s)))
    except CannotRecord as error:
        raise Failure(f"observe: {error}") from None
    replay = replay_command(out, summary)
    if as_json:
        print_json(asdict(summary) | {"file": str(out), "replay": replay})
    else:
        _print(out, summary, replay)


@contextmanager
def _looked_at(gpus: str, node: str) -> "Iterator[GpuBackend]":
    """Yield the GPUs, read by a process of their own so that a hanging driver blocks only that; `Failure` if none."""
    from ebbtide_agent.gpu.opening import open_in_process
    from ebbtide_agent.node import node_name

    logging.getLogger("ebbtide_agent").addHandler(logging.NullHandler())  # its log lines are meant for an agent's log
    home = Home.current()
    settings = LocalSettings.remembered(home)
    try:
        name = node_name(node or (settings.node if settings else ""))
        backend = open_in_process(gpus, home.root / "nodes" / name / "gpus", in_use=True)
    except ValueError as error:
        raise Failure(f"observe: {error}", USAGE) from None
    with closing(backend):
        if not backend.gpus():
            raise Failure("observe: there is no GPU to look at ('ebb doctor' says why)", FAILED)
        yield backend


def _progress(summary: "Summary") -> tuple[str, ...]:
    return (
        f"{format_duration(summary.seconds)}: {plural(summary.jobs, 'job')}, {summary.running} of them running,",
        f"{summary.gpu_hours:.1f} GPU-hours of {plural(summary.users, 'user')}; Ctrl-C ends",
    )


def _print(out: Path, summary: "Summary", replay: str) -> None:
    jobs, users = plural(summary.jobs, "job"), plural(summary.users, "user")
    busy = "" if summary.utilisation is None else f", {summary.utilisation:.0%} busy"
    print(f"{out}: {jobs} of {users} in {format_duration(summary.seconds)}")
    print(f"  {summary.gpu_hours:.1f} GPU-hours; of {plural(summary.gpus, 'GPU')} {summary.in_use:.0%} in use{busy}")
    if summary.running:
        print(f"  {summary.running} still ran: recorded as long as they were seen; go on with the same --out")
    if summary.short:
        print(f"  {summary.short} left out: too short")
    if summary.foreign:
        print(f"  {summary.foreign} of processes that this machine does not show (in a container): without a user")
    print(f"What Ebbtide would have made of it:\n  {replay}" if summary.jobs else "Nothing to simulate yet.")
