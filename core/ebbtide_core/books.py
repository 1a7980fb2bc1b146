"""Who holds what on each node.

Two sums are kept for everything that can be allocated:

- *held*: by every attempt whose GPUs are not proven free. What exceeds the capacity here would be double-booked.
- *promised*: by every attempt that is to go on, and by claims. It is what a policy plans with: an attempt that was
  asked to stop no longer counts, and the room kept for its preemptor does.

An attempt may start where its allocation fits both.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ebbtide_core.events import NodeRegistered
from ebbtide_core.model import WHOLE, Allocation, GpuFacts, GpuId, JobId, NodeAllocation, NodeId

CPU_DIGITS = 6
"""CPU counts are floats; their sums are rounded to this many digits, so that what was added goes away again."""


@dataclass(slots=True)
class Use:
    """Amounts in use on one node: per GPU shares in parts and memory in bytes; CPUs; host memory in bytes."""

    shares: dict[GpuId, int] = field(default_factory=dict)
    gpu_mem: dict[GpuId, int] = field(default_factory=dict)
    cpus: float = 0.0
    mem_bytes: int = 0

    def add(self, piece: NodeAllocation, sign: int = 1) -> None:
        """Add (or with ``sign`` -1, take away) what ``piece`` holds."""
        for gpu in piece.gpus:
            self.shares[gpu.gpu] = self.shares.get(gpu.gpu, 0) + sign * gpu.share
            self.gpu_mem[gpu.gpu] = self.gpu_mem.get(gpu.gpu, 0) + sign * gpu.mem_bytes
        self.cpus = round(self.cpus + sign * piece.cpus, CPU_DIGITS)
        self.mem_bytes += sign * piece.mem_bytes

    def copy(self) -> "Use":
        """An independent copy."""
        return Use(dict(self.shares), dict(self.gpu_mem), self.cpus, self.mem_bytes)


@dataclass(slots=True)
class Node:
    """One node: what it has, what of it is in use, and whether it can be reached.

    ``attempts`` are the jobs with an attempt here that is not proven over; ``planned`` those with room promised here.
    ``quarantine`` are the GPUs whose memory was not released, and why; whatever their node says, they are not used.
    """

    id: NodeId
    facts: NodeRegistered
    gpus: dict[GpuId, GpuFacts]
    connected: bool = False
    lost: bool = False
    last_seen: float = 0.0
    held: Use = field(default_factory=Use)
    promised: Use = field(default_factory=Use)
    attempts: set[JobId] = field(default_factory=set)
    planned: set[JobId] = field(default_factory=set)
    quarantine: dict[GpuId, str] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        """Whether something may be placed here."""
        return self.connected and not self.lost

    def fits(self, piece: NodeAllocation, use: Use) -> bool:
        """Whether ``piece`` fits beside ``use``."""
        return (
            use.cpus + piece.cpus <= self.facts.cpus
            and use.mem_bytes + piece.mem_bytes <= self.facts.mem_bytes
            and all(
                (facts := self.gpus.get(gpu.gpu)) is not None
                and facts.healthy
                and use.shares.get(gpu.gpu, 0) + gpu.share <= WHOLE
                and use.gpu_mem.get(gpu.gpu, 0) + gpu.mem_bytes <= facts.mem_bytes
                for gpu in piece.gpus
            )
        )

    def overbooked(self, use: Use) -> str | None:
        """What of the node is used beyond its capacity, in words."""
        for gpu, share in use.shares.items():
            if share < 0 or share > WHOLE or use.gpu_mem[gpu] < 0:
                return f"GPU {gpu} of {self.id}: {share / WHOLE:g} of it is in use"
            if gpu in self.gpus and use.gpu_mem[gpu] > self.gpus[gpu].mem_bytes:
                return f"GPU {gpu} of {self.id}: {use.gpu_mem[gpu]} bytes are in use"
        if use.mem_bytes < 0 or use.cpus < 0:
            return f"node {self.id}: negative use"
        return None


class Books:
    """The books of all nodes."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, Node] = {}

    def register(self, event: NodeRegistered, now: float) -> Node:
        """Take in a node's facts; a GPU that it no longer reports but that is held stays, as unusable."""
        gpus = {facts.gpu: facts for facts in event.gpus}
        node = self.nodes.get(event.node)
        if node is None:
            node = self.nodes[event.node] = Node(event.node, event, gpus)
        for gpu, facts in node.gpus.items():
            if gpu not in gpus and node.held.shares.get(gpu, 0) > 0:
                gpus[gpu] = GpuFacts(gpu, facts.index, facts.model, facts.mem_bytes, False, "its node lost it")
        if node.facts.boot_id != event.boot_id:  # nothing outlives a reboot
            node.quarantine.clear()
        for gpu in node.quarantine.keys() & gpus.keys():
            gpus[gpu] = replace(gpus[gpu], healthy=False, unhealthy_reason=node.quarantine[gpu])
        node.facts, node.gpus, node.last_seen = event, gpus, now
        return node

    def hold(self, job: JobId, allocation: Allocation) -> None:
        """Note that an attempt of ``job`` holds ``allocation``."""
        for piece in allocation:
            self.nodes[piece.node].held.add(piece)
            self.nodes[piece.node].attempts.add(job)

    def free(self, job: JobId, allocation: Allocation) -> None:
        """Note that it is proven free."""
        for piece in allocation:
            self.nodes[piece.node].held.add(piece, -1)
            self.nodes[piece.node].attempts.discard(job)

    def promise(self, job: JobId, allocation: Allocation) -> None:
        """Note that ``allocation`` is planned for ``job``."""
        for piece in allocation:
            self.nodes[piece.node].promised.add(piece)
            self.nodes[piece.node].planned.add(job)

    def release(self, job: JobId, allocation: Allocation) -> None:
        """Note that it no longer is."""
        for piece in allocation:
            self.nodes[piece.node].promised.add(piece, -1)
            self.nodes[piece.node].planned.discard(job)

    def free_now(self, allocation: Allocation) -> bool:
        """Whether nothing holds any of it, whoever it is promised to."""
        return all(
            (node := self.nodes.get(piece.node)) is not None and node.usable and node.fits(piece, node.held)
            for piece in allocation
        )

    def violations(self, nodes: Iterable[NodeId]) -> list[str]:
        """What is double-booked on the given nodes, in words."""
        found = (
            node.overbooked(use) for id in nodes if (node := self.nodes.get(id)) for use in (node.held, node.promised)
        )
        return [text for text in found if text]
