"""How much of one node is in use: GPUs, shares of them, their memory, CPUs, memory."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ebbtide_core.events.fencing import StrayKind
from ebbtide_core.model.types import WHOLE, ForeignProcess, GpuId, GpuSlice, NodeAllocation

CPU_DIGITS: Final = 6
"""CPU counts are floats; their sums are rounded to this many digits, so that what was added goes away again."""


@dataclass(slots=True)
class Stray:
    """An attempt on a node that is not in the books, and what it holds.

    ``grace_s`` is what somebody gave it to end; None if nobody asked it to.
    """

    kind: StrayKind
    gpus: tuple[GpuId, ...]
    orphan: bool = False
    grace_s: float | None = None

    @property
    def is_to_end(self) -> bool:
        """Whether it was asked to end, by somebody or because it counts as over."""
        return self.kind is StrayKind.OVER or self.grace_s is not None


@dataclass(slots=True)
class NodeUse:
    """Amounts in use on one node: GPUs in whole use; share in parts and memory in bytes of the others; CPUs; memory.

    GPUs that nobody uses are in none of them.
    """

    whole: set[GpuId] = field(default_factory=set)
    shares: dict[GpuId, int] = field(default_factory=dict)
    gpu_mem: dict[GpuId, int] = field(default_factory=dict)
    cpus: float = 0.0
    mem_bytes: int = 0

    def share(self, gpu: GpuId) -> int:
        """How much of ``gpu`` is in use, in parts."""
        return WHOLE if gpu in self.whole else self.shares.get(gpu, 0)

    def add(self, piece: NodeAllocation) -> bool:
        """Add what ``piece`` holds; False if a GPU is now used twice."""
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
        """Take away what ``piece`` holds; False if it was not in use."""
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
        """A copy in which these ``gpus`` are in whole use."""
        other = self.copy()
        for gpu in gpus:
            other.whole.add(gpu)
            other.shares.pop(gpu, None)
            other.gpu_mem.pop(gpu, None)
        return other

    def copy(self) -> "NodeUse":
        """An independent copy."""
        return NodeUse(self.whole.copy(), self.shares.copy(), self.gpu_mem.copy(), self.cpus, self.mem_bytes)


@dataclass(slots=True)
class ForeignUse:
    """The processes of no job on one GPU; their time is counted since Unix time ``since``, None: not now."""

    processes: tuple[ForeignProcess, ...]
    since: float | None

    @property
    def mem_bytes(self) -> int | None:
        """What they have of its memory; None if that is not known of all."""
        known = [process.mem_bytes for process in self.processes if process.mem_bytes is not None]
        return sum(known) if len(known) == len(self.processes) else None
