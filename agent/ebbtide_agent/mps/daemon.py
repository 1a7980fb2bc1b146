"""Starts the MPS control daemon of one GPU with its server, finds them again after the agent's restart, and ends them.

They outlive the agent, as the jobs do that compute through them. A record beside their directory on disk identifies
their processes. Every function blocks.
"""

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from ebbtide_machine.process import Identity

from ebbtide_agent.jsonfile import read_json, write_json
from ebbtide_agent.mps.control import ControlFailed, MpsControl

T = TypeVar("T")

FAULT = "status FAULT"
_START_S = 15.0
_QUIT_S = 10.0
_KILL_S = 3.0
_PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """A daemon that was started, and its server; either may have ended since."""

    control: MpsControl
    daemon: Identity
    servers: tuple[Identity, ...]

    @property
    def processes(self) -> tuple[Identity, ...]:
        """The daemon's own process and those of its servers."""
        return (self.daemon, *self.servers)

    @classmethod
    def load(cls, record: Path) -> Self | None:
        """Read the record of a daemon that an earlier agent has started; return None if it is damaged."""
        try:
            content = read_json(record) or {}
            control = MpsControl(str(content["binary"]), str(content["uuid"]), record.with_suffix(""))
            servers = tuple(Identity.from_json(server) for server in content["servers"])
            return cls(control, Identity.from_json(content["daemon"]), servers)
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def died(self) -> str:
        """Return in words which of the processes has ended; empty if none has."""
        if not self.daemon.is_alive():
            return "its control daemon died"
        return "" if all(server.is_alive() for server in self.servers) else "its server died"

    def failure(self) -> str:
        """Return in words why it cannot serve any more; empty if it can. Raises ControlFailed if it does not answer."""
        if died := self.died():
            return died
        try:
            return FAULT if any(self.control.is_faulty(server.pid) for server in self.servers) else ""
        except ControlFailed:
            if died := self.died():
                return died
            raise

    def clients(self) -> tuple[int, ...]:
        """Return the pids of the processes that compute through the servers. Raises ControlFailed."""
        return tuple(pid for server in self.servers if server.is_alive() for pid in self.control.clients(server.pid))

    def save(self) -> None:
        """Record on disk which processes these are. Raises OSError."""
        content: dict[str, Any] = {
            "binary": self.control.binary,
            "uuid": self.control.uuid,
            "daemon": self.daemon.to_json(),
            "servers": [server.to_json() for server in self.servers],
        }
        write_json(_record(self.control), content)


def start(control: MpsControl) -> MpsDaemon:
    """Start a daemon with a server, and return it; if that fails, none is left.

    Raises ControlFailed, and OSError if the daemon's directory cannot be made.
    """
    control.check_path()
    _end_unrecorded(control)
    shutil.rmtree(control.log_directory, ignore_errors=True)
    for directory in (control.directory, control.log_directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        control.start()
        started = MpsDaemon(control, _wait_for(lambda: _daemon(control), "the daemon does not answer"), ())
        started.save()
        control.start_server()
        served = MpsDaemon(control, started.daemon, _wait_for(lambda: _servers(control), _without_server(control)))
        served.save()
        if failure := served.failure():
            raise ControlFailed(failure)
    except ControlFailed:
        found = MpsDaemon.load(_record(control))
        if found is not None:
            end(found)
        else:
            _end_unrecorded(control)
        raise
    return served


def end(daemon: MpsDaemon) -> tuple[Identity, ...]:
    """End the daemon and its server: ask, then SIGTERM, then SIGKILL. Return the processes that are alive even then."""
    control = daemon.control
    late: tuple[Identity, ...] = ()
    with suppress(ControlFailed):
        late = tuple(found for pid in control.servers() if (found := Identity.of(pid)) is not None)
    with suppress(ControlFailed):
        control.quit()
    processes = tuple(dict.fromkeys((*daemon.servers, *late, daemon.daemon)))
    left = _wait_for_end(processes, _QUIT_S)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            process.signal(signum)
        left = _wait_for_end(left, _KILL_S)
    if not left:
        _forget(control)
    return left


def records(directory: Path) -> list[Path]:
    """Return the paths of the records of all daemons below this directory, for `MpsDaemon.load`."""
    return sorted(path for path in directory.glob("*.json") if not path.name.startswith("."))


def _record(control: MpsControl) -> Path:
    return control.directory.with_name(f"{control.directory.name}.json")


def _forget(control: MpsControl) -> None:
    """Remove directory and record; the logs stay until the next start, so that failures can be looked into."""
    shutil.rmtree(control.directory, ignore_errors=True)
    _record(control).unlink(missing_ok=True)


def _end_unrecorded(control: MpsControl) -> None:
    """End a daemon that has no record, because an agent may have died between its start and its record."""
    if control.directory.exists():
        found = None
        with suppress(ControlFailed):
            found = Identity.of(control.pid())
        with suppress(ControlFailed):
            control.quit()  # no other daemon can answer here
            _wait_for_end((found,) if found is not None else (), _QUIT_S)
        shutil.rmtree(control.directory, ignore_errors=True)


def _daemon(control: MpsControl) -> Identity | None:
    try:
        control.servers()  # raises unless the daemon answers
        return Identity.of(control.pid())
    except ControlFailed:
        return None


def _servers(control: MpsControl) -> tuple[Identity, ...]:
    return tuple(found for pid in control.servers() if (found := Identity.of(pid)) is not None)


def _without_server(control: MpsControl) -> str:
    return f"it starts no server: see {control.log_directory}"


def _wait_for(look: Callable[[], T | None], why_not: str) -> T:
    ends_at = time.monotonic() + _START_S
    while not (found := look()):
        if time.monotonic() > ends_at:
            raise ControlFailed(f"{why_not} ({_START_S:g} s)")
        time.sleep(_PAUSE_S)
    return found


def _wait_for_end(processes: tuple[Identity, ...], seconds: float) -> tuple[Identity, ...]:
    """Wait until the processes have ended, and return those that have not after so many seconds."""
    ends_at = time.monotonic() + seconds
    while left := tuple(process for process in processes if process.is_alive()):
        if time.monotonic() > ends_at:
            break
        time.sleep(_PAUSE_S)
    return left
