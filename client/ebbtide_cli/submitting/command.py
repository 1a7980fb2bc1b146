"""Read the arguments of ``ebb submit``: options in files are put before the typed ones, which win."""

from collections.abc import Container, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import click
from ebbtide_protos.quantities import abbreviated

from ebbtide_cli.commands.sections import SectionedCommand
from ebbtide_cli.commands.verb import usage_words
from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.directives import Directive, ebb_directives, without
from ebbtide_cli.submitting.script import Script, read_script
from ebbtide_cli.terminal.output import complain

INSTEAD: Final = {
    "cpu_only": {
        "--gpus": True,
        "--gpu-mem": True,
        "--gpu-type": True,
        "--gpu-total-mem": True,
        "--compute-capability": True,
        "--mixed-gpus": False,
    },
    "gpus": {"--cpu-only": False},
}
"""For an option, the options of earlier sources that it replaces, and whether each of them takes a value."""
ADDED: Final = ("variables", "templates")
"""The repeatable options that add to those of earlier sources: ``--env``, and ``--template``, which names sources."""

Source = Sequence[Directive]
"""The options of one template, of a script's ``#SBATCH`` lines or of its ``#EBB`` lines."""


class JobCommand(SectionedCommand):
    """Show the options that describe a job."""

    def sections(self) -> Mapping[str, Sequence[str]]:
        """Return the options of all topics."""
        from ebbtide_cli.submitting.job import sections

        return sections()

    def daily(self) -> Container[str]:
        """Return the options of daily use."""
        from ebbtide_cli.submitting.job import DAILY

        return DAILY


class SubmitCommand(JobCommand):
    """Read templates, then the script's lines, then the command line: with one parser, and one kind of error."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse all sources together; the parameter ``script`` becomes the submitted script, or None."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        given = self.given(ctx, args)
        script = script_of(args, given["argv"])
        lines = _of_script(script)
        named = [name for line in chain(*lines) for name in self._check(ctx, line).get("templates", ())]
        sources = [*_of_templates([*named, *given.get("templates", ())]), *lines]
        words = [word for directive in self.settled(ctx, sources, given) for word in directive.words]
        rest = super().parse_args(ctx, words + args)
        ctx.params["script"] = script
        return rest

    def given(self, ctx: click.Context, args: Sequence[str]) -> dict[str, Any]:
        """Return the options in ``args`` before their values are converted."""
        options: dict[str, Any] = self.make_parser(ctx).parse_args(list(args))[0]
        argv = options.get("argv")
        return options | {"argv": argv if isinstance(argv, list | tuple) else ()}

    def settled(self, ctx: click.Context, sources: Sequence[Source], typed: dict[str, Any]) -> list[Directive]:
        """Return the directives without options that later ones or the command line replace; each is checked alone.

        An option that may be repeated replaces those of earlier sources only, and adds to others of its own source.
        """
        taken_back, repeated = _replaced(typed), self._repeated(typed)
        settled: list[Directive] = []
        for source in reversed(sources):
            of_source: dict[str, bool] = {}
            for directive in reversed(source):
                words = directive.words
                for option, takes_value in (taken_back | repeated).items():
                    words = without(words, option, takes_value=takes_value)
                given = self._check(ctx, Directive(directive.where, words))
                taken_back = taken_back or _replaced(given)
                of_source |= self._repeated(given)
                settled.append(Directive(directive.where, words))
            repeated |= of_source
        return settled[::-1]

    def _repeated(self, given: Mapping[str, Any]) -> dict[str, bool]:
        """Return the options of earlier sources that these repeatable ones replace; all of them take a value."""
        repeatable = [one for one in self.params if isinstance(one, click.Option) and one.multiple]
        return {name: True for one in repeatable if one.name in given and one.name not in ADDED for name in one.opts}

    def _check(self, ctx: click.Context, directive: Directive) -> dict[str, Any]:
        """Return the options of one directive; errors name the place where it stands."""
        try:
            given = self.given(ctx, directive.words)
            if given["argv"]:
                raise click.UsageError(f"{abbreviated(given['argv'][0])!r} is no option")
            alone = self.context_class(self, info_name=ctx.info_name, parent=ctx.parent)
            super().parse_args(alone, list(directive.words))
        except click.UsageError as error:
            raise Failure(f"{directive.where}: {usage_words(error)}", USAGE) from None
        return given


def _replaced(given: Mapping[str, Any]) -> dict[str, bool]:
    """Return the options of earlier sources that these replace, and whether each of them takes a value."""
    return {option: takes_value for name in INSTEAD if name in given for option, takes_value in INSTEAD[name].items()}


def script_of(args: Sequence[str], argv: Sequence[str]) -> Script | None:
    """Return the submitted script: the first word of the command, unless ``--`` stands before it."""
    before = len(args) - len(argv) - 1
    if not argv or (before >= 0 and args[before] == "--"):
        return None
    return read_script(argv[0])


def _of_templates(names: Sequence[str]) -> list[Source]:
    """Return the options of each of these templates, in that order; most jobs name none."""
    if not names:
        return []
    from ebbtide_cli.submitting.templates import find_template

    return [list(find_template(name).directives()) for name in dict.fromkeys(names)]


def _of_script(script: Script | None) -> list[Source]:
    """Return the options in the script: ``#EBB`` lines come after ``#SBATCH`` lines, because they are more specific."""
    if script is None:
        return []
    sources: list[Source] = [ebb_directives(script.name, script.text)]
    if "#SBATCH" in script.marks:
        # Most scripts have none.
        from ebbtide_cli.submitting.slurm.translation import translate

        translated = translate(script.name, script.text)
        for note in translated.notes:
            complain(note)
        sources.insert(0, translated.directives)
    return sources
