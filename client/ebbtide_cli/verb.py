"""List all verbs, and define what they share: lazy loading, common options, argument types."""

import os
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, TypeVar

import click
from ebbtide_protos.quantities import LONGEST, abbreviated, parse_duration, parse_size

from ebbtide_cli.completing import VARIABLE, complete, job_ids
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.values import parse_cpus, parse_gpus, parse_nodes, parse_setting

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Value = TypeVar("Value")

VERBS: Final = {
    "Cluster": {
        "up": "Start a whole cluster on this machine",
        "down": "Suspend all jobs and stop the cluster of this machine",
        "demo": "Watch real training make room, resume and change size",
        "master": "Run the master in the foreground",
        "agent": "Run a node's agent in the foreground",
        "fake": "Break fake GPUs on purpose",
        "nodes": "Show nodes and GPUs",
        "node": "Let nodes join, drain them, put them back into service, or declare them dead",
        "top": "Watch GPUs, memory, jobs and the queue",
        "reserve-gpus": "Reserve GPUs for one user from one time to another",
        "reservations": "Show which GPUs are reserved for whom, and when",
        "events": "Show what happened in the cluster",
        "usage": "Sum up GPU hours, and how much of them was lost or idle",
        "completion": "Make the shell complete verbs, options and ids",
        "doctor": "Check this node, and say what to do about each problem",
    },
    "People": {
        "login": "Log in to a master, on this or another machine",
        "logout": "Forget a login",
        "whoami": "Show which user the master takes you for",
        "user": "Manage who may use the cluster, and what they may do",
        "token": "Create, list and revoke the tokens that people log in with",
    },
    "Jobs": {
        "submit": "Queue a job",
        "templates": "List named sets of options for 'ebb submit'",
        "ls": "List jobs",
        "show": "Show everything about one job",
        "explain": "Say why a job waits, and when it may start",
        "story": "Show every event of one job",
        "logs": "Print a job's output",
        "wait": "Wait until jobs have finished",
        "notify": "Send a test notification",
    },
    "Interactive": {
        "run": "Queue a command and follow it to its end",
        "shell": "Open a shell on a node, with GPUs of its own",
        "exec": "Start a shell or a command inside a running job",
        "notebook": "Start Jupyter on a node, and open a tunnel to it",
        "tensorboard": "Start TensorBoard on jobs' files, and open a tunnel to it",
        "tunnel": "Reach a port that a job listens on",
        "cp": "Fetch a job's files from its node",
    },
    "Studies": {
        "simulate": "Try policies on workloads, and re-run the papers' experiments",
        "replay": "Simulate a cluster's past under another policy",
        "observe": "Record what runs on a node outside the cluster, for a simulation",
        "reserve": "Compute how long to reserve for a job of unknown run time",
    },
    "Changes": {
        "suspend": "Checkpoint jobs and free their GPUs until 'ebb resume'",
        "resume": "Resume suspended jobs",
        "drill": "Suspend and resume a job, to test whether it saves and continues",
        "resize": "Give jobs another number of GPUs",
        "requeue": "Put jobs back into the queue, or submit them again",
        "set": "Give jobs another priority or weight, and arrays other limits",
        "cancel": "End jobs for good",
        "rm": "Remove finished jobs, with their logs and checkpoints",
        "hold": "Keep waiting jobs from starting",
        "release": "Let held jobs start",
    },
}
"""Every verb with one line of help, so that ``ebb --help`` imports no verb; ``x-y`` is ``verbs/x_y.command``."""


MEANT: Final = {
    **dict.fromkeys(("kill", "stop", "abort", "scancel"), "cancel"),
    **dict.fromkeys(("delete", "del", "remove"), "rm"),
    **dict.fromkeys(("pause", "preempt", "checkpoint"), "suspend"),
    **dict.fromkeys(("continue", "unpause", "unsuspend"), "resume"),
    **dict.fromkeys(("ps", "list", "jobs", "queue", "squeue", "qstat", "status"), "ls"),
    **dict.fromkeys(("sbatch", "qsub", "start", "queue-up"), "submit"),
    **dict.fromkeys(("srun", "exec-job"), "run"),
    **dict.fromkeys(("sinfo", "gpus", "hosts", "nvidia-smi"), "nodes"),
    **dict.fromkeys(("describe", "info", "inspect"), "show"),
    **dict.fromkeys(("log", "tail", "output"), "logs"),
    **dict.fromkeys(("why",), "explain"),
    **dict.fromkeys(("restart", "rerun", "retry"), "requeue"),
    **dict.fromkeys(("scale",), "resize"),
}
"""Verbs of other tools, and the verb here that does the same."""


class Verbs(click.Group):
    """A group of verbs that suggests a verb if there is none of the given name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb as click does, with an error message of our own."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from difflib import get_close_matches  # most know what they want

            verbs = self.list_commands(ctx)
            meant = [verb for verb in (MEANT.get(args[0]),) if verb in verbs]
            close = meant or get_close_matches(args[0][:LONGEST], verbs, n=1)
            instead = f"did you mean {close[0]!r}?" if close else f"'{ctx.command_path} --help' lists them"
            raise click.UsageError(f"there is no verb {abbreviated(args[0])!r}: {instead}", ctx)
        return super().resolve_command(ctx, args)


class VerbGroup(Verbs):
    """A group that imports a verb only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all verbs in the order in which the help shows them."""
        return [name for section in VERBS.values() for name in section]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb and return its command; None for an unknown verb."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = import_module(f"ebbtide_cli.verbs.{cmd_name.replace('-', '_')}").command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return the verbs that begin with ``incomplete``; click would import all of them for their help."""
        from click.shell_completion import CompletionItem

        verbs = {name: help for section in VERBS.values() for name, help in section.items()}
        found = [CompletionItem(name, help=help) for name, help in verbs.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs by section."""
        for title, section in VERBS.items():
            with formatter.section(title):
                formatter.write_dl(list(section.items()))


def argument_type(name: str, parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Make an option type out of a parser that raises ``ValueError``: a refused value is a usage error."""

    def convert(text: str) -> Value:
        try:
            return parse(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    convert.__name__ = name
    return convert


def _job_id(text: str) -> str:
    context = click.get_current_context()
    if context.resilient_parsing:  # a shell asks for completions
        return text
    master = context.params.get("master")  # the option is eager, so it is known by now
    return known_id(master if isinstance(master, str) else None, text)


def parse_job_id(text: str) -> str:
    """Check the id of a job or array; report an id that is not valid as unknown, with that exit code."""
    if len(text) > 40 or not re.fullmatch(r"[0-9]+(\.[0-9]+(-[0-9]+)?)?", text):
        raise Failure(f"no job {abbreviated(text)!r}: ids are numbers such as 17, or @ for your last one")
    return text


def known_id(master: str | None, text: str) -> str:
    """Return the id that ``text`` stands for; if it begins with ``@``, ask the master once."""
    if not text.startswith("@"):
        return parse_job_id(text)
    if not re.fullmatch(r"@(~[0-9]{1,4})?(\.[0-9]{1,9}(-[0-9]{1,9})?)?", text):
        raise Failure(f"no job {abbreviated(text)!r}: your last one is @, the one before @~1, and a task of it @.3")
    from ebbtide_protos.v1 import client_pb2

    from ebbtide_cli.connection import ask, connected

    with connected(master) as stub:
        return ask(stub.ShowJob, client_pb2.JobRequest(job_id=text)).job_id


DURATION: Final = argument_type("duration", parse_duration)
SIZE: Final = argument_type("size", parse_size)
GPUS: Final = argument_type("gpus", parse_gpus)
NODES: Final = argument_type("nodes", parse_nodes)
CPUS: Final = argument_type("cpus", parse_cpus)
SETTING: Final = argument_type("key=value", parse_setting)
JOB_ID: Final = argument_type("id", _job_id)

master_option: Final = click.option(
    "--master",
    metavar="HOST:PORT|unix:HOME,...",
    is_eager=True,
    help=(
        "Address of the master, and of its standbys (default: EBB_MASTER, else the master in EBB_HOME; "
        "if EBB_HOME is not set, the last login)."
    ),
)
json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
id_argument: Final = click.argument("job_id", metavar="ID", type=JOB_ID, shell_complete=job_ids)
ids_argument: Final = click.argument(
    "job_ids", metavar="ID...", type=JOB_ID, nargs=-1, required=True, shell_complete=job_ids
)

node_argument: Final = click.argument("name", metavar="NODE")


def examples(*lines: str) -> str:
    """Format the examples at the end of a verb's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def _print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        click.echo(f"ebbtide {version('ebbtide')}")
        ctx.exit()


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=examples("ebb up", "ebb submit --gpus 2 -- python train.py", "ebb ls", "ebb <verb> --help"),
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
@click.pass_context
def ebb(ctx: click.Context) -> None:
    """Share GPUs: jobs that suspend, resume and change size."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run one verb and return its exit code; usage errors become `Failure`."""
    if wanted := os.environ.get(VARIABLE):
        return complete(ebb, wanted)
    # click's own `main` is not used: it has its own handling of a closed pipe and of an interrupt.
    try:
        with ebb.make_context("ebb", list(arguments)) as context:
            code: int | None = ebb.invoke(context)
            return code or 0
    except click.exceptions.Exit as exit:
        return exit.exit_code
    except click.Abort:  # at a question
        raise KeyboardInterrupt from None
    except click.UsageError as error:
        where = f"{error.ctx.info_name}: " if error.ctx and error.ctx.parent else ""
        raise Failure(f"{where}{error.format_message()}", USAGE) from None
    except click.ClickException as error:
        raise Failure(error.format_message(), USAGE) from None
