"""Start ``ebb``: always end with an exit code and at most one line of complaint, never with a traceback."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from ebbtide_cli import COMPLETION

TOLD_AT_ONCE: tuple[list[str], ...] = ([], ["-h"], ["--help"], ["--version"])
"""The arguments that are answered without loading a verb, and without click."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``ebb`` and return its exit code; without ``arguments``, take the process's own and perhaps end it here."""
    # Imported here so that an interrupt during the imports ends as quietly as a later one.
    try:
        if arguments is None:
            gc.disable()  # until the verb is loaded, because nothing becomes garbage before
            _open_what_is_closed()
        given = sys.argv[1:] if arguments is None else list(arguments)
        if given in TOLD_AT_ONCE and not os.environ.get(COMPLETION):
            return _ended(_tell, given)
        import signal

        # Python drops an interrupt that comes at certain moments of an import, so it has to wait until it is handled.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        from ebbtide_cli import interrupts

        with interrupts.interruptible(ends=arguments is None):
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            code = _ended(_run, given)
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


def _ended(work: Callable[[Sequence[str]], int], given: Sequence[str]) -> int:
    """Do the work and return its exit code, whatever happens; interrupts are left to the caller."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = work(given)
        sys.stdout.flush()
        return code
    except Exception as error:  # noqa: BLE001 - the last resort: a fault of Ebbtide must not look like a stack dump
        return _complained(error)


def _tell(given: Sequence[str]) -> int:
    """Answer what needs no verb, and none of what verbs need."""
    from ebbtide_cli.overview import core, overview, release, width

    print(f"{release()} ({core()})" if given == ["--version"] else overview(width()))
    return 0


def _run(given: Sequence[str]) -> int:
    """Run a verb."""
    from ebbtide_cli.deferred import defer_what_verbs_hardly_use

    defer_what_verbs_hardly_use()
    from ebbtide_cli.commands.verb import run

    return run(given)


def _complained(error: Exception) -> int:
    """Say in one line what went wrong, and return the exit code."""
    from ebbtide_cli.errors import BROKEN_PIPE, FAILED, Failure, Fault, words_of
    from ebbtide_cli.terminal.output import complain

    match error:
        case Failure():
            if isinstance(error, Fault) and os.environ.get("EBB_DEBUG"):
                import traceback

                traceback.print_exception(error.error)
            complain(error.message)
            return error.code
        case BrokenPipeError():
            # The reader is gone: the rest of the buffer must not be written at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return BROKEN_PIPE
        case OSError():
            complain(words_of(error))
            return FAILED
        case _:
            return _complained(Fault(error))


if __name__ == "__main__":
    sys.exit(main())
