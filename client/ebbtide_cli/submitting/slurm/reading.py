"""Collect the options of a script's ``#SBATCH`` lines, and the notes on them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ebbtide_cli.submitting.slurm.lines import SbatchOption

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SbatchReading:
    """The options in ``asked``, by their long names, and the ``notes`` on them for stderr."""

    asked: dict[str, SbatchOption]
    notes: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        """Return the option's value as it was written; empty if the option is absent."""
        return self.asked[name].value if name in self.asked else ""

    def read(self, name: str, parse: Callable[[str], T]) -> T | None:
        """Return what ``parse`` makes of the value; None if the option is absent. `Failure` names its line."""
        if name not in self.asked:
            return None
        try:
            return parse(self.asked[name].value)
        except ValueError as error:
            raise self.asked[name].failure(str(error)) from None

    def note(self, name: str, text: str) -> None:
        """Add a note about the option."""
        self.notes.append(self.asked[name].note(text))
