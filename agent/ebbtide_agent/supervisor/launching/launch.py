"""Start the job's processes, and say in one line why one cannot be started."""

import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ebbtide import regular
from ebbtide_machine.process import Identity, boot_id

from ebbtide_agent.accounts.accounts import Account
from ebbtide_agent.processes import procfs
from ebbtide_agent.processes.cgroup import ControlGroup
from ebbtide_agent.supervisor.launching.program import CannotEnter, ProcessSetup, Program
from ebbtide_agent.supervisor.launching.standby import Standby
from ebbtide_agent.supervisor.launching.workdir import MagicLink
from ebbtide_agent.supervisor.status import Refused, WireRefusalCause

# Errors of exec which mean that the program, or these arguments, cannot be executed on any node.
_BAD_COMMAND = {
    errno.ENOENT: "not found",
    errno.ENOTDIR: "not found",
    errno.EACCES: "not executable",
    errno.ENOEXEC: "not executable: neither a program nor a script with a #! line",
    errno.ELOOP: "not found: too many symbolic links",
    errno.ENAMETOOLONG: "not found: the name is too long",
    errno.E2BIG: "arguments and environment are too large",
}


@dataclass(frozen=True, slots=True)
class Rank:
    """One launched process."""

    local_rank: int
    identity: Identity
    _standby: Standby | None = None

    @property
    def is_warm(self) -> bool:
        """Whether this process was a standby that went on with what it had imported."""
        return self._standby is not None and self._standby.is_warm()

    def ended(self, returncode: int) -> None:
        """Note how the process ended; the caller has reaped it."""
        if self._standby is not None:
            self._standby.process.returncode = returncode


def start(
    local_rank: int,
    command: tuple[str, ...],
    workdir: str,
    environment: Mapping[str, str],
    output: int,
    lock: int,
    wait: Callable[[Program], None],
    cgroup: ControlGroup | None = None,
    standby: Standby | None = None,
    account: Account | None = None,
    inherited: tuple[int, ...] = (),
    stdin: int | None = None,
) -> Rank:
    """Start one process in a process group of its own, with the output file as stdout and stderr. Raises Refused.

    Without a `stdin` the standard input is empty.

    `standby` is a process that is held ready, and is used if it can be. The process runs as `account` (None: the
    account of this process), and inherits the lock and the `inherited` descriptors. `wait` returns when the program
    runs, or cannot run, and raises Refused if that takes too long; the process may be alive then.
    """
    if not command:
        raise Refused("the command is empty", WireRefusalCause.BAD_JOB)
    if standby is not None and standby.give(command, workdir, environment, output, lock, cgroup):
        return _rank(local_rank, standby.process.pid, standby)
    settle = None if cgroup is None else cgroup.enter
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        program = Program(
            command,
            environment,
            ProcessSetup(workdir, account, settle),
            (null if stdin is None else stdin, output, output),
            (lock, *inherited),
            partial(_refusal, command, workdir),
        )
    except OSError as error:
        raise Refused(f"cannot start a process: {error.strerror}") from error
    finally:
        os.close(null)
    rank = _rank(local_rank, program.pid)
    wait(program)
    if program.failure is not None:
        reason, cause = program.failure
        raise Refused(reason, WireRefusalCause(cause))
    return rank


def _rank(local_rank: int, pid: int, standby: Standby | None = None) -> Rank:
    # The process is not reaped yet, so its entry in /proc exists even if it has ended.
    stat = procfs.read_stat(pid)
    assert stat is not None
    return Rank(local_rank, Identity(boot_id(), pid, stat.starttime), standby)


def stop_signal(name: str) -> int:
    """Return the number of the signal with this name; SIGTERM for an empty name. Raises Refused."""
    try:
        return signal.Signals[name or "SIGTERM"]
    except KeyError:
        raise Refused(f"there is no signal {name!r}", WireRefusalCause.BAD_JOB) from None


def _refusal(command: Sequence[str], workdir: str, error: Exception) -> list[str]:
    """Return why the command cannot be executed, and the cause. It is called with the rights of the job's process."""
    if isinstance(error, CannotEnter):
        return [f"its account cannot be taken on, or may not enter {workdir}", WireRefusalCause.NODE]
    if not isinstance(error, OSError):
        return [f"command or environment cannot be passed on: {error}", WireRefusalCause.BAD_JOB]
    if isinstance(error, MagicLink):
        return [f"working directory {workdir} {error.strerror}", WireRefusalCause.BAD_JOB]
    try:
        if not regular.is_folder(workdir):
            return [f"working directory {workdir} does not exist", WireRefusalCause.BAD_JOB]
    except OSError as unknown:  # such as a stale handle; elsewhere or later the directory may be there
        cause = WireRefusalCause.BAD_JOB if unknown.errno in _BAD_COMMAND else WireRefusalCause.NODE
        return [f"working directory {workdir}: {unknown.strerror}", cause]
    if not os.access(workdir, os.X_OK, effective_ids=True):
        return [f"working directory {workdir} may not be entered", WireRefusalCause.BAD_JOB]
    if error.errno in _BAD_COMMAND:
        return [f"command {command[0]!r}: {_BAD_COMMAND[error.errno]}", WireRefusalCause.BAD_JOB]
    return [f"cannot start {command[0]!r}: {error.strerror}", WireRefusalCause.NODE]
