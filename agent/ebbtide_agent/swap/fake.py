"""Checkpoints processes on fake GPUs as the real driver does, in the fake GPUs' state directory.

    checkpoints/<pid>.json   {"pid", "starttime", "state", "gpus": {uuid: bytes}}: states other than RUNNING
    faults.json              {"driver": {call: code or "hang"}, "host_room_bytes": bytes}: read anew at every call

It moves the process's entry on its GPUs, so the fake memory is really free meanwhile and another job fits. The process
itself computes on CPUs, which no driver call stops: it stops because `sequence` freezes a swapped job's processes with
SIGSTOP, on fake GPUs as on real ones. Between `lock` and that, it computes on.
"""

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ebbtide_agent.gpu.fake import FakeNvml, NVMLError
from ebbtide_agent.gpu.handles import handle_of
from ebbtide_agent.jsonfile import read_json
from ebbtide_agent.processes import procfs
from ebbtide_agent.swap.driver import (
    ILLEGAL_STATE,
    INVALID_VALUE,
    OPERATING_SYSTEM,
    OUT_OF_MEMORY,
    DriverError,
    ProcessState,
)

_NO_STATE: dict[str, Any] = {}


class FakeDriver:
    """Implements `CheckpointDriver` for fake GPUs."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir

    def initialise(self) -> None:
        self._suffer("initialise")

    def state(self, pid: int) -> ProcessState:
        self._suffer("state")
        return self._find(pid, "tell the process's state")[0]

    def lock(self, pid: int, timeout_s: float) -> None:
        self._suffer("lock")
        self._expect(pid, ProcessState.RUNNING, "lock the process")
        self._enter(pid, ProcessState.LOCKED, {})

    def checkpoint(self, pid: int) -> None:
        self._expect(pid, ProcessState.LOCKED, "checkpoint the process")
        self._suffer("checkpoint", pid)
        self._enter(pid, ProcessState.CHECKPOINTED, self._registered(pid)["gpus"])
        self._entry(pid).unlink()

    def restore(self, pid: int) -> None:
        state, gpus = self._find(pid, "restore the process")
        if state is ProcessState.FAILED:
            raise DriverError("restore the process", OPERATING_SYSTEM)
        self._expect(pid, ProcessState.CHECKPOINTED, "restore the process")
        self._suffer("restore", pid)
        if not self._has_room(gpus):
            self._enter(pid, ProcessState.FAILED, gpus)
            raise DriverError("restore the process", OUT_OF_MEMORY)
        self._replace(self._entry(pid), {**_identity(pid), "gpus": gpus})
        self._enter(pid, ProcessState.LOCKED, {})

    def unlock(self, pid: int) -> None:
        self._suffer("unlock")
        self._expect(pid, ProcessState.LOCKED, "unlock the process")
        forget(self._state_dir, pid)

    def host_room_bytes(self, pid: int) -> int | None:
        room = self._faults().get("host_room_bytes")
        return None if room is None else int(room)

    def _find(self, pid: int, call: str) -> tuple[ProcessState, dict[str, int]]:
        """Return the state of a process that has or had memory on a GPU, and what it held there and holds no more."""
        kept = read_json(_record(self._state_dir, pid)) or _NO_STATE
        if kept and kept["starttime"] == _identity(pid)["starttime"]:
            return ProcessState(kept["state"]), kept["gpus"]
        if self._registered(pid)["starttime"] != _identity(pid)["starttime"]:
            raise DriverError(call, INVALID_VALUE)
        return ProcessState.RUNNING, {}

    def _expect(self, pid: int, state: ProcessState, call: str) -> None:
        if self._find(pid, call)[0] is not state:
            raise DriverError(call, ILLEGAL_STATE)

    def _enter(self, pid: int, state: ProcessState, gpus: dict[str, int]) -> None:
        record = _record(self._state_dir, pid)
        record.parent.mkdir(mode=0o700, exist_ok=True)
        self._replace(record, {**_identity(pid), "state": int(state), "gpus": gpus})

    def _has_room(self, gpus: dict[str, int]) -> bool:
        nvml = FakeNvml(self._state_dir)
        try:
            return all(_fits(nvml, uuid, mem_bytes) for uuid, mem_bytes in gpus.items())
        except NVMLError:
            return False

    def _registered(self, pid: int) -> dict[str, Any]:
        return read_json(self._entry(pid)) or {"starttime": -1, "gpus": {}}

    def _entry(self, pid: int) -> Path:
        return self._state_dir / "processes" / f"{pid}.json"

    def _replace(self, path: Path, content: dict[str, Any]) -> None:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(content))
        draft.replace(path)

    def _suffer(self, call: str, pid: int | None = None) -> None:
        """Fail as the faults in force say; a fault that hits a process amid a copy leaves it FAILED."""
        fault = self._faults().get("driver", {}).get(call)
        if fault is None:
            return
        if fault == "hang":
            _hang()
        if pid is not None:
            self._enter(pid, ProcessState.FAILED, self._find(pid, call)[1])
        raise DriverError(f"{call} (a fault of the fake)", int(fault))

    def _faults(self) -> dict[str, Any]:
        return read_json(self._state_dir / "faults.json") or {}


def forget(state_dir: Path, pid: int) -> None:
    """Remove what is recorded of the process's state."""
    with suppress(OSError):
        _record(state_dir, pid).unlink()


def _fits(nvml: FakeNvml, uuid: str, mem_bytes: int) -> bool:
    handle = handle_of(nvml, uuid)
    return bool(min(mem_bytes, handle.mem_bytes - handle.idle_bytes) <= nvml.nvmlDeviceGetMemoryInfo(handle).free)


def _record(state_dir: Path, pid: int) -> Path:
    return state_dir / "checkpoints" / f"{pid}.json"


def _identity(pid: int) -> dict[str, int]:
    stat = procfs.read_stat(pid)
    if stat is None or not stat.alive:
        raise DriverError("find the process", INVALID_VALUE)
    return {"pid": pid, "starttime": stat.starttime}


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)
