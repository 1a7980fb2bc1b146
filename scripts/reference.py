"""Writes the reference of all verbs from their own help: a page of the docs, man pages, and completions for shells.

python scripts/reference.py --write             # docs/commands.md
python scripts/reference.py --check             # fails if docs/commands.md is not what the code says
python scripts/reference.py --share dist/share  # man/man1/ebb.1, ebb-submit.1 …, and files for bash, zsh and fish
"""

import argparse
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from ebbtide_cli import COMPLETION
from ebbtide_cli.completing import shells
from ebbtide_cli.overview import VERBS, release
from ebbtide_cli.sections import options_by_section
from ebbtide_cli.submitting.command import JobCommand
from ebbtide_cli.submitting.job import sections
from ebbtide_cli.verb import ebb

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
COMPLETIONS = {
    "bash": "bash-completion/completions/ebb",
    "zsh": "zsh/site-functions/_ebb",
    "fish": "fish/vendor_completions.d/ebb.fish",
}
"""Where each shell looks below a folder such as /usr/share."""
HELP = "-h, --help"
"""The names of the option of every verb. click keeps them as they were when a command was first asked for its help."""
LIKE_SUBMIT = "It takes the options of [ebb submit](#ebb-submit), too."
INTRODUCTION = """# Commands

All verbs of `ebb`, each with all of its options but `--help`. The page is made from the help of the verbs, by `python
scripts/reference.py --write`; `ebb VERB --help` shows the same, and `make man` writes man pages of it.
"""


@dataclass(frozen=True)
class Command:
    """A verb, or what is below one: what its help says."""

    words: str
    summary: str
    usage: str
    about: tuple[str, ...]
    """Paragraphs."""
    sections: dict[str, list[tuple[str, str]]]
    """The options and what each does, by section."""
    below: dict[str, str]
    """Its own verbs, each with what it does."""
    examples: tuple[str, ...]
    is_like_submit: bool
    """Whether it has the sections of ``ebb submit``."""


def commands() -> Iterator[Command]:
    """Yield every verb in the order of ``ebb --help``, each followed by what is below it."""
    top = click.Context(ebb, info_name="ebb")
    for verbs in VERBS.values():
        for name, summary in verbs.items():
            verb = ebb.get_command(top, name)
            assert verb is not None
            yield _command(verb, click.Context(verb, info_name=name, parent=top), summary)
            if isinstance(verb, click.Group):
                inner = click.Context(verb, info_name=name, parent=top)
                for below, command in verb.commands.items():
                    yield _command(command, click.Context(command, info_name=below, parent=inner), _summary(command))


def _command(command: click.Command, context: click.Context, summary: str) -> Command:
    _, _, examples = (command.epilog or "").partition("Examples:\n")
    below = command.commands if isinstance(command, click.Group) else {}
    return Command(
        words=context.command_path,
        summary=summary,
        usage=" ".join([context.command_path, *command.collect_usage_pieces(context)]),
        about=tuple(" ".join(text.split()) for text in _help(command).split("\n\n")),
        sections={
            title: [
                (HELP if names.endswith("--help") else names, " ".join(text.split()))
                for names, text in records.values()
            ]
            for title, records in options_by_section(command, context).items()
        },
        below={name: _summary(inner) for name, inner in below.items()},
        examples=tuple(line.strip() for line in examples.splitlines() if line.strip()),
        is_like_submit=isinstance(command, JobCommand) and context.info_name != "submit",
    )


def _help(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "")


def _summary(command: click.Command) -> str:
    """Return the first sentence of a command's help, without its full stop."""
    text = " ".join(_help(command).split("\n\n")[0].split())
    return text.partition(". ")[0].removesuffix(".")


# --- a page of the docs ---


def page() -> str:
    """Return docs/commands.md."""
    return "\n".join([INTRODUCTION, *(line for command in commands() for line in _on_page(command))]).rstrip() + "\n"


def _on_page(command: Command) -> Iterator[str]:
    yield from (f"## {command.words}", "", f"`{command.usage}`", "")
    for paragraph in command.about:
        yield from (_plain(paragraph), "")
    if command.is_like_submit:
        yield from (LIKE_SUBMIT, "")
    shared = sections() if command.is_like_submit else {}
    several = len(command.sections) > 1
    for title, options in command.sections.items():
        rows = [(names, text) for names, text in options if names != HELP]
        if title in shared or not rows:
            continue
        if several and not command.is_like_submit:
            yield from (f"### {command.words}: {title}", "")
        yield from ("| option | what it does |", "|---|---|")
        yield from (f"| `{_cell(names)}` | {_plain(_cell(text))} |" for names, text in rows)
        yield ""
    if command.below:
        yield from ("| verb | what it does |", "|---|---|")
        yield from (f"| `{command.words} {name}` | {_plain(_cell(text))} |" for name, text in command.below.items())
        yield ""
    if command.examples:
        yield from ("```bash", *command.examples, "```", "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    """Return the text so that Markdown shows its marks as they are."""
    for mark in "*<[":
        text = text.replace(mark, f"\\{mark}")
    return text


# --- man pages ---


def man_pages() -> Iterator[tuple[str, str]]:
    """Yield the man pages, each with the name of its file."""
    found = list(commands())
    yield "ebb.1", "\n".join(_of_all(found)) + "\n"
    for command in found:
        yield f"{_named(command.words)}.1", "\n".join(_of_one(command)) + "\n"


def _named(words: str) -> str:
    return words.replace(" ", "-")


def _of_all(found: list[Command]) -> Iterator[str]:
    summaries = {command.words: command.summary for command in found}
    yield from _head("ebb", "share GPUs among jobs that suspend, resume and change size")
    yield from (".SH SYNOPSIS", ".B ebb", roff("VERB [OPTIONS] [ARGUMENTS]"))
    for title, verbs in VERBS.items():
        yield f".SH {title.upper()}"
        for verb in verbs:
            yield from (".TP", f".BR {roff(f'ebb-{verb}')} (1)", roff(summaries[f"ebb {verb}"]))


def _of_one(command: Command) -> Iterator[str]:
    yield from _head(_named(command.words), command.summary)
    rest = command.usage.removeprefix(command.words).strip()
    yield from (".SH SYNOPSIS", f".B {roff(command.words)}", *([roff(rest)] if rest else []))
    yield ".SH DESCRIPTION"
    for paragraph in command.about:
        yield from (".PP", roff(paragraph))
    yield ".SH OPTIONS"
    for title, options in command.sections.items():
        if len(command.sections) > 1:
            yield f".SS {roff(title)}"
        for names, text in options:
            yield from (".TP", f".B {roff(names)}", roff(text))
    if command.below:
        yield ".SH VERBS"
        for name, text in command.below.items():
            yield from (".TP", f".BR {roff(_named(f'{command.words} {name}'))} (1)", roff(text))
    yield from (".SH EXAMPLES", ".nf", *map(roff, command.examples), ".fi", ".SH SEE ALSO")
    yield ".BR ebb (1)"


def _head(name: str, summary: str) -> tuple[str, ...]:
    title = f'.TH "{name.upper()}" "1" "" "{release()}" "Ebbtide"'
    return ('.\\" Made from the help of ebb.', title, ".SH NAME", f"{roff(name)} \\- {roff(summary)}")


def roff(text: str) -> str:
    """Return the text so that roff shows it as it is: no line of it is a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


# --- files ---


def write_share(folder: Path) -> None:
    """Write man pages and completions where programs look for them below a folder such as /usr/share."""
    files = {f"man/man1/{name}": text for name, text in man_pages()}
    files |= {COMPLETIONS[shell]: kind(ebb, {}, "ebb", COMPLETION).source() + "\n" for shell, kind in shells().items()}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def main() -> int:
    """Do what the arguments ask for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write docs/commands.md")
    what.add_argument("--check", action="store_true", help="fail if docs/commands.md is not what the code says")
    what.add_argument("--share", type=Path, metavar="FOLDER", help="write man pages and completions into it")
    given = parser.parse_args()
    if given.share:
        write_share(given.share)
    elif given.write:
        PAGE.write_text(page(), "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != page():
        sys.stderr.write(f"{PAGE} is not what the help says: run {Path(__file__).name} --write\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
