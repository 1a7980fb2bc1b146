"""Writes the file of jobs, and beside it the state file from which an interrupted recording goes on.

Both are replaced as a whole after every look, the jobs first. So a reader sees complete rows only, and a recorder that
is killed loses only what happened since its last look. Jobs that still run have a row with their run time so far, which
is written anew until they are over.
"""

import csv
import fcntl
import hashlib
import io
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ebbtide_machine.process import boot_id

from ebbtide_agent.gpu.backend import Gpu
from ebbtide_agent.jsonfile import read_json, write_json
from ebbtide_agent.observing.observation import NodeObservation, ObservedProcess
from ebbtide_agent.observing.tracking import ObservedRun, Tracker

COLUMNS: Final = (
    "id", "submit_s", "runtime_s", "user", "gpus_min", "gpus_max", "gpu_mem_gib", "command", "utilisation",
)  # fmt: skip
GIB: Final = 2**30
_LONGEST_CELL = 120


class CannotRecord(Exception):
    """The file cannot be recorded into; the message is one line and names the file."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a recording so far; those about jobs count the jobs in the file."""

    seconds: float  # from the first look to the last
    looks: int
    gpus: int
    jobs: int
    running: int  # jobs that still run
    gpu_hours: float
    users: int
    utilisation: float | None  # mean of all GPUs over all looks, 0 to 1; None: not available
    in_use: float  # share of GPUs with a process, over all looks
    short: int  # runs that were too short for the file
    foreign: int  # jobs of processes in another pid namespace, which this machine does not show
    gpu_mem_bytes: int  # of the largest GPU


@dataclass(slots=True)
class _Totals:
    """Sums over all looks and all jobs that have ended."""

    looks: int = 0
    jobs: int = 0
    short: int = 0
    foreign: int = 0
    gpu_s: float = 0.0
    used: int = 0  # GPUs with a process, summed over looks
    told: int = 0  # readings of utilisation
    utilisation_sum: float = 0.0
    users: list[str] = field(default_factory=list)


class Recording:
    """Records looks into a file. Only one process at a time may record into it: see `opened`."""

    def __init__(self, path: Path, gpus: tuple[Gpu, ...], min_s: float, anonymous: bool) -> None:
        self._path = path
        self._state_path = state_path(path)
        self._gpus = gpus
        self._min_s = min_s
        self._anonymous = anonymous
        self._salt = secrets.token_hex(16)
        self._began: float | None = None
        self._last = 0.0
        self._tracker = Tracker()
        self._totals = _Totals()
        self._settled = _lines([COLUMNS])
        self._go_on()

    def take(self, look: NodeObservation) -> None:
        """Add a look and write the files. Raises OSError."""
        if self._anonymous:
            look = replace(look, processes=tuple(map(self._unnamed, look.processes)))
        if self._began is None:
            self._began = look.at
        self._last = look.at
        for run in self._tracker.take(look):
            self._settle(run)
        known = [value for value in look.utilisation.values() if value is not None]
        self._totals.looks += 1
        self._totals.told += len(known)
        self._totals.utilisation_sum += sum(known)
        self._totals.used += len({uuid for process in look.processes for uuid in process.gpus})
        self._write()

    def summary(self) -> Summary:
        """Return the figures of the recording so far."""
        running, totals = self._running(), self._totals
        gpu_s = totals.gpu_s + sum(run.seconds * len(run.gpus) for run in running)
        return Summary(
            seconds=0.0 if self._began is None else self._last - self._began,
            looks=totals.looks,
            gpus=len(self._gpus),
            jobs=totals.jobs + len(running),
            running=len(running),
            gpu_hours=gpu_s / 3600,
            users=len({*totals.users, *(run.user for run in running)} - {""}),
            utilisation=totals.utilisation_sum / totals.told if totals.told else None,
            in_use=totals.used / (totals.looks * len(self._gpus)) if totals.looks and self._gpus else 0.0,
            short=totals.short,
            foreign=totals.foreign + sum(not run.user for run in running),
            gpu_mem_bytes=max((gpu.mem_bytes for gpu in self._gpus), default=0),
        )

    def _running(self) -> list[ObservedRun]:
        return [run for run in self._tracker.runs if run.seconds >= self._min_s]

    def _settle(self, run: ObservedRun) -> None:
        if run.seconds < self._min_s:
            self._totals.short += 1
            return
        self._settled += _lines([self._row(run)])
        self._totals.jobs += 1
        self._totals.gpu_s += run.seconds * len(run.gpus)
        self._totals.foreign += not run.user
        if run.user not in self._totals.users:
            self._totals.users.append(run.user)

    def _row(self, run: ObservedRun) -> tuple[object, ...]:
        assert self._began is not None
        memory = "" if run.gpu_mem_bytes is None else f"{run.gpu_mem_bytes / GIB:.3f}"
        utilisation = "" if run.utilisation is None else f"{run.utilisation:.3f}"
        gpus = len(run.gpus)
        times = (f"{run.first_s - self._began:.1f}", f"{run.seconds:.1f}")
        return (run.id, *times, _cell(run.user), gpus, gpus, memory, _cell(run.command), utilisation)

    def _unnamed(self, process: ObservedProcess) -> ObservedProcess:
        """Replace the user by a pseudonym that is the same in the whole recording, and different in any other."""
        name = hashlib.sha256(f"{self._salt}{process.user}".encode()).hexdigest()[:8]
        return replace(process, user=f"user-{name}" if process.user else "")

    def _write(self) -> None:
        rows = self._settled + _lines(self._row(run) for run in self._running())
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            draft.write_text(rows, encoding="utf-8")
            draft.replace(self._path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        write_json(self._state_path, self._state())

    def _state(self) -> dict[str, Any]:
        totals = {name: getattr(self._totals, name) for name in _Totals.__slots__}
        return {
            "boot_id": boot_id(),
            "began": self._began,
            "last": self._last,
            "salt": self._salt,
            "anonymous": self._anonymous,
            "next_id": self._tracker.next_id,
            "settled_bytes": len(self._settled.encode()),
            "runs": [run.to_json() for run in self._tracker.runs],
            "totals": totals,
        }

    def _go_on(self) -> None:
        """Restore the state that an earlier recorder left. Raises CannotRecord."""
        state = read_json(self._state_path)
        if state is None:
            if self._path.exists():
                missing = self._state_path.name
                raise CannotRecord(f"{self._path}: is there, and {missing} to go on from is not: choose another name")
            return
        try:
            self._restore(state)
        except (KeyError, TypeError, ValueError) as error:
            raise CannotRecord(f"{self._state_path}: cannot be gone on from: {error}") from None
        except OSError as error:
            raise CannotRecord(f"{self._path}: {error.strerror or error}") from None

    def _restore(self, state: dict[str, Any]) -> None:
        if self._anonymous and not state["anonymous"]:
            raise CannotRecord(f"{self._path}: has names, as it was begun without --anonymous: choose another name")
        self._settled = self._path.read_bytes()[: int(state["settled_bytes"])].decode()
        self._began, self._last = float(state["began"]), float(state["last"])
        self._salt, self._anonymous = str(state["salt"]), bool(state["anonymous"])
        runs = [ObservedRun.from_json(content) for content in state["runs"]]
        self._totals = _Totals(**state["totals"])
        self._tracker = Tracker(runs, int(state["next_id"]))
        if state["boot_id"] != boot_id():  # pids and start times of another boot match no process of now
            self._tracker = Tracker([], int(state["next_id"]))
            for run in runs:
                self._settle(run)


def state_path(path: Path) -> Path:
    """Return the path of the file from which a recording goes on."""
    return path.with_name(f"{path.name}.state")


@contextmanager
def opened(path: Path, gpus: tuple[Gpu, ...], min_s: float, anonymous: bool) -> Iterator[Recording]:
    """Begin a recording into this file, or go on with one. Raises CannotRecord, and OSError for its directory."""
    lock = path.with_name(f"{path.name}.lock")
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotRecord(f"{path}: another process records into it") from None
        try:
            yield Recording(path, gpus, min_s, anonymous)
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(handle)


def replay_command(path: Path, summary: Summary) -> str:
    """Return the command that simulates the recorded jobs on as many GPUs of the same size as the node has."""
    memory = max(1, math.ceil(summary.gpu_mem_bytes / GIB))
    return f"ebb simulate --workload {path} --nodes 1x{summary.gpus} --gpu-mem {memory}GiB --policy fitgpp"


def _lines(rows: Iterator[tuple[object, ...]] | list[tuple[object, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _cell(text: str) -> str:
    """Make text safe for any CSV reader and terminal, because users choose names and commands."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:_LONGEST_CELL]
