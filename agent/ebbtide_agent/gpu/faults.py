"""Make fake GPUs go wrong on purpose, through faults.json, which `fake.py` describes."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ebbtide_agent.gpu.fake_state import Device, read_node
from ebbtide_agent.jsonfile import read_json, write_json

Faults = dict[str, Any]

_NOTHING_TO_DO: Final = 0
_RESET: Final = 1
"""Recovery actions of NVML."""


class FaultFile:
    """The faults in force on the fake GPUs of one directory. Every method may raise OSError and ValueError."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._path = state_dir / "faults.json"

    def devices(self) -> list[Device]:
        """Return the GPUs that are offered, in the order of their numbers; a GPU that is cut gives its slices."""
        found = list(read_node(self._state_dir / "gpus.json")[1].values())
        whole = [device for device in found if not device.parent]
        parts = {device.uuid: [part for part in found if part.parent == device.uuid] for device in whole}
        return [part for device in whole for part in (parts[device.uuid] if device.mig else [device])]

    def read(self) -> Faults:
        """Return the faults that are in force now."""
        return read_json(self._path) or {}

    def lose(self, uuid: str) -> None:
        """Make the GPU fall off the bus."""
        with self._changed() as faults:
            _include(faults, "lost", uuid)

    def restore(self, uuid: str) -> None:
        """Bring the GPU back; its errors and Xids are withdrawn, and its processes' memory is available again."""
        with self._changed() as faults:
            for name in ("lost", "no_memory"):
                _exclude(faults, name, uuid)
            faults.get("errors", {}).pop(uuid, None)
            _recover(faults, lambda hit: hit == uuid)

    def xid(self, uuid: str, xid: int) -> None:
        """Have the driver report an error of the GPU."""
        with self._changed() as faults:
            # Numbers only grow, although the list is emptied now and then.
            number = max(time.time_ns() // 1_000_000, *(1 + before["number"] for before in faults.get("xids", [])), 0)
            faults.setdefault("xids", []).append({"uuid": uuid, "xid": xid, "number": number})
            faults.setdefault("recovery", {})[uuid] = _RESET

    def hide_memory(self, uuid: str, hidden: bool) -> None:
        """Make the memory that processes hold on the GPU unavailable, or available again."""
        with self._changed() as faults:
            (_include if hidden else _exclude)(faults, "no_memory", uuid)

    def hang(self, call: str) -> None:
        """Make a function of NVML never return."""
        with self._changed() as faults:
            _include(faults, "hang", call)

    def release_late(self, uuid: str, seconds: float) -> None:
        """Make memory stay on the GPU for some seconds after its process has ended; 0: it is released at once."""
        with self._changed() as faults:
            faults.setdefault("release_after_s", {})[uuid] = seconds
            if not seconds:
                del faults["release_after_s"][uuid]

    def fail(self, uuid: str, call: str, code: int) -> None:
        """Make a function of NVML fail with a code for this GPU, or for all (`*`); 0: it works again."""
        with self._changed() as faults:
            errors = faults.setdefault("errors", {}).setdefault(uuid, {})
            errors[call] = code
            if not code:
                del errors[call]

    def permute(self) -> list[str]:
        """Have the driver number its GPUs in reverse when it is opened next; return the UUIDs in that order."""
        with self._changed() as faults:
            order = faults.get("order") or [device.parent or device.uuid for device in self.devices()]
            faults["order"] = list(dict.fromkeys(reversed(order)))
            return list(faults["order"])

    def heal(self) -> None:
        """End all faults; a GPU that had an Xid needs no recovery any more."""
        with self._changed() as faults:
            _recover(faults, lambda _: True)
            recovery = faults.get("recovery", {})
            faults.clear()
            faults["recovery"] = recovery

    @contextmanager
    def _changed(self) -> Iterator[Faults]:
        """Provide the faults to be changed, under a lock, and write them."""
        with (self._state_dir / ".faults.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            faults = self.read()
            yield faults
            write_json(self._path, {name: fault for name, fault in faults.items() if fault})


def _include(faults: Faults, name: str, value: str) -> None:
    faults[name] = sorted({*faults.get(name, []), value})


def _exclude(faults: Faults, name: str, value: str) -> None:
    faults[name] = [other for other in faults.get(name, []) if other != value]


def _recover(faults: Faults, is_meant: Callable[[str], bool]) -> None:
    hit = {xid["uuid"] for xid in faults.get("xids", []) if is_meant(xid["uuid"])}
    faults["xids"] = [xid for xid in faults.get("xids", []) if xid["uuid"] not in hit]
    faults["recovery"] = faults.get("recovery", {}) | dict.fromkeys(hit, _NOTHING_TO_DO)
