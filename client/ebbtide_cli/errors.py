"""How a verb fails: one line for stderr, and an exit code that scripts can rely on."""

from typing import Final

OK: Final = 0
FAILED: Final = 1
"""The request failed, or the id is unknown or finished."""
USAGE: Final = 2
"""Wrong usage, or impossible."""
UNREACHABLE: Final = 3
"""The master cannot be reached, or does not allow it."""
UNSAVED: Final = 4
"""What was asked for was done, and work was lost by it."""
EXPIRED: Final = 124
"""What was waited for did not come in time; as with timeout(1)."""
OURS: Final = 125
"""Instead of the job's own exit code when the failure is ours."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141


class Failure(Exception):
    """Ends a verb with ``message`` (one line, without the ``ebb:``) and ``code``."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class TooFast(Failure):
    """It is too much at a time; ``wait_s`` seconds later the master takes it."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Unreachable(Failure):
    """There is no master, or it went away; trying again later may help."""

    def __init__(self, message: str) -> None:
        super().__init__(message, UNREACHABLE)
