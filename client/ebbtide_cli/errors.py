"""How a verb fails: with one line on stderr, and an exit code that scripts can rely on."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

OK: Final = 0
FAILED: Final = 1
"""Exit code if the request failed, or the id is unknown or finished."""
USAGE: Final = 2
"""Exit code for wrong usage, and for a request that cannot be met."""
UNREACHABLE: Final = 3
"""Exit code if the master cannot be reached, or does not allow the request."""
UNSAVED: Final = 4
"""Exit code if the request was carried out, and work was lost by it."""
EXPIRED: Final = 124
"""Exit code if the awaited state did not come in time; as with timeout(1)."""
OURS: Final = 125
"""Exit code in place of the job's own when the failure is Ebbtide's."""
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141


class Failure(Exception):
    """End a verb with ``message`` (one line, without the ``ebb:``) and ``code``."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class TooFast(Failure):
    """The user sends too many requests; the master accepts this one in ``wait_s`` seconds."""

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Unreachable(Failure):
    """No master runs, or it went away; trying again later may help."""

    def __init__(self, message: str) -> None:
        super().__init__(message, UNREACHABLE)


class NodeAway(Unreachable):
    """The master answers, and could not ask the job's node; trying again later may help."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = FAILED


class Fault(Failure):
    """A fault of Ebbtide's own: an ``error`` that nothing expects."""

    def __init__(self, error: Exception, code: int = FAILED) -> None:
        super().__init__(
            f"internal error, please report it: {type(error).__name__}: {error} (EBB_DEBUG=1 shows where)", code
        )
        self.error = error


def words_of(error: OSError) -> str:
    """Return what went wrong, and with what; a file without a name is the output."""
    return f"{error.filename or 'output'}: {error.strerror or error}"


@contextmanager
def code_is_of_job() -> Iterator[None]:
    """End with `OURS` if the block fails, as other codes are the job's own; wrong usage and Ctrl-C keep theirs."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Failure(words_of(error), OURS) from error
    except Failure as failure:
        failure.code = failure.code if failure.code in (USAGE, INTERRUPTED) else OURS
        raise
    except Exception as error:
        raise Fault(error, OURS) from error
