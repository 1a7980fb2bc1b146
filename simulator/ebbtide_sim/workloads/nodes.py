"""Reads the nodes of a simulated cluster from a file."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ebbtide_core.model import limits

from ebbtide_sim.workload import WorkloadError
from ebbtide_sim.workloads.openb import MIB
from ebbtide_sim.workloads.table import GIB, Row, opened, read_rows

REQUIRED: Final = ("node", "gpus", "gpu_mem_gib", "cpus", "mem_gib")
OPTIONAL: Final = ("count", "cores", "speed", "model")
OPENB: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
OPENB_GPU_MEM_GIB: Final = {
    "P100": 16.0, "T4": 16.0, "V100M16": 16.0, "V100M32": 32.0, "A10": 24.0, "G1": 32.0, "G2": 32.0, "G3": 32.0,
}  # fmt: skip
"""GPU memory by model, which the node lists lack. G1, G2 and G3 are undisclosed models; 32 GiB is assumed."""
MAX_NODES: Final = 100_000


@dataclass(frozen=True, slots=True)
class GpuKind:
    """What a GPU is: its model, and its memory in bytes."""

    model: str
    mem_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimNode:
    """A node of a simulated cluster; ``gpus`` counts whole GPUs, memory is in bytes.

    ``unlike`` says what each GPU is where not all are alike; ``model`` and ``gpu_mem_bytes`` are those of the largest.
    ``speed`` is relative to other nodes. ``cores`` and ``speed`` are the processor count and capacity that the tasks of
    a slotted server share (seed 004, section 2.2); with 0 cores, tasks do not share them.
    """

    name: str
    gpus: int
    gpu_mem_bytes: int = 0
    cpus: float = 0.0
    mem_bytes: int = 0
    cores: int = 0
    speed: float = 1.0
    model: str = ""
    unlike: tuple[GpuKind, ...] = ()

    @property
    def kinds(self) -> tuple[GpuKind, ...]:
        """What each GPU is."""
        return self.unlike or (GpuKind(self.model, self.gpu_mem_bytes),) * self.gpus


def read_cluster(path: Path) -> list[SimNode]:
    """Read a CSV of nodes with the columns `REQUIRED` and any of `OPTIONAL`, or one of openb's node lists.

    A line with a ``count`` of n stands for n equal nodes, named ``NODE-0`` and so on. Raise `WorkloadError` for a file
    that cannot be read or has no nodes.
    """
    with opened(path) as text:
        header = {name.strip() for name in text.readline().split(",")}
    nodes = list(_openb(path) if set(OPENB) <= header else _plain(path))
    if not nodes:
        raise WorkloadError(f"{path}: has no nodes, a cluster needs at least one")
    return nodes


def _plain(path: Path) -> Iterator[SimNode]:
    seen: dict[str, int] = {}
    total = 0
    for row in read_rows(path, REQUIRED, OPTIONAL):
        name = row.unseen("node", seen)
        node = SimNode(
            name=name,
            gpus=row.whole("gpus", high=limits.MAX_GPUS_PER_NODE),
            gpu_mem_bytes=row.gib("gpu_mem_gib"),
            cpus=row.number("cpus", high=limits.MAX_CPUS),
            mem_bytes=row.gib("mem_gib"),
            cores=row.whole("cores", 0, high=limits.MAX_CPUS),
            speed=_speed(row),
            model=row.text("model", ""),
        )
        count = row.whole("count", 1, 1, MAX_NODES)
        total += count
        if total > MAX_NODES:
            raise row.fault("count", f"{total} nodes are over the limit of {MAX_NODES}")
        yield from _copies(row, node, count, seen)


def _copies(row: Row, node: SimNode, count: int, seen: dict[str, int]) -> Iterator[SimNode]:
    if not row.cells.get("count"):
        yield node
        return
    for number in range(count):
        name = f"{node.name}-{number}"
        if seen.setdefault(name, row.line) != row.line:
            raise row.fault("node", f"{name!r} is the one of line {seen[name]}, too; each must be unique")
        yield replace(node, name=name)


def _speed(row: Row) -> float:
    speed = row.number("speed", 1.0, high=1e6)
    if speed == 0:
        raise row.fault("speed", "0 is not more than 0")
    return speed


def _openb(path: Path) -> Iterator[SimNode]:
    seen: dict[str, int] = {}
    for row in read_rows(path, OPENB):
        gpus = row.whole("gpu", high=limits.MAX_GPUS_PER_NODE)
        model = row.word("model", OPENB_GPU_MEM_GIB) if gpus else ""
        yield SimNode(
            name=row.unseen("sn", seen),
            gpus=gpus,
            gpu_mem_bytes=round(OPENB_GPU_MEM_GIB[model] * GIB) if gpus else 0,
            cpus=row.number("cpu_milli", high=limits.MAX_CPUS * 1000) / 1000,
            mem_bytes=round(row.number("memory_mib", high=limits.MAX_MEM_BYTES / MIB) * MIB),
            model=model,
        )
