"""Options that stand in a file: ``#EBB`` and ``#SBATCH`` lines in the head of a script, and templates."""

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ebbtide_cli.errors import USAGE, Failure


@dataclass(frozen=True, slots=True)
class Directive:
    """Options as they would be typed, and ``where`` they stand, as ``train.sh:3``."""

    where: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DirectiveLine:
    """One line of a script with the rest of what follows its mark; ``number`` counts from 1."""

    number: int
    text: str


def head(script: str) -> Iterator[tuple[int, str]]:
    """The comments that a script begins with, and their numbers: what stands below its first command is not read."""
    for number, line in enumerate(script.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            return
        yield number, line


def marked(script: str, mark: str) -> list[DirectiveLine]:
    """The lines of the head that begin with ``mark`` and a space, as in ``#EBB --gpus 2``."""
    found = []
    for number, line in head(script):
        word, _, rest = line.replace("\t", " ").partition(" ")
        if word == mark and rest.strip():
            found.append(DirectiveLine(number, rest.strip()))
    return found


def ebb_directives(name: str, script: str) -> list[Directive]:
    """The ``#EBB`` lines of the script called ``name``; `Failure` names the line that cannot be split into words."""
    return [
        Directive(f"{name}:{line.number}", split(f"{name}:{line.number}", line.text)) for line in marked(script, "#EBB")
    ]


def split(where: str, text: str) -> tuple[str, ...]:
    """The words of a line as a shell has them; what follows a ``#`` is a comment."""
    try:
        return tuple(shlex.split(text, comments=True))
    except ValueError as error:
        raise Failure(f"{where}: {str(error).lower()}", USAGE) from None


def without(words: Iterable[str], option: str, *, takes_value: bool) -> tuple[str, ...]:
    """``words`` without each ``option``, which a layer above them has taken back, and without its value."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == option:
            skip = takes_value
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return tuple(kept)
