"""Which GPUs a job would get: a trial over the books that can be changed and thrown away."""

from collections.abc import Iterable

from ebbtide_core.books import Node, Use
from ebbtide_core.job import Job
from ebbtide_core.model import WHOLE, Allocation, GpuFacts, GpuId, GpuSlice, NodeAllocation, NodeId


class Trial:
    """The promised use of every node, as if a plan had been carried out; copied only where it differs."""

    def __init__(self, nodes: dict[NodeId, Node]) -> None:
        self.nodes = nodes
        self._use: dict[NodeId, Use] = {}

    def use(self, node: NodeId) -> Use:
        """What is in use on ``node``; not to be changed."""
        return self._use.get(node) or self.nodes[node].promised

    def take(self, allocation: Allocation) -> None:
        """Put ``allocation`` into use."""
        self._add(allocation, 1)

    def give(self, allocation: Allocation) -> None:
        """Give ``allocation`` back."""
        self._add(allocation, -1)

    def _add(self, allocation: Allocation, sign: int) -> None:
        for piece in allocation:
            if piece.node in self.nodes:
                if piece.node not in self._use:
                    self._use[piece.node] = self.nodes[piece.node].promised.copy()
                self._use[piece.node].add(piece, sign)

    def find(
        self, job: Job, share: int, nodes: Iterable[NodeId] | None = None, *, free_now: bool = False
    ) -> Allocation | None:
        """Room for ``job`` with ``share`` parts of GPUs on one node, the best of ``nodes`` (all if None).

        With ``free_now``, only room that nobody else holds any more; otherwise such room comes first. Then rigid jobs
        go to the fullest node (best fit), elastic ones to the emptiest, where they can grow.
        """
        found = (piece for id in (self.nodes if nodes is None else nodes) if (piece := self._on_node(job, share, id)))
        best = min(found, key=lambda piece: self._cost(job, piece), default=None)
        if best is None or (free_now and not _free_now(job, self.nodes[best.node], best)):
            return None
        return Allocation((best,))

    def _cost(self, job: Job, piece: NodeAllocation) -> tuple[bool, int]:
        node = self.nodes[piece.node]
        used = sum(self.use(node.id).shares.values())
        left = len(node.gpus) * WHOLE - used
        return (not _free_now(job, node, piece), -left if job.elastic else left)

    def _on_node(self, job: Job, share: int, id: NodeId) -> NodeAllocation | None:
        node = self.nodes.get(id)
        if node is None or not reads_checkpoint(job, node):
            return None
        use = self.use(id)
        slices = self._slices(job, share, node, use)
        if slices is None:
            return None
        piece = NodeAllocation(id, slices, job.spec.cpus, job.spec.mem_bytes)
        return piece if node.fits(piece, use) else None

    def _slices(self, job: Job, share: int, node: Node, use: Use) -> tuple[GpuSlice, ...] | None:
        each = min(share, WHOLE)
        count = share // each if each else 0
        if count > len(node.gpus):
            return None
        own = _own_gpus(job)
        fitting = [facts for facts in node.gpus.values() if _fits_gpu(job, each, facts, use)]
        if len(fitting) < count:
            return None
        fitting.sort(key=lambda facts: _gpu_cost(facts, each, node, use, own))
        chosen = sorted(fitting[:count], key=lambda facts: facts.index)
        return tuple(GpuSlice(facts.gpu, each, gpu_mem(job, each, facts)) for facts in chosen)


def gpu_mem(job: Job, share: int, facts: GpuFacts) -> int:
    """Memory that ``job`` gets on a GPU, in bytes: all of a whole one, else what it asked for or its share."""
    if share == WHOLE:
        return facts.mem_bytes
    return job.spec.gpu_mem_bytes or facts.mem_bytes * share // WHOLE


def _fits_gpu(job: Job, share: int, facts: GpuFacts, use: Use) -> bool:
    memory = gpu_mem(job, share, facts)
    return (
        facts.healthy
        and job.spec.gpu_mem_bytes <= facts.mem_bytes
        and use.shares.get(facts.gpu, 0) + share <= WHOLE
        and use.gpu_mem.get(facts.gpu, 0) + memory <= facts.mem_bytes
    )


def _gpu_cost(facts: GpuFacts, share: int, node: Node, use: Use, own: frozenset[GpuId]) -> tuple[bool, bool, int, int]:
    """Free ones first, then its own, then (for a share of a GPU) the fullest that still fits, then by index."""
    leaving = node.held.shares.get(facts.gpu, 0) + share > WHOLE
    return (leaving and facts.gpu not in own, facts.gpu not in own, -use.shares.get(facts.gpu, 0), facts.index)


def _own_gpus(job: Job) -> frozenset[GpuId]:
    return frozenset(job.attempts[-1].allocation.gpu_ids) if job.attempts else frozenset()


def _free_now(job: Job, node: Node, piece: NodeAllocation) -> bool:
    """Whether nobody else holds any of it."""
    holding = job.holding
    if holding is None or node.id not in holding.allocation.node_ids:
        return node.fits(piece, node.held)
    others = node.held.copy()
    for own in holding.allocation:
        if own.node == node.id:
            others.add(own, -1)
    return node.fits(piece, others)


def reads_checkpoint(job: Job, node: Node) -> bool:
    """Whether ``node`` can read what earlier attempts of ``job`` saved."""
    return not job.checkpoint_root_id or node.facts.checkpoint_root_id == job.checkpoint_root_id
