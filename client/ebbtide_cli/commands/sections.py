"""Write the help of verbs with many options: ``--help`` shows those of daily use, ``--help-all`` every option."""

from collections.abc import Container, Mapping, Sequence
from typing import Final

import click

_ALL: Final = "ebbtide_cli.help_all"
"""Set in a context's ``meta`` when every option is asked for."""

EXAMPLES: Final = 8
"""How many examples ``--help`` shows."""


class SectionedCommand(click.Command):
    """A verb whose help shows its options by section, and those for special cases only with ``--help-all``.

    A subclass for a group of verbs names this class before the group's.
    """

    def sections(self) -> Mapping[str, Sequence[str]]:
        """Return the options, each by the first of its names, by section of the help and in its order."""
        raise NotImplementedError

    def daily(self) -> Container[str]:
        """Return the options that ``--help`` shows, too."""
        raise NotImplementedError

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section: those of daily use, or all of them; then the verbs of a group."""
        _write_options(ctx, formatter, self.daily())
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, the first of them only unless every option is asked for."""
        lines = (self.epilog or "").splitlines()
        title = lines.index("Examples:") + 1
        shown = lines if _ALL in ctx.meta else lines[: title + EXAMPLES]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text("\n".join(shown))


def _print_all(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


help_all_option: Final = click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_all,
    help="Show every option, by subject, and exit.",
)


def options_by_section(command: click.Command, ctx: click.Context) -> dict[str, dict[str, tuple[str, str]]]:
    """Return all options of the context's command as the help shows them, each by the first of its names.

    The sections come in the order of the help, and last ``General`` with those that are the verb's own. A command
    without sections has them all in one, ``Options``.
    """
    options = [option for option in command.get_params(ctx) if isinstance(option, click.Option)]
    records = {option.opts[0]: record for option in options if (record := option.get_help_record(ctx))}
    own = dict(sorted(records.items(), key=lambda entry: "--help" in entry[1][0]))  # those on help come last
    if not isinstance(command, SectionedCommand):
        return {"Options": own}
    found = {
        title: {name: record for name in names if (record := own.pop(name, None))}
        for title, names in command.sections().items()
    }
    return {title: records for title, records in found.items() if records} | {"General": own}


def _write_options(ctx: click.Context, formatter: click.HelpFormatter, daily: Container[str]) -> None:
    """Write the options of the context's command by section: those of ``daily`` and the verb's own, or all."""
    left_out = 0
    for title, records in options_by_section(ctx.command, ctx).items():
        wanted = title == "General" or _ALL in ctx.meta
        shown = [record for name, record in records.items() if wanted or name in daily]
        left_out += len(records) - len(shown)
        if shown:
            with formatter.section(title):
                formatter.write_dl(shown)
    if left_out:
        formatter.write_paragraph()
        formatter.write_text(f"{left_out} more options are for special cases: {ctx.command_path} --help-all")
