"""Writes the reference from the code: pages of the docs, man pages, and completions for shells.

Verbs are described by their own help, and the configuration file by the code that reads it.

python scripts/reference.py --write             # docs/reference/commands/*.md, docs/reference/configuration.md
python scripts/reference.py --check             # fails if these pages are not what the code says
python scripts/reference.py --share dist/share  # man/man1/ebb.1, ebb-submit.1 …, and files for bash, zsh and fish
"""

import argparse
import inspect
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from ebbtide_cli import COMPLETION
from ebbtide_cli.commands.completing import shells
from ebbtide_cli.commands.sections import options_by_section
from ebbtide_cli.commands.verb import ebb
from ebbtide_cli.overview import VERBS, release
from ebbtide_cli.submitting.command import JobCommand
from ebbtide_cli.submitting.job import sections
from ebbtide_master.config import fencing, idle, journal, limits, log_rules, metrics, notify, pools, quotas, sessions
from ebbtide_master.config.file import read_sections
from ebbtide_master.config.table import NAMES_OF_KINDS, Table
from ebbtide_protos.quantities import DURATION_UNITS

DOCS = Path(__file__).resolve().parents[1] / "docs"
REFERENCE = DOCS / "reference"
COMPLETIONS = {
    "bash": "bash-completion/completions/ebb",
    "zsh": "zsh/site-functions/_ebb",
    "fish": "fish/vendor_completions.d/ebb.fish",
}
"""Where each shell looks below a folder such as /usr/share."""
HELP = "-h, --help"
"""The names of the option of every verb. click keeps them as they were when a command was first asked for its help."""
LIKE_SUBMIT = "It takes the options of [ebb submit](submit.md), too."
INTRODUCTION = """# Commands

All verbs of `ebb`. Each has a page with all of its options but `--help`. The pages are made from the help of the verbs:
`ebb VERB --help` shows the same, and `make man` writes man pages of it.
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


# --- pages of the docs ---


def pages() -> dict[str, str]:
    """Return what each page below docs/reference that is made here has to be, by its name."""
    verbs: dict[str, list[str]] = {}
    for command in commands():
        verb = command.words.split()[1]
        verbs.setdefault(verb, []).extend(_on_page(command))
    texts = {f"commands/{verb}.md": "\n".join(lines).rstrip() + "\n" for verb, lines in verbs.items()}
    return {"commands/index.md": _index(), "configuration.md": configuration_page(), **texts}


def _index() -> str:
    lines = [INTRODUCTION]
    for title, verbs in VERBS.items():
        lines += [
            f"## {title}",
            "",
            *(f"- [ebb {verb}]({verb}.md): {_plain(text)}." for verb, text in verbs.items()),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _on_page(command: Command) -> Iterator[str]:
    level = len(command.words.split()) - 1  # what is below a verb is on the verb's page
    yield from (f"{'#' * level} {command.words}", "", f"`{command.usage}`", "")
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
            yield from (f"{'#' * (level + 1)} {command.words}: {title}", "")
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


# --- the page of the configuration file ---

CONFIGURATION = """# Configuration file

The sections and keys of `ebbtide.toml`, as the master reads them. [Configure a cluster](../how-to/configure.md) says
where the file is and how it is read again; `ebb init` writes a first one. The page is made from the code that reads the
file.

A key that is not listed here stops the start with one line that names it, and so does a value of another kind. A key
that is left out has its default. What a key does is said in the comment behind it, on the page that explains it.
"""
SECTIONS = (pools, quotas, idle, sessions, log_rules, notify, journal, metrics, fencing, limits)
"""The modules that read the sections; the first line of each says what its section is about."""
EVERY_TABLE = {
    "pools": {"NAME": {}},
    "quotas": {"users": {"NAME": {}}},
    "notify": {
        "smtp": {"host": "mail.example.org", "from": "ebb@example.org"},
        "targets": {"NAME": {"mail": "ada@example.org"}},
        "users": {"NAME": {"target": "NAME"}},
    },
}
"""A file that has each table whose name an administrator chooses, so that its keys are read."""


@dataclass(frozen=True)
class ConfigurationKey:
    """A key of the configuration file: the table that it is in, what may stand there, and what holds without it."""

    table: str
    name: str
    kind: str
    default: str


def configuration_keys(values: Mapping[str, Any]) -> list[ConfigurationKey]:
    """Return the keys that are looked for in a configuration file with these values, in the order of the reading."""
    found: list[ConfigurationKey] = []

    class Noting(Table):
        def take(self, key: str, kind: type[Any], default: Any) -> Any:
            found.append(ConfigurationKey(self.where.rstrip("."), key, NAMES_OF_KINDS[kind], _default(default)))
            return super().take(key, kind, default)

        def take_duration(self, key: str, default_s: float) -> float:
            value = super().take_duration(key, default_s)
            found[-1] = replace(found[-1], kind="a duration, such as 90s, 3m or 1h30m", default=_duration(default_s))
            return value

        def take_size(self, key: str, default_bytes: int) -> int:
            value = super().take_size(key, default_bytes)
            found[-1] = replace(found[-1], kind="a size, such as 512MiB or 20GiB", default=_size(default_bytes))
            return value

    read_sections(Noting("", values))
    return found


def configuration_page() -> str:
    """Return docs/reference/configuration.md."""
    tables: dict[str, list[ConfigurationKey]] = {}
    for key in configuration_keys(EVERY_TABLE):
        if key.kind != NAMES_OF_KINDS[dict] or key.name == "options":
            tables.setdefault(key.table, []).append(key)
    comments = comments_of_keys()
    lines = [CONFIGURATION, "## Keys that are in no section", "", *_rows(tables.pop(""), comments)]
    for module in SECTIONS:
        section = module.__name__.rpartition(".")[2]
        about = (module.__doc__ or "").splitlines()[0].rpartition("``")[2].lstrip(":, ")
        lines += [f"## {section}", "", f"{about[0].upper()}{about[1:]}{_shown_on(section)}", ""]
        for table in [name for name in tables if name.partition(".")[0] == section]:
            lines += [f"`[{table}]`", "", *_rows(tables[table], comments)]
    return "\n".join(lines).rstrip() + "\n"


def _rows(keys: list[ConfigurationKey], comments: Mapping[tuple[str, str], str]) -> list[str]:
    rows = [f"| `{key.name}` | {key.kind} | {key.default} | {comments[key.table, key.name]} |" for key in keys]
    return ["| key | value | default | what it does |", "|---|---|---|---|", *rows, ""]


def comments_of_keys() -> dict[tuple[str, str], str]:
    """Return the comment behind each key, by table and key, from the parts of the file that the pages show."""
    found: dict[tuple[str, str], str] = {}
    for page in _explaining():
        for block in re.findall(r"^```toml\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            table = ""
            for line in block.splitlines():
                if heading := re.fullmatch(r"\[(.*)\]", line):
                    table = re.sub(
                        r"^(pools|quotas\.users|notify\.targets|notify\.users)\.[\w-]+$", r"\1.NAME", heading[1]
                    )
                elif commented := re.fullmatch(r"([\w-]+) = .*?  # (.*)", line):
                    found.setdefault((table, commented[1]), _plain(_cell(commented[2])))
    return found


def _explaining() -> list[Path]:
    return [*sorted(DOCS.glob("how-to/*.md")), DOCS / "reference/limits.md"]


def _shown_on(section: str) -> str:
    """Return which pages show a section, as a sentence."""
    found = []
    for page in _explaining():
        text = page.read_text("utf-8")
        if re.search(rf"^\[{section}[].]", text, re.MULTILINE):
            title = text.partition("\n")[0].removeprefix("# ")
            found.append(f"[{title}]({os.path.relpath(page, DOCS / 'reference')})")
    return f" Explained in: {', '.join(found)}."


def _default(value: object) -> str:
    match value:
        case bool():
            return f"`{str(value).lower()}`"
        case int() if value < 0:  # no number at all
            return "none"
        case float():
            return f"`{value:g}`"
        case str() if value:
            return f'`"{value}"`'
        case int():
            return f"`{value}`"
        case _:
            return "none"


def _duration(seconds: float) -> str:
    name, unit = next((name, unit) for name, unit in DURATION_UNITS.items() if seconds % unit == 0)
    return f'`"{seconds / unit:g}{name}"`'


def _size(size_bytes: int) -> str:
    power = max(power for power in range(4) if size_bytes % 1024**power == 0)
    return f'`"{size_bytes // 1024**power}{("B", "KiB", "MiB", "GiB")[power]}"`'


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


def write_pages(folder: Path) -> None:
    """Write all pages that are made here into ``folder``, and remove those of verbs that are no more."""
    texts = pages()
    for name in _there(folder) - texts.keys():
        (folder / name).unlink()
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")


def behind_the_code(folder: Path) -> list[str]:
    """Return the names of pages in ``folder`` that are missing, differ, or are of verbs that are no more."""
    texts, there = pages(), _there(folder)
    return sorted(
        name
        for name in texts.keys() | there
        if name not in texts or name not in there or (folder / name).read_text("utf-8") != texts[name]
    )


def _there(folder: Path) -> set[str]:
    files = [*folder.glob("commands/*.md"), *folder.glob("configuration.md")]
    return {file.relative_to(folder).as_posix() for file in files}


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
    what.add_argument("--write", action="store_true", help="write the pages")
    what.add_argument("--check", action="store_true", help="fail if the pages are not what the code says")
    what.add_argument("--share", type=Path, metavar="FOLDER", help="write man pages and completions into it")
    given = parser.parse_args()
    if given.share:
        write_share(given.share)
    elif given.write:
        write_pages(REFERENCE)
    elif behind := behind_the_code(REFERENCE):
        sys.stderr.write(f"{', '.join(behind)}: not what the code says; run {Path(__file__).name} --write\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
