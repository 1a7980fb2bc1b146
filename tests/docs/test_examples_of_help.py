"""Every verb has examples in its help, and every example is a command that `ebb` understands."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import click
import pytest
from ebbtide_cli.commands.verb import ebb
from ebbtide_cli.overview import VERBS


@dataclass(frozen=True)
class Example:
    """One line of the help of ``command``, such as ``node drain``."""

    command: str
    line: str


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every verb and what is below it, by the words that name it."""
    context = click.Context(ebb)
    for verb in (name for section in VERBS.values() for name in section):
        command = ebb.get_command(context, verb)
        assert command is not None
        yield verb, command
        if isinstance(command, click.Group):
            yield from ((f"{verb} {name}", below) for name, below in command.commands.items())


def examples() -> Iterator[Example]:
    for name, command in commands():
        _, _, lines = (command.epilog or "").partition("Examples:\n")
        yield from (Example(name, line.strip()) for line in lines.splitlines() if line.strip())


EXAMPLES = list(examples())


def parts_of(line: str) -> Iterator[list[str]]:
    """The `ebb` commands of a line, which may have others around them."""
    words: list[str] = []
    for word in [*shlex.split(line, comments=True), ";"]:
        if word in ("|", "&&", ";"):
            command = words[1:] if words[:1] == ["srun"] else words
            if command[:1] == ["ebb"]:
                yield command[1:]
            words = []
        else:
            words.append(word)


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_the_help_of_every_verb_has_an_example(name):
    own = [words for example in EXAMPLES if example.command == name for words in parts_of(example.line)]
    assert any(words[: len(name.split())] == name.split() for words in own)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.line)
def test_an_example_has_options_that_there_are(example):
    parsed = list(parts_of(example.line))
    assert parsed, "it runs ebb"
    for words in parsed:
        # Which job was the last, a master would have to say.
        parse(ebb, ["17" if word.startswith("@") else word for word in words])


def parse(group: click.Group, words: list[str]) -> None:
    """Have click understand ``words``, down to the last verb, and run nothing."""
    context = click.Context(group)
    command = group.get_command(context, words[0])
    assert command is not None, f"there is no verb {words[0]}"
    if isinstance(command, click.Group) and len(words) > 1 and words[1] in command.commands:
        parse(command, words[1:])
    else:
        with command.make_context(words[0], words[1:], parent=context):
            pass
