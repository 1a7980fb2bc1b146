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
        _write_options(ctx, formatter, self.sections(), self.daily())
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


def _write_options(
    ctx: click.Context, formatter: click.HelpFormatter, sections: Mapping[str, Sequence[str]], daily: Container[str]
) -> None:
    """Write the options of the context's command by section, and last those that are the verb's own."""
    options = [option for option in ctx.command.get_params(ctx) if isinstance(option, click.Option)]
    records = {option.opts[0]: record for option in options if (record := option.get_help_record(ctx))}
    own = dict(sorted(records.items(), key=lambda entry: "--help" in entry[1][0]))  # those on help come last
    left_out = 0
    for title, names in sections.items():
        known = [name for name in names if own.pop(name, None)]
        shown = [name for name in known if name in daily or _ALL in ctx.meta]
        left_out += len(known) - len(shown)
        if shown:
            with formatter.section(title):
                formatter.write_dl([records[name] for name in shown])
    with formatter.section("General"):
        formatter.write_dl(list(own.values()))
    if left_out:
        formatter.write_paragraph()
        formatter.write_text(f"{left_out} more options are for special cases: {ctx.command_path} --help-all")
