"""Defines the answer to a request that cannot be granted."""

from dataclasses import dataclass
from enum import Enum, auto


class RefusalKind(Enum):
    """The kind of reason for which a request is refused."""

    INVALID = auto()
    UNKNOWN = auto()
    CONFLICT = auto()
    LIMIT = auto()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer that a request cannot be granted; ``message`` says why in one line."""

    kind: RefusalKind
    message: str
