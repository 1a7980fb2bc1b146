"""Lists every check by name, in groups that do not wait for each other."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from ebbtide_agent import gpu
from ebbtide_agent.doctor import hardware, machine, python, storage
from ebbtide_agent.doctor.finding import Finding, ok
from ebbtide_agent.doctor.hardware import Answer, GpuHolder
from ebbtide_agent.doctor.subject import Subject
from ebbtide_agent.gpu.backend import GpuBackend
from ebbtide_agent.gpu.nvml import NvmlUnavailable, open_nvml
from ebbtide_agent.gpu.opening import open_backend
from ebbtide_agent.processes import process_owner, procfs
from ebbtide_agent.processes.process_tree import is_below

_NVIDIA = "0x10de"
_DISPLAY = "0x03"


@dataclass
class Known:
    """What earlier checks of the same group have found out."""

    gpus: int = 0  # how many a CUDA program has to see
    fake: bool = False


@dataclass(frozen=True, slots=True)
class Probe:
    """A check that may hang; it is given up after `limit_s` seconds."""

    name: str
    run: Callable[[Subject, Known], Iterator[Finding]]
    limit_s: float = 10.0


def _gpus(subject: Subject, known: Known) -> Iterator[Finding]:
    known.fake = gpu.is_fake(subject.gpus)
    if subject.gpus == gpu.NONE:
        yield ok("GPUs", "none wanted")
        return
    with tempfile.TemporaryDirectory() as scratch:
        try:
            backend = _open(subject, Path(scratch))
        except NvmlUnavailable as error:
            yield hardware.judge_absence(str(error), devices()[0])
            return
        known.gpus = hardware.visible(backend.gpus())
        yield from _judge(subject, backend, known.fake)


def _judge(subject: Subject, backend: GpuBackend, fake: bool) -> Iterator[Finding]:
    driver = backend.driver()
    yield hardware.judge_driver(driver)
    answers = [_ask(backend, uuid) for uuid in (each.uuid for each in backend.gpus())]
    if not answers:
        yield hardware.judge_absence("the driver knows of none", devices()[0])
        return
    yield hardware.judge_count(backend.gpus(), None if fake else devices()[1])
    for answer in answers:
        yield from hardware.judge_gpu(answer)
    yield from hardware.judge_slices(answers)
    yield hardware.judge_sharing(answers, shutil.which("nvidia-cuda-mps-control"), fake)
    yield hardware.judge_swap(driver, machine.ptrace_scope(), os.geteuid() != 0, answers)
    yield from hardware.judge_processes(answers, lambda pid: holder(pid, subject.supervisors))


def _open(subject: Subject, scratch: Path) -> GpuBackend:
    """Open the GPUs. Raises NvmlUnavailable, and ValueError for a wrong profile."""
    if not gpu.is_fake(subject.gpus):
        return open_nvml()
    own = subject.home / "nodes" / subject.node / "gpus"
    # The state of an agent's fake GPUs is read as it is; if there is none, none is left behind.
    return open_backend(subject.gpus, own if own.joinpath("gpus.json").exists() else scratch, in_use=True)


def _ask(backend: GpuBackend, uuid: str) -> Answer:
    began = time.monotonic()
    reading = backend.read(uuid)
    seconds = time.monotonic() - began
    found = next(each for each in backend.gpus() if each.uuid == uuid)
    return Answer(found, reading, backend.settings(uuid), seconds)


def holder(pid: int, supervisors: tuple[int, ...]) -> GpuHolder:
    """Return the owner of the process, which is `ours` if it is one of these supervisors or descends from one."""
    stat = procfs.read_stat(pid)
    if stat is None:
        return GpuHolder(alive=None)
    ours = any(pid == supervisor or is_below(pid, supervisor) for supervisor in supervisors)
    return GpuHolder(stat.alive, process_owner.owner_name(pid), stat.command, ours, stat.parent)


def devices(bus: Path = Path("/sys/bus/pci/devices")) -> tuple[int, int]:
    """Return how many display and compute devices of NVIDIA's there are, and how many of them its driver has."""
    found = [
        each for each in _in(bus) if _text(each / "vendor") == _NVIDIA and _text(each / "class").startswith(_DISPLAY)
    ]
    driven = [
        each for each in found if (each / "driver").is_symlink() and (each / "driver").readlink().name == "nvidia"
    ]
    return len(found), len(driven)


def _in(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


GROUPS: Final[dict[str, tuple[Probe, ...]]] = {
    "GPUs": (
        Probe("GPUs", _gpus),
        Probe("PyTorch", lambda _, known: iter([python.examine(known.gpus, known.fake)]), python.TORCH_S + 5),
    ),
    "machine": (
        Probe("clock", lambda subject, _: machine.clock(subject)),
        Probe("limits", lambda subject, _: machine.limits(subject)),
        Probe("shared memory", lambda _, __: iter([machine.shared_memory()])),
        Probe("control groups", lambda subject, _: iter([machine.control_groups(subject)])),
        Probe("job limits", lambda subject, _: iter([machine.job_limits(subject)])),
        Probe("ports", lambda subject, _: machine.ports(subject)),
    ),
    "disks": (
        Probe("EBB_HOME", lambda subject, _: storage.home(subject)),
        Probe("checkpoints", lambda subject, _: storage.checkpoints(subject)),
    ),
}
"""All checks. The checks of one group run one after the other, and may use what earlier ones found out."""

BY_NAME: Final = {probe.name: probe for probe in chain.from_iterable(GROUPS.values())}
