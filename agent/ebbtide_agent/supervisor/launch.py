"""Starts the job's processes, and says in one line why one cannot be started."""

import errno
import os
import signal
import socket
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ebbtide_agent import procfs
from ebbtide_agent.accounts import Account
from ebbtide_agent.identity import Identity, boot_id
from ebbtide_agent.rights import become, rights_of
from ebbtide_agent.supervisor.cgroup import Group
from ebbtide_agent.supervisor.intent import Intent
from ebbtide_agent.supervisor.standby import Standby
from ebbtide_agent.supervisor.status import RefusalCause, Refused

# Of exec: they say that this program, or these arguments, cannot be executed anywhere.
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
    _process: "subprocess.Popen[bytes]"
    _standby: Standby | None = None

    @property
    def is_warm(self) -> bool:
        """Whether it was held ready and went on with what it had imported."""
        return self._standby is not None and self._standby.is_warm()

    def ended(self, returncode: int) -> None:
        """To be told how the process ended by whoever reaped it."""
        self._process.returncode = returncode


def start(
    local_rank: int,
    command: tuple[str, ...],
    workdir: str,
    environment: Mapping[str, str],
    output: int,
    lock: int,
    cgroup: Group | None = None,
    standby: Standby | None = None,
    account: Account | None = None,
    inherited: tuple[int, ...] = (),
) -> Rank:
    """Start one process in a process group of its own, with the output file as stdout and stderr. Raises Refused.

    `standby` is one that is held ready for it, and takes its place if it can. It runs as `account` (None: as this
    process does), and has besides the lock the descriptors that are to be `inherited`.
    """
    if not command:
        raise Refused("the command is empty", RefusalCause.BAD_JOB)
    if standby is not None and standby.give(command, workdir, environment, output, lock, cgroup):
        return _rank(local_rank, standby.process, standby)
    try:
        # When this returns the program runs, or the reason why it does not is known.
        with entrance(workdir, None if cgroup is None else cgroup.enter, account) as way_in:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(lock, *inherited),
                process_group=0,
                **way_in,
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        with rights_of(account):
            raise _refusal(command, workdir, error) from error
    return _rank(local_rank, process)


@contextmanager
def entrance(workdir: str, settle: Callable[[], None] | None, account: Account | None) -> Iterator[dict[str, Any]]:
    """What Popen has to be told so that a process begins in this directory, as this account; `settle` comes first.

    The directory is opened with the account's rights. Raises OSError.
    """
    if account is None:
        yield {"cwd": workdir, "preexec_fn": settle}  # safe: we have one thread
        return
    with rights_of(account):
        directory = os.open(workdir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield {"preexec_fn": partial(_enter, directory, settle, account)}
    finally:
        os.close(directory)


def _enter(directory: int, settle: Callable[[], None] | None, account: Account) -> None:
    """In the new process."""
    if settle is not None:
        settle()
    become(account)
    os.fchdir(directory)


def _rank(local_rank: int, process: "subprocess.Popen[bytes]", standby: Standby | None = None) -> Rank:
    # Nobody has reaped it, so it is still there even if it has ended.
    stat = procfs.read_stat(process.pid)
    assert stat is not None
    return Rank(local_rank, Identity(boot_id(), process.pid, stat.starttime), process, standby)


def stop_signal(name: str) -> int:
    """Number of the signal with this name; SIGTERM for an empty one. Raises Refused."""
    try:
        return signal.Signals[name or "SIGTERM"]
    except KeyError:
        raise Refused(f"there is no signal {name!r}", RefusalCause.BAD_JOB) from None


def rendezvous_port(intent: Intent) -> int:
    """The port that the attempt's ranks meet on: the one that its first node chose, or a free one of this node.

    Attempts begin to look in different places, so that two that start at once do not take the same. Raises Refused if
    all are taken.
    """
    if intent.master_port:
        return intent.master_port
    ports = intent.network.ports
    seed = f"{intent.cluster_id}/{intent.job_id}/{intent.attempt}"
    first = zlib.crc32(seed.encode()) % len(ports)
    for offset in range(len(ports)):
        port = ports[(first + offset) % len(ports)]
        if _is_free(port, "127.0.0.1" if intent.num_nodes == 1 else ""):
            return port
    raise Refused(f"no free port for the ranks to meet on: {ports[0]}-{ports[-1]} are all taken (ebb agent --ports)")


def _is_free(port: int, host: str) -> bool:
    with socket.socket() as probe:
        # Without it a port counts as taken for a minute after its last user, whom nobody waits for.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _refusal(command: Sequence[str], workdir: str, error: Exception) -> Refused:
    if isinstance(error, subprocess.SubprocessError):
        return Refused(f"its account cannot be taken on, or may not enter {workdir}")
    if not isinstance(error, OSError):
        return Refused(f"command or environment cannot be passed on: {error}", RefusalCause.BAD_JOB)
    if not Path(workdir).is_dir():
        return Refused(f"working directory {workdir} does not exist", RefusalCause.BAD_JOB)
    if not os.access(workdir, os.X_OK, effective_ids=True):
        return Refused(f"working directory {workdir} may not be entered", RefusalCause.BAD_JOB)
    if error.errno in _BAD_COMMAND:
        return Refused(f"command {command[0]!r}: {_BAD_COMMAND[error.errno]}", RefusalCause.BAD_JOB)
    return Refused(f"cannot start {command[0]!r}: {error.strerror}")
