"""Read ``#SBATCH`` lines as sbatch does: long and short options, ``=`` or a space; the last one counts."""

from dataclasses import dataclass

from ebbtide_protos.quantities import abbreviated

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.submitting.directives import marked, split
from ebbtide_cli.submitting.slurm.options import BY_LETTER, BY_NAME, Option, ValueKind


@dataclass(frozen=True, slots=True)
class SbatchOption:
    """One option as it was written, and where it stands: ``job.sh:4``."""

    option: Option
    value: str
    where: str

    def failure(self, reason: str) -> Failure:
        """Return the failure that refuses the option for ``reason``."""
        return Failure(f"{self.where}: #SBATCH --{self.option.name}: {reason}", USAGE)

    def note(self, text: str) -> str:
        """Return a line about the option for stderr."""
        return f"{self.where}: #SBATCH --{self.option.name}: {text}"


def read_lines(name: str, script: str) -> dict[str, SbatchOption]:
    """Return the options of the script ``name`` by their long names; `Failure` names a line that is wrong."""
    asked: dict[str, SbatchOption] = {}
    for line in marked(script, "#SBATCH"):
        where = f"{name}:{line.number}"
        if line.text.split()[0] in ("hetjob", "packjob"):
            raise Failure(f"{where}: heterogeneous jobs are not known here: submit one job for each part", USAGE)
        words = list(split(where, line.text))
        while words:
            for one in _take(where, words):
                asked.pop(one.option.name, None)  # so that it moves to the place where it was written last
                asked[one.option.name] = one
    return asked


def _take(where: str, words: list[str]) -> list[SbatchOption]:
    """Take the next word as options, and its value from the words after it."""
    word = words.pop(0)
    if word.startswith("--") and len(word) > 2:
        name, equals, value = word[2:].partition("=")
        option = _long(where, name)
        if option.takes is ValueKind.NOTHING and equals:
            raise Failure(f"{where}: #SBATCH --{option.name} takes no value", USAGE)
        if option.takes is ValueKind.VALUE and not equals:
            value = _value(where, f"--{option.name}", words)
        return [SbatchOption(option, value, where)]
    if word.startswith("-") and len(word) > 1:
        return _short(where, word[1:], words)
    raise Failure(f"{where}: #SBATCH {abbreviated(word)!r} is no option", USAGE)


def _short(where: str, letters: str, words: list[str]) -> list[SbatchOption]:
    """Read short options: ``-N2``, ``-N 2``, and ``-HQ`` for two without values."""
    found: list[SbatchOption] = []
    while letters:
        letter, letters = letters[0], letters[1:]
        if letter not in BY_LETTER:
            raise Failure(f"{where}: sbatch has no option -{letter}", USAGE)
        option, value = BY_LETTER[letter], ""
        if option.takes is not ValueKind.NOTHING:
            value, letters = letters.removeprefix("="), ""
            if not value and option.takes is ValueKind.VALUE:
                value = _value(where, f"-{letter}", words)
        found.append(SbatchOption(option, value, where))
    return found


def _long(where: str, name: str) -> Option:
    """Return the option of that name, or the only one that begins with it."""
    matching = [option for option in BY_NAME.values() if name and option.name.startswith(name)]
    if name in BY_NAME:
        return BY_NAME[name]
    if len(matching) == 1:
        return matching[0]
    known = "has no option" if not matching else "has several options that begin with"
    raise Failure(f"{where}: sbatch {known} --{abbreviated(name)}", USAGE)


def _value(where: str, name: str, words: list[str]) -> str:
    if not words:
        raise Failure(f"{where}: #SBATCH {name} needs a value", USAGE)
    return words.pop(0)
