"""Counts how much of one node is in use: GPUs, shares of GPUs, GPU memory, CPUs, and host memory."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ebbtide_core.events.fencing import StrayKind
from ebbtide_core.model.types import WHOLE, ForeignProcess, GpuId, GpuSlice, NodeAllocation

CPU_DIGITS: Final = 6
"""Digits to which sums of CPU counts, which are floats, are rounded, so that taking away undoes adding exactly."""


@dataclass(slots=True)
class Stray:
    """An attempt on a node that is not in the books, with the GPUs that it holds.

    ``grace_s`` is the time in seconds that a user gave it to end; None if no user asked it to end.
    """

    kind: StrayKind
    gpus: tuple[GpuId, ...]
    orphan: bool = False
    grace_s: float | None = None

    @property
    def is_to_end(self) -> bool:
        """Whether the stray is to end, because a user asked it to or because it counts as over."""
        return self.kind is StrayKind.OVER or self.grace_s is not None


@dataclass(slots=True)
class NodeUse:
    """The amounts in use on one node: ``whole`` GPUs, and of shared GPUs the ``shares`` in parts and the bytes.

    A GPU that is not in use is in none of these.
    """

    whole: set[GpuId] = field(default_factory=set)
    shares: dict[GpuId, int] = field(default_factory=dict)
    gpu_mem: dict[GpuId, int] = field(default_factory=dict)
    cpus: float = 0.0
    mem_bytes: int = 0

    def share(self, gpu: GpuId) -> int:
        """Return how much of ``gpu`` is in use, in parts."""
        return WHOLE if gpu in self.whole else self.shares.get(gpu, 0)

    def add(self, piece: NodeAllocation) -> bool:
        """Add ``piece``; return False if a GPU is now used twice."""
        fine, whole, shares = True, self.whole, self.shares
        for gpu in piece.gpus:
            id = gpu.gpu
            if gpu.share != WHOLE:
                fine = self._add_share(gpu) and fine
            elif id in whole or id in shares:
                fine = False
            else:
                whole.add(id)
        if piece.cpus or piece.mem_bytes:
            self.cpus = round(self.cpus + piece.cpus, CPU_DIGITS)
            self.mem_bytes += piece.mem_bytes
        return fine

    def remove(self, piece: NodeAllocation) -> bool:
        """Remove ``piece``; return False if some of it was not in use."""
        fine, whole = True, self.whole
        for gpu in piece.gpus:
            id = gpu.gpu
            if gpu.share != WHOLE:
                fine = self._remove_share(gpu) and fine
            elif id in whole:
                whole.remove(id)
            else:
                fine = False
        if piece.cpus or piece.mem_bytes:
            self.cpus = round(self.cpus - piece.cpus, CPU_DIGITS)
            self.mem_bytes -= piece.mem_bytes
            return fine and self.cpus >= 0 and self.mem_bytes >= 0
        return fine

    def _add_share(self, piece: GpuSlice) -> bool:
        share = self.shares[piece.gpu] = self.shares.get(piece.gpu, 0) + piece.share
        self.gpu_mem[piece.gpu] = self.gpu_mem.get(piece.gpu, 0) + piece.mem_bytes
        return share <= WHOLE and piece.gpu not in self.whole

    def _remove_share(self, piece: GpuSlice) -> bool:
        share = self.shares.get(piece.gpu, 0) - piece.share
        memory = self.gpu_mem.get(piece.gpu, 0) - piece.mem_bytes
        if share > 0:
            self.shares[piece.gpu], self.gpu_mem[piece.gpu] = share, memory
        else:
            self.shares.pop(piece.gpu, None)
            self.gpu_mem.pop(piece.gpu, None)
        return share >= 0 and memory >= 0

    def without(self, gpus: Iterable[GpuId]) -> "NodeUse":
        """Return a copy in which ``gpus`` are in use as a whole, so that they cannot be picked."""
        other = self.copy()
        for gpu in gpus:
            other.whole.add(gpu)
            other.shares.pop(gpu, None)
            other.gpu_mem.pop(gpu, None)
        return other

    def copy(self) -> "NodeUse":
        """Return an independent copy."""
        return NodeUse(self.whole.copy(), self.shares.copy(), self.gpu_mem.copy(), self.cpus, self.mem_bytes)


@dataclass(slots=True)
class ForeignUse:
    """The foreign processes on one GPU. Their time counts from Unix time ``since``; None: it does not count now."""

    processes: tuple[ForeignProcess, ...]
    since: float | None

    @property
    def mem_bytes(self) -> int | None:
        """The GPU memory of all these processes, in bytes; None if it is not known for each."""
        known = [process.mem_bytes for process in self.processes if process.mem_bytes is not None]
        return sum(known) if len(known) == len(self.processes) else None
