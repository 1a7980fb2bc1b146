"""Start ``ebb``: always end with an exit code and at most one line of complaint, never with a traceback."""

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``ebb`` and return its exit code; without ``arguments``, take the process's own and perhaps end it here."""
    # Imported here so that an interrupt during the imports ends as quietly as a later one.
    try:
        from ebbtide_cli import interrupts

        if arguments is None:
            _open_what_is_closed()
        with interrupts.heard(ends=arguments is None):
            code = _run(sys.argv[1:] if arguments is None else arguments)
            return interrupts.leave(code) if arguments is None else code
    except KeyboardInterrupt:
        pass
    from ebbtide_cli import interrupts
    from ebbtide_cli.errors import INTERRUPTED

    return interrupts.leave(INTERRUPTED) if arguments is None else INTERRUPTED


def _open_what_is_closed() -> None:
    """Open closed standard streams on /dev/null, so that no other file gets their descriptors."""
    for number in range(3):
        with suppress(OSError):
            os.fstat(number)
            continue
        os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this number
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w")


def _run(arguments: Sequence[str]) -> int:
    """Run a verb; interrupts are left to the caller."""
    from ebbtide_cli.errors import BROKEN_PIPE, FAILED, Failure
    from ebbtide_cli.output import complain
    from ebbtide_cli.verb import run

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = run(arguments)
        sys.stdout.flush()
        return code
    except Failure as failure:
        complain(failure.message)
        return failure.code
    except BrokenPipeError:
        # The reader is gone: the rest of the buffer must not be written at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        complain(f"{error.filename or 'output'}: {error.strerror or error}")
        return FAILED
    except Exception as error:  # noqa: BLE001 - the last resort: a fault of Ebbtide must not look like a stack dump
        if os.environ.get("EBB_DEBUG"):
            traceback.print_exc()
        complain(f"internal error, please report it: {type(error).__name__}: {error} (EBB_DEBUG=1 shows where)")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
