"""Read options from files: ``#EBB`` and ``#SBATCH`` lines in the head of a script, and templates."""

import io
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ebbtide_cli.errors import USAGE, Failure


class Directive(NamedTuple):
    """Options as a user would type them, and ``where`` they stand, as ``train.sh:3``."""

    where: str
    words: tuple[str, ...]


class DirectiveLine(NamedTuple):
    """A line of a script, without its mark such as ``#EBB``; ``number`` counts from 1."""

    number: int
    text: str


def head(script: str) -> Iterator[tuple[int, str]]:
    """Yield the comments at the beginning of a script with their line numbers; stop at the first command."""
    for number, line in enumerate(script.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            return
        yield number, line


def marked(script: str, mark: str) -> list[DirectiveLine]:
    """Return the lines of the head that begin with ``mark`` and a space, as in ``#EBB --gpus 2``."""
    found = []
    for number, line in head(script):
        word, _, rest = line.replace("\t", " ").partition(" ")
        if word == mark and rest.strip():
            found.append(DirectiveLine(number, rest.strip()))
    return found


def ebb_directives(name: str, script: str) -> list[Directive]:
    """Return the ``#EBB`` lines of the script ``name``; `Failure` names a line that cannot be split into words."""
    return [
        Directive(f"{name}:{line.number}", split(f"{name}:{line.number}", line.text)) for line in marked(script, "#EBB")
    ]


def split(where: str, text: str) -> tuple[str, ...]:
    """Split a line into words as a shell does; `Failure` says ``where`` it cannot be split."""
    try:
        return tuple(shell_words(text))
    except ValueError as error:
        raise Failure(f"{where}: {str(error).lower()}", USAGE) from None


def shell_words(text: str) -> Iterator[str]:
    """Yield the words of a line; a ``#`` at the beginning of a word begins a comment. Raises ValueError."""
    rest, comment = io.StringIO(text), re.compile(r"[ \t\r\n]*#")
    lexer = shlex.shlex(rest, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""  # to shlex, a # within a word begins a comment, too
    while not comment.match(text, rest.tell()) and (word := lexer.get_token()) is not None:
        yield word


def without(words: Iterable[str], option: str, *, takes_value: bool) -> tuple[str, ...]:
    """Return ``words`` without each ``option`` that a later source has replaced, and without its value."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == option:
            skip = takes_value
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return tuple(kept)
