"""Make and read the directory that describes fake GPUs; `fake.py` explains its files."""

import fcntl
import json
import os
import time
import uuid as uuids
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from ebbtide_agent.gpu.profiles import MIB, FakeGpu, Profile
from ebbtide_agent.jsonfile import read_json, write_json
from ebbtide_agent.processes import procfs

T = TypeVar("T")

DRIVER = "580.65.06"
CUDA = "13.0"
# What an idle GPU shows as used.
_IDLE_BYTES = 16 * MIB
# A file system's clock ticks: a file that was replaced so recently may be replaced again with the same time.
_UNSETTLED_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or MIG slice of gpus.json."""

    uuid: str
    model: str
    mem_bytes: int
    idle_bytes: int
    reserved_bytes: int = 0
    pci_bus_id: str = ""
    numa_node: int | None = None
    compute_capability: str = ""
    persistence: bool | None = None
    compute_mode: int | None = None
    mig: bool | None = None
    parent: str = ""
    minor: int | None = None


@dataclass(frozen=True, slots=True)
class FakeProcess:
    """A process and the memory that it holds; pid and start time together identify the process."""

    pid: int
    starttime: int
    gpus: dict[str, int | None] = field(compare=False, hash=False)
    mps: bool = field(default=False, compare=False, hash=False)


class Cached(Generic[T]):
    """A value that is made from a file or directory, and made again when that was replaced."""

    def __init__(self, path: Path, make: Callable[[Path], T]) -> None:
        self._path = path
        self._make = make
        self._seen: tuple[int, ...] | None = None
        self._value: T | None = None

    def value(self) -> T:
        """Return the current value. Raises what making it raises."""
        seen = self._look()
        if self._value is None or seen is None or seen != self._seen:
            self._value, self._seen = self._make(self._path), seen
        return self._value

    def _look(self) -> tuple[int, ...] | None:
        """Return what identifies this version of the file; None if it was changed too recently to tell."""
        try:
            stat = os.stat(self._path)
        except OSError:
            return (0,)
        if time.time_ns() - stat.st_mtime_ns < _UNSETTLED_NS:
            return None
        return (stat.st_ino, stat.st_mtime_ns, stat.st_size)


def set_up(state_dir: Path, profile: Profile, keep: bool) -> bool:
    """Make the state directory hold these GPUs, which keep their UUIDs if they are there already.

    With `keep`, other GPUs that are there stay instead, because attempts run on them, and False is returned.
    Raises OSError, and ValueError if the directory is broken.
    """
    (state_dir / "processes").mkdir(mode=0o700, parents=True, exist_ok=True)
    path = state_dir / "gpus.json"
    before = {} if read_json(path) is None else read_node(path)[1]
    if _sizes(before.values()) == [size for gpu in profile.gpus for size in _sizes_of(gpu)]:
        names = list(before)
    elif before and keep:
        return False
    else:
        names = [f"{kind}-{uuids.uuid4()}" for gpu in profile.gpus for kind in ("GPU", *["MIG"] * len(gpu.slices))]
    content = _describe(profile, names)
    if read_json(path) != content:
        write_json(path, content)
    return True


def register(state_dir: Path, pid: int, starttime: int, gpus: Mapping[str, int | None]) -> None:
    """List the process on GPUs; `gpus` are the bytes that it holds on each, by UUID. Raises OSError."""
    path = _entry(state_dir, pid)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for holder in read_holders(path.parent):
        if not lives(holder):
            unregister(state_dir, holder.pid)
    draft = path.with_name(f".{pid}")
    draft.write_text(json.dumps({"pid": pid, "starttime": starttime, "gpus": dict(gpus)}))
    os.replace(draft, path)


def held(state_dir: Path, pid: int, starttime: int) -> dict[str, int | None]:
    """Return what this process holds: bytes by UUID of the GPU."""
    found = (holder for holder in read_holders(state_dir / "processes") if holder.pid == pid)
    return next((holder.gpus for holder in found if holder.starttime == starttime), {})


def lives(holder: FakeProcess) -> bool:
    """Return whether the process, and not another one with its pid, is alive."""
    stat = procfs.read_stat(holder.pid)
    return stat is not None and stat.alive and stat.starttime == holder.starttime


@contextmanager
def locked(state_dir: Path) -> Iterator[None]:
    """Lock the directory, so that no other process takes memory meanwhile. Raises OSError."""
    with (state_dir / ".memory.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unregister(state_dir: Path, pid: int) -> None:
    """Take the process off its GPUs; a dead one holds nothing even if this never happens."""
    with suppress(OSError):
        _entry(state_dir, pid).unlink()


def _entry(state_dir: Path, pid: int) -> Path:
    return state_dir / "processes" / f"{pid}.json"


def _sizes(devices: Iterable[Device]) -> list[tuple[str, int, bool]]:
    return [(device.model, device.mem_bytes, bool(device.parent)) for device in devices]


def _sizes_of(gpu: FakeGpu) -> list[tuple[str, int, bool]]:
    return [(gpu.model, gpu.mem_bytes, False), *((part.model, part.mem_bytes, True) for part in gpu.slices)]


def _describe(profile: Profile, names: list[str]) -> dict[str, Any]:
    """Return the content of gpus.json; `names` are the UUIDs of the GPUs, each followed by those of its slices."""
    rest = iter(names)
    described: list[dict[str, Any]] = []
    whole: list[str] = []
    for index, gpu in enumerate(profile.gpus):
        common = {
            "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
            "numa_node": gpu.numa_node,
            "compute_capability": gpu.compute_capability,
        }
        whole.append(next(rest))
        own = {"uuid": whole[-1], "model": gpu.model, "mem_bytes": gpu.mem_bytes, "idle_bytes": _IDLE_BYTES}
        settings = {"persistence": True, "compute_mode": 0, "mig": bool(gpu.slices)}
        described.append({**own, **common, **settings, "minor": index})
        described += [
            {"uuid": next(rest), "model": part.model, "mem_bytes": part.mem_bytes, "idle_bytes": _IDLE_BYTES, **common}
            | {"parent": whole[-1]}
            for part in gpu.slices
        ]
    return {
        "driver": DRIVER,
        "cuda": CUDA,
        "gpus": described,
        "nvlinks": [[whole[place] for place in group] for group in profile.nvlinks],
        "switches": [[whole[place] for place in group] for group in profile.switches],
    }


def read_node(path: Path) -> tuple[dict[str, Any], dict[str, Device]]:
    """Return the content of gpus.json, and its GPUs by UUID. Raises ValueError."""
    content = read_json(path) or {}
    try:
        return content, {gpu["uuid"]: Device(**gpu) for gpu in content["gpus"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} does not describe GPUs: {error}") from None


def read_holders(directory: Path) -> Iterator[FakeProcess]:
    """Yield the processes that are registered in the directory, living or not."""
    for path in directory.glob("[0-9]*.json"):
        try:
            content = json.loads(path.read_text())
            yield FakeProcess(
                int(content["pid"]), int(content["starttime"]), dict(content["gpus"]), content.get("mps") is True
            )
        except (OSError, ValueError, KeyError, TypeError):
            # The file was removed since it was listed, or is not written whole: it registers no process.
            continue
