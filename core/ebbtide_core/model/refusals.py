"""What is answered to a wish that cannot be granted."""

from dataclasses import dataclass
from enum import Enum, auto


class RefusalKind(Enum):
    """Why a wish is refused."""

    INVALID = auto()
    UNKNOWN = auto()
    CONFLICT = auto()
    LIMIT = auto()


@dataclass(frozen=True, slots=True)
class Refusal:
    """That a wish cannot be granted, and why in one line."""

    kind: RefusalKind
    message: str
