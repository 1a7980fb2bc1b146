"""Define what verbs share: lazy loading, common options, argument types."""

import gc
import os
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from ebbtide_protos.quantities import abbreviated, parse_duration, parse_size

from ebbtide_cli import COMPLETION
from ebbtide_cli.commands.completing import complete, job_ids
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.overview import VERBS, WIDEST, core, overview, release
from ebbtide_cli.values import parse_cpus, parse_gpus, parse_nodes, parse_setting

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ebbtide_cli.masters.address import Address

Value = TypeVar("Value")

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
    **dict.fromkeys(("web", "ui", "gui"), "dashboard"),
    **dict.fromkeys(("why",), "explain"),
    **dict.fromkeys(("restart", "rerun", "retry"), "requeue"),
    **dict.fromkeys(("scale",), "resize"),
    **dict.fromkeys(("doc", "man", "manual", "help"), "docs"),
}
"""Verbs of other tools, and the verb here that does the same."""


class Verbs(click.Group):
    """A group of verbs that suggests a verb if there is none of the given name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb as click does, with an error message of our own."""
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            from ebbtide_core.model.spelling import did_you_mean  # most know what they want

            verbs = self.list_commands(ctx)
            meant = MEANT.get(args[0], args[0])
            instead = did_you_mean(meant if meant in verbs else args[0], verbs)
            instead = instead or f": '{ctx.command_path} --help' lists them"
            raise click.UsageError(f"there is no verb {abbreviated(args[0])!r}{instead}", ctx)
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
        if not gc.isenabled():  # see `main`
            gc.freeze()
            gc.enable()
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return the verbs that begin with ``incomplete``; click would import all of them for their help."""
        from click.shell_completion import CompletionItem

        verbs = {name: help for section in VERBS.values() for name, help in section.items()}
        found = [CompletionItem(name, help=help) for name, help in verbs.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs by section."""
        formatter.write(overview(formatter.width))


class OneOf(click.Choice):  # type: ignore[type-arg]  # it takes none before click 8.2
    """Accept one of several words, and suggest one for a word that is misspelt."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            from ebbtide_core.model.spelling import none_of  # most words are right

            raise click.BadParameter(none_of(str(value), self.choices), ctx, param) from None


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


def known_id(master: "str | Address | None", text: str) -> str:
    """Return the id that ``text`` stands for; if it begins with ``@``, ask the master once."""
    if not text.startswith("@"):
        return parse_job_id(text)
    if not re.fullmatch(r"@(~[0-9]{1,4})?(\.[0-9]{1,9}(-[0-9]{1,9})?)?", text):
        raise Failure(f"no job {abbreviated(text)!r}: your last one is @, the one before @~1, and a task of it @.3")
    from ebbtide_protos.v1 import client_pb2

    from ebbtide_cli.masters.connection import ask, connected

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
        click.echo(f"{release()} ({core()})")
        ctx.exit()


@click.group(
    cls=VerbGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version)
@click.pass_context
def ebb(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def usage_words(error: click.UsageError) -> str:
    """Return what is wrong with the usage, in one line; for a misspelt option, say which one was meant."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error.format_message()
    from ebbtide_core.model.spelling import did_you_mean  # most options are right

    parameters = error.ctx.command.get_params(error.ctx)
    known = [name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)]
    meant = did_you_mean(error.option_name, [name for name in known if name.startswith("--")])
    return f"there is no option {abbreviated(error.option_name)!r}{meant}"


def run(arguments: Sequence[str]) -> int:
    """Run one verb and return its exit code; usage errors become `Failure`."""
    if wanted := os.environ.get(COMPLETION):
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
        raise Failure(f"{where}{usage_words(error)}", USAGE) from None
    except click.ClickException as error:
        raise Failure(error.format_message(), USAGE) from None
