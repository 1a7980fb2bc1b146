"""Fork a process that becomes a program, and see that the program runs when exec closes a pipe.

Nothing blocks until exec, because exec opens directories and files that users choose, and may take any time.
"""

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.accounts.rights import become
from ebbtide_agent.supervisor.launching.workdir import open_workdir

_LARGEST_FAILURE: Final = 64 * 1024


class CannotEnter(Exception):
    """The process cannot switch to the account, or the account may not enter the directory."""


@dataclass(frozen=True, slots=True)
class ProcessSetup:
    """What a new process sets up before its program begins."""

    workdir: str
    account: Account | None  # that it runs as; None: this process's own
    settle: Callable[[], None] | None  # is called first in the new process
    session: bool = False  # whether it leads a new session, and not only a process group


class Program:
    """One process that becomes a program. It is reaped like any other child."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        entrance: ProcessSetup,
        streams: tuple[int, int, int],
        kept: Sequence[int],
        explain: Callable[[Exception], list[str]],
    ) -> None:
        """Fork the process, which has the `kept` descriptors besides its streams. Raises OSError if that fails.

        `explain` is called in the new process, and words why the program cannot run.
        """
        readable, writable = os.pipe2(os.O_CLOEXEC)
        before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _begin(command, environment, entrance, streams, kept, explain, writable)
        except OSError:
            os.close(readable)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(writable)
        os.set_blocking(readable, False)
        self._readable = readable
        self._said = b""
        self.is_settled = False

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there is something to `poll`; valid until that is settled."""
        return self._readable

    def poll(self) -> bool:
        """Return whether it is settled by now: the program runs, or cannot run, or the process ended before."""
        while not self.is_settled:
            try:
                data = os.read(self._readable, _LARGEST_FAILURE)
            except BlockingIOError:
                return False
            self._said += data
            if not data:
                self.is_settled = True
                os.close(self._readable)
        return True

    @property
    def failure(self) -> list[str] | None:
        """Why the program cannot run, as `explain` worded it, once that is settled; None if it runs."""
        return [str(word) for word in json.loads(self._said)] if self._said else None


def _begin(
    command: Sequence[str],
    environment: Mapping[str, str],
    entrance: ProcessSetup,
    streams: tuple[int, int, int],
    kept: Sequence[int],
    explain: Callable[[Exception], list[str]],
    out: int,
) -> None:
    """In the new process: set it up, and execute the program."""
    try:
        _forget_signals()
        os.setsid() if entrance.session else os.setpgid(0, 0)
        _arrange(streams, kept, out)
        _enter(entrance)
        _execute(command, environment)
    except Exception as error:  # noqa: BLE001 - every error is reported
        os.write(out, json.dumps(explain(error)).encode()[:_LARGEST_FAILURE])
    finally:
        os._exit(255)


def _forget_signals() -> None:
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(signum) not in (signal.SIG_DFL, None):
            signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _arrange(streams: tuple[int, int, int], kept: Sequence[int], out: int) -> None:
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in kept:
        os.set_inheritable(descriptor, True)
    spared = {0, 1, 2, out, *kept}
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in spared:
            _close(int(name))


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        return  # it was the directory listing's own descriptor


def _enter(entrance: ProcessSetup) -> None:
    try:
        if entrance.settle is not None:
            entrance.settle()
        if entrance.account is not None:
            become(entrance.account)
    except OSError as error:
        raise CannotEnter(str(error)) from error
    directory = open_workdir(entrance.workdir)
    try:
        os.fchdir(directory)
    except OSError as error:
        raise CannotEnter(str(error)) from error
    os.close(directory)


def _execute(command: Sequence[str], environment: Mapping[str, str]) -> None:
    try:
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        raise OSError(error.errno, error.strerror, command[0]) from None
