"""``ebb shell``: open a shell on a node, with GPUs of its own."""

import os
import pwd
from typing import Any

import click
from ebbtide_core.model.choices import JobKind
from ebbtide_protos.v1 import channel_pb2

from ebbtide_cli import interrupts
from ebbtide_cli.channels.client_channel import exit_code, open_channel
from ebbtide_cli.channels.terminal import converse, has_terminal, window_size
from ebbtide_cli.channels.waiting import wait_until_it_runs
from ebbtide_cli.commands.verb import examples, known_id, master_option
from ebbtide_cli.errors import OK, USAGE, Failure, code_is_of_job
from ebbtide_cli.submitting.checks import user_name
from ebbtide_cli.submitting.command import SubmitCommand
from ebbtide_cli.submitting.interactive import idle_option, interactive_spec, queue
from ebbtide_cli.submitting.job import job_options
from ebbtide_cli.terminal.output import complain


@click.command(
    cls=SubmitCommand,
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
    epilog=examples(
        "ebb shell", "ebb shell --gpus 2 --time 4h", "ebb shell --cpu-only -- ipython", "ebb shell --attach 17"
    ),
)
@click.argument("argv", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--attach",
    metavar="ID",
    help="Attach to a shell that is running already; it may be open elsewhere, too.",
)
@idle_option
@job_options
@master_option
def command(argv: tuple[str, ...], attach: str | None, master: str | None, **given: Any) -> int:
    """Open a shell on a node with GPUs of its own (default: 1), and return its exit code.

    It runs in this directory and environment, and is not preempted. "~." at the beginning of a line detaches; the shell
    runs on, as after a lost connection, and 'ebb shell --attach ID' returns to it. Ctrl-C cancels it while it waits.
    """
    if not has_terminal():
        raise Failure("shell: standard input and output are no terminal: 'ebb run' is for commands", USAGE)
    with code_is_of_job():
        job_id = _begin(master, argv, given) if attach is None else known_id(master, attach)
        session = channel_pb2.AttachSession(size=window_size())
        want = channel_pb2.OpenChannel(job_id=job_id, user=user_name(), session=session)
        return interrupts.run(_attach(master, want))


def _begin(master: str | None, argv: tuple[str, ...], given: dict[str, Any]) -> str:
    """Queue a shell, wait until it runs, and return its id."""
    term = os.environ.get("TERM", "")
    given["variables"] = (*given["variables"], *([f"TERM={term}"] if term else []))
    job_id = queue(master, interactive_spec(given, JobKind.SHELL, argv or (_own_shell(),), "shell"))
    complain(f"job {job_id}: a shell; \"~.\" leaves it, 'ebb shell --attach {job_id}' comes back")
    wait_until_it_runs(master, job_id)
    return job_id


async def _attach(master: str | None, want: channel_pb2.OpenChannel) -> int:
    again = f"'ebb shell --attach {want.job_id}' comes back"
    attached = False
    try:
        async with open_channel(master, want) as channel:
            attached = True
            if await converse(channel):
                return exit_code(channel.closed)
    except Failure as failure:
        if not attached:
            raise
        raise Failure(f"{failure.message}; if job {want.job_id} still runs, {again}") from None
    complain(f"left; job {want.job_id} goes on: {again}, 'ebb cancel {want.job_id}' ends it")
    return OK


def _own_shell() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    except KeyError:
        return "/bin/sh"
