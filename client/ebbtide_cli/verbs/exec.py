"""``ebb exec``: run a shell or a command inside a running job."""

import os

import click
from ebbtide_protos.v1 import channel_pb2

from ebbtide_cli import interrupts
from ebbtide_cli.channels.client_channel import ChannelLost, exit_code, open_channel
from ebbtide_cli.channels.terminal import converse, has_terminal, pipe, window_size
from ebbtide_cli.commands.completing import job_ids
from ebbtide_cli.commands.verb import examples, known_id, master_option
from ebbtide_cli.errors import USAGE, Failure, code_is_of_job
from ebbtide_cli.submitting.checks import user_name

HUNG_UP = 129
"""Exit code that a shell gives for a process that a hangup ended."""


@click.command(
    options_metavar="[OPTIONS]",
    epilog=examples("ebb exec 17", "ebb exec 17 -- nvidia-smi", "ebb exec 17 -- tar cf - runs | tar xf -"),
)
@click.option("--node", default="", metavar="NAME", help="Node of the job (default: its first).")
@click.option(
    "--tty/--no-tty",
    default=None,
    help="Give the command a terminal (default: if standard input and output are one here).",
)
@click.argument("job_id", metavar="ID", shell_complete=job_ids)
@click.argument("argv", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@master_option
def command(job_id: str, argv: tuple[str, ...], node: str, tty: bool | None, master: str | None) -> int:
    """Start a shell, or CMD, inside a running job: on its GPUs, in its environment and working directory.

    The command ends with the job; how the command ends does not affect the job. Without a terminal, input, output and
    errors are passed on byte for byte. With a terminal, "~." at the beginning of a line hangs up. The exit code is that
    of CMD, or 125 if CMD could not be started.
    """
    terminal = has_terminal() if tty is None else tty
    if terminal and not has_terminal():
        raise Failure("exec: --tty: standard input and output are no terminal", USAGE)
    run = channel_pb2.RunInside(command=argv, terminal=terminal, env=_environment())
    if terminal:
        run.size.CopyFrom(window_size())
    with code_is_of_job():
        id = known_id(master, job_id)
        want = channel_pb2.OpenChannel(job_id=id, node=node, user=user_name(), run=run)
        return interrupts.run(_run(master, want))


async def _run(master: str | None, want: channel_pb2.OpenChannel) -> int:
    async with open_channel(master, want) as channel:
        if not want.run.terminal:
            await pipe(channel)
        elif not await converse(channel):
            return HUNG_UP
        if channel.closed is None:
            raise ChannelLost("the channel ended before the command did")
        return exit_code(channel.closed)


def _environment() -> dict[str, str]:
    """Return the variables that a terminal's programs need."""
    return {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
