"""``ebb agent pilot``: run the agent of a node that another scheduler lends."""

import asyncio
import getpass
import os
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ebbtide_cli import interrupts
from ebbtide_cli.commands.sections import SectionedCommand, help_all_option
from ebbtide_cli.commands.verb import DURATION, examples
from ebbtide_cli.errors import FAILED, USAGE, Failure
from ebbtide_cli.terminal.output import complain
from ebbtide_cli.values import format_duration
from ebbtide_cli.verbs.agent_options import DAILY, SECTIONS, agent_options, with_options

if TYPE_CHECKING:
    from ebbtide_protos.invitation import Invitation

JOINS_S: Final = 600.0
"""Seconds for which a pilot tries to join a master that is away."""
AGAIN_S: Final = 5.0
"""Seconds between two tries."""


class _PilotCommand(SectionedCommand):
    def sections(self) -> Mapping[str, Sequence[str]]:
        return {"Loan": ("--idle", "--notice", "--invitation"), **SECTIONS}

    def daily(self) -> Container[str]:
        return {"--idle", "--notice", "--invitation", *DAILY}


@click.command(
    "pilot",
    cls=_PilotCommand,
    epilog=examples(
        "srun ebb agent pilot --pool hpc --idle 5m",
        "srun ebb agent pilot --invitation ~/loan.txt --checkpoint-root /shared/ebbtide",
        "ebb agent pilot --name spot7 --ends-in 8h --idle 10m --notice 2m",
    ),
)
@click.option(
    "--idle", metavar="TIME", type=DURATION, help="Give the node back when no job has been on it for this long."
)
@click.option(
    "--notice",
    metavar="TIME",
    type=DURATION,
    default="20s",
    show_default=True,
    help="How long the lender leaves the node after SIGTERM; Slurm is asked.",
)
@click.option(
    "--invitation",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Join with the invitation in this file, which is removed then if it can be ('ebb node invite' prints one).",
)
@with_options
@help_all_option
def pilot(idle: float | None, notice: float, invitation: Path | None, **given: Any) -> int:
    """Run the agent of a node that another scheduler lends, until that scheduler wants it back.

    In a step of a Slurm job, it offers the GPUs, CPUs and memory of that step until the job ends. On SIGTERM, as when
    Slurm preempts the job, and before the end, its jobs save and go on elsewhere; then the agent ends.
    """
    from ebbtide_agent.main import run
    from ebbtide_agent.pilot.pilot import Lent
    from ebbtide_agent.pilot.slurm import end_of
    from ebbtide_agent.pilot.slurm import step as slurm_step

    options = agent_options(given)
    try:
        step = slurm_step(os.environ)
    except ValueError as error:
        raise Failure(f"agent pilot: {error}", USAGE) from None
    if step is not None:
        until = options.until or step.until or interrupts.run(end_of(step.job))
        options = replace(
            options,
            name=options.name or step.node_name,
            cpus=step.cpus if options.cpus is None else options.cpus,
            mem_bytes=step.mem_bytes if options.mem_bytes is None else options.mem_bytes,
            until=until,
            owner=options.owner or step.user or getpass.getuser(),
        )
    if invitation is not None:
        _join(invitation, options.name, options.until)
    with interrupts.unhandled():
        return run(replace(options, lent=Lent(options.owner, step, idle, notice)))


def _join(file: Path, name: str, until: float | None) -> None:
    """Join with the invitation in ``file`` and try to remove it, unless the node has joined already. Raises Failure.

    A master that is away is waited for, but not after ``until``, when the node ends.
    """
    from ebbtide_agent.link import joined
    from ebbtide_agent.link.joining import JoinError
    from ebbtide_agent.node import node_name
    from ebbtide_machine.place import NotTrusted, check_file
    from ebbtide_protos.invitation import decode

    from ebbtide_cli.home import Home

    try:
        node = node_name(name)
        node_dir = Home.current().root / "nodes" / node
        if joined.load(node_dir) is not None:
            return
        check_file(file)
        facts = file.stat()
        if facts.st_mode & (0o037 if facts.st_uid == 0 else 0o077):  # root has chosen the group that may read its file
            raise NotTrusted(f"others may read it: chmod 600 {file}")
        wanted = decode(file.read_text())
    except (NotTrusted, OSError, ValueError) as error:
        raise Failure(f"agent pilot: --invitation {file}: {error}", USAGE) from None
    node_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        left_s = JOINS_S if until is None else min(JOINS_S, until - time.time())
        with interrupts.sigterm_too():  # the first process of a container is not ended by it otherwise
            interrupts.run(_join_in_time(wanted, node, node_dir, left_s))
    except JoinError as error:
        raise Failure(f"agent pilot: {error}", FAILED) from None
    with suppress(OSError):  # it may be in a place that nobody can write to; it has been used up anyway
        file.unlink()


async def _join_in_time(wanted: "Invitation", node: str, node_dir: Path, left_s: float) -> None:
    """Join, and try again for ``left_s`` seconds while the master is away. Raises JoinError."""
    from ebbtide_agent.link.joining import MasterAwayError, join

    give_up_at, said = time.monotonic() + left_s, ""
    while True:
        try:
            await join(wanted, node, node_dir)
        except MasterAwayError as error:
            left_s = give_up_at - time.monotonic()
            if left_s < AGAIN_S:
                raise
            if (words := str(error)) != said:
                complain(f"agent pilot: {words}; it tries again for {format_duration(left_s)}")
                said = words
        else:
            return
        await asyncio.sleep(AGAIN_S)
