"""The options of one script's ``#SBATCH`` lines, and what is to be said of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from ebbtide_cli.submitting.slurm.lines import SbatchOption

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SbatchReading:
    """What was ``asked``, by the long names of sbatch, and the ``notes`` on it for stderr."""

    asked: dict[str, SbatchOption]
    notes: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        """The value of that option as it was written; empty if it was not."""
        return self.asked[name].value if name in self.asked else ""

    def read(self, name: str, parse: Callable[[str], T]) -> T | None:
        """What ``parse`` makes of the value; None if it was not asked for. `Failure` names its line."""
        if name not in self.asked:
            return None
        try:
            return parse(self.asked[name].value)
        except ValueError as error:
            raise self.asked[name].failure(str(error)) from None

    def note(self, name: str, text: str) -> None:
        """Have something said of that option."""
        self.notes.append(self.asked[name].note(text))
