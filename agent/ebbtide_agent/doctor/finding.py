"""Describes what a check found."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Self


class Level(Enum):
    """How bad a finding is. Only a problem keeps the node from doing its work."""

    OK = "ok"
    NOTE = "note"  # good to know; nothing has to be done
    WARNING = "warning"  # works, but slowly, or not for every job
    PROBLEM = "problem"  # must be seen to


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the node in one line, and the command or step that mends it ("": none is needed)."""

    check: str
    level: Level
    text: str
    advice: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"level": self.level.value}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Parse the content; raises KeyError, TypeError or ValueError if it is no finding."""
        return cls(str(content["check"]), Level(content["level"]), str(content["text"]), str(content["advice"]))


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def note(check: str, text: str, advice: str = "") -> Finding:
    return Finding(check, Level.NOTE, text, advice)


def warning(check: str, text: str, advice: str) -> Finding:
    return Finding(check, Level.WARNING, text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    return Finding(check, Level.PROBLEM, text, advice)
