"""Which GPUs a job would get: a trial over the books that can be changed and thrown away."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, filterfalse, islice
from typing import Final

from ebbtide_core.books import Books, Node, Room
from ebbtide_core.job import Job
from ebbtide_core.linking import Topology
from ebbtide_core.model import WHOLE, Allocation, GpuId, GpuSlice, NodeAllocation, NodeId, SuspendMode
from ebbtide_core.moving import reads_checkpoint
from ebbtide_core.use import Use

CONTEXT_BYTES: Final = 600 * 2**20
"""What CUDA keeps for each process on a GPU, beside the process's own data: 300 to 600 MiB, by driver and libraries."""


class Trial:
    """The promised use of every node, as if a plan had been carried out; copied only where it differs.

    What is taken is entered when somebody next looks: the last placement of a pass, often its only one, costs nothing.
    """

    def __init__(self, books: Books) -> None:
        self.nodes = books.usable
        self._books = books
        self._room: Room = books.room
        self._changed = False
        self._taken: list[Allocation] = []
        self._use: dict[NodeId, Use] = {}

    @property
    def idle(self) -> int:
        """How many GPUs would be promised to nobody, on all usable nodes; at most, if shares of GPUs were taken."""
        if not self._taken:
            return self._room.total
        return self._room.total - sum([taken.share // WHOLE for taken in self._taken])

    @property
    def most(self) -> int:
        """The greatest share that may be promised to nobody, in parts; never less than there is."""
        if (idle := self.idle) > 0:
            return idle * WHOLE
        shared = self._room.shared or self._books.beside or any(taken.share % WHOLE for taken in self._taken)
        return WHOLE - 1 if shared else 0

    @property
    def room(self) -> Room:
        """The nodes by idle GPUs; not to be changed."""
        self._enter()
        return self._room

    def use(self, node: NodeId) -> Use:
        """What is in use on ``node``; not to be changed."""
        if self._taken:
            self._enter()
        return self._use.get(node) or self.nodes[node].promised

    def take(self, allocation: Allocation) -> None:
        """Put ``allocation`` into use."""
        self._taken.append(allocation)

    def give(self, allocation: Allocation) -> None:
        """Give ``allocation`` back."""
        self._enter()
        for node, use, piece in self._changing(allocation):
            use.remove(piece)
            self._room.update(node, use)

    def _enter(self) -> None:
        """Enter what was taken into the copy."""
        taken, self._taken = self._taken, []
        for allocation in taken:
            for node, use, piece in self._changing(allocation):
                use.add(piece)
                self._room.update(node, use)

    def _changing(self, allocation: Allocation) -> Iterator[tuple[Node, Use, NodeAllocation]]:
        if not self._changed:
            self._room, self._changed = self._room.copy(), True
        for piece in allocation.nodes:
            node = self.nodes.get(piece.node)
            if node is None:
                continue
            use = self._use.get(piece.node)
            if use is None:
                use = self._use[piece.node] = node.promised.copy()
            yield node, use, piece

    def is_gang(self, job: Job, share: int | None = None) -> bool:
        """Whether ``job`` can have ``share`` parts of GPUs (by default, its smallest size) on several nodes only."""
        if job.spec.nodes > 1:
            return True
        share = job.gpus_min if share is None else share
        return share > WHOLE and job.spec.max_nodes > 1 and share > self._books.largest * WHOLE

    def find(
        self,
        job: Job,
        share: int,
        nodes: Iterable[NodeId] | None = None,
        *,
        free_now: bool = False,
        fullest: bool = False,
    ) -> Allocation | None:
        """Room for ``job`` with ``share`` parts of GPUs, on the best of ``nodes`` (all if None).

        Room that nobody else holds any more comes first; with ``free_now``, no other counts. Then jobs go to the
        fullest node (best fit), but those that can grow to the emptiest, unless the ``fullest`` is asked for. A gang,
        which is larger than any node and allows several, takes whole GPUs from as few nodes as possible; so does a job
        that may be spread where no node has room. One that wants a number of nodes takes equally many from each.
        """
        self._enter()
        if (own := job.own_room) is not None:
            return self._own(job, own, nodes, free_now)
        if job.spec.nodes > 1:
            return self._spread(job, share, nodes, free_now)
        if share > WHOLE and self.is_gang(job, share):
            return (self._combined if job.spec.spread else self._gang)(job, share // WHOLE, nodes, free_now)
        later, known, uses = None, self.nodes, self._use
        cpus, count, waits = job.spec.cpus, share // WHOLE, job.holding is None
        for id in self._candidates(job, share, fullest) if nodes is None else nodes:
            node = known.get(id)
            # Most nodes are ruled out by these two looks, which is much cheaper than to pick GPUs.
            if node is None or (cpus and (uses.get(id) or node.promised).cpus + cpus > node.facts.cpus):
                continue
            if later and waits and (node.held.cpus + cpus > node.facts.cpus or node.idle(node.held) < count):
                continue
            piece = self._on_node(job, share, node)
            if piece is None:
                continue
            if self._free_now(job, node, piece):
                return Allocation((piece,))
            later = later or piece
        if share > WHOLE and job.spec.spread:
            several = self._combined(job, count, nodes, free_now or later is not None)
            if several is not None:
                return several
        return None if later is None or free_now else Allocation((later,))

    def _own(self, job: Job, own: Allocation, nodes: Iterable[NodeId] | None, free_now: bool) -> Allocation | None:
        """``own``, the only room for ``job``, if nobody else has it here."""
        [piece] = own.nodes
        node = self.nodes.get(piece.node)
        if (
            node is None
            or (nodes is not None and piece.node not in nodes)
            or not node.fits(piece, self.use(piece.node))
            or (self._books.apart is not None and piece.gpus[0].gpu in self._books.apart.gpus(job.id, node))
        ):
            return None
        return own if not free_now or _free_now(job, node, piece) else None

    def has_room(self, job: Job, node: Node) -> bool:
        """Whether ``node`` has room for ``job``, or for its part of it if it wants several nodes."""
        self._enter()
        if job.spec.nodes > 1:
            return self._on_node(job, job.gpus_min // job.spec.nodes, node) is not None
        return self.find(job, job.gpus_min, (node.id,)) is not None

    def grown(self, job: Job, allocation: Allocation, share: int) -> Allocation | None:
        """``allocation``, which is in use in this trial, with more whole GPUs, so that it has ``share`` parts in all.

        They come from its own nodes, and from others only if ``share`` is more than any node has.
        """
        self._enter()
        pieces, left = [], (share - allocation.share) // WHOLE
        for piece in allocation.nodes:
            node = self.nodes[piece.node]
            use, own_gpus = self.use(piece.node), [gpu.gpu for gpu in piece.gpus]
            if node.topology is not None and not node.topology.slices.isdisjoint(own_gpus):
                return None
            if job.excluded_gpus:
                use = use.without(job.excluded_gpus & node.gpus.keys())
            more = min(left, node.idle_together(use))
            extra = _pick(job, more * WHOLE, node, use, own_gpus)
            if extra:
                piece = NodeAllocation(piece.node, piece.gpus + extra, piece.cpus, piece.mem_bytes)
                left -= more
            pieces.append(piece)
        own = allocation.node_ids
        root = self.nodes[own[0]].facts.checkpoint_root_id if job.spec.spread else None
        for node, idle in self._emptiest_first(None) if left and self.is_gang(job, share) else ():
            if len(pieces) == job.spec.max_nodes or not left:
                break
            new = (
                self._on_node(job, min(idle, left) * WHOLE, node, ())
                if node.id not in own and _sees(node, root)
                else None
            )
            if new is not None:
                pieces.append(new)
                left -= len(new.gpus)
        return None if left else Allocation(tuple(pieces))

    def _candidates(self, job: Job, share: int, fullest: bool) -> Iterator[NodeId]:
        """The nodes that may have room, the best first."""
        idle = self._room.idle
        if 0 < share < WHOLE:
            yield from self._by_least_left(job, share)
        first = max(1, share // WHOLE) if share else 0
        for count in sorted(idle, reverse=job.gpus_max > share and not fullest):
            if count >= first:
                yield from idle[count]
        if 0 < share < WHOLE and self._books.beside:
            yield from self._books.beside

    def _by_least_left(self, job: Job, share: int) -> list[NodeId]:
        """The nodes that have ``share`` of a GPU left that is shared already, those with the best fit first."""
        fits: dict[NodeId, float] = {}
        most = WHOLE - share  # may be in use of a GPU: most that are shared are full, and need no closer look
        for id in self._room.shared:
            use = self.use(id)
            gpus = [gpu for gpu, used in use.shares.items() if used <= most]
            slices = [whole for gpu in gpus if (whole := self.nodes[id].slices.get(gpu)) is not None]
            left = [left for whole in slices if (left := left_over(job, share, whole, whole, use)) is not None]
            if left:
                fits[id] = min(left)
        return sorted(fits, key=fits.__getitem__)

    def _on_node(
        self, job: Job, share: int, node: Node, beside: Collection[GpuId] | None = None
    ) -> NodeAllocation | None:
        """Room for ``job`` there; ``beside``: as for `_pick`."""
        use, spec = self._use.get(node.id) or node.promised, job.spec
        if (
            (spec.cpus and use.cpus + spec.cpus > node.facts.cpus)
            or (spec.mem_bytes and use.mem_bytes + spec.mem_bytes > node.facts.mem_bytes)
            or (job.checkpoint_root_id and not reads_checkpoint(job, node, self._books))
            or (job.excluded and node.id in job.excluded)
        ):
            return None
        if job.excluded_gpus:
            use = use.without(job.excluded_gpus)
        if self._books.apart is not None and 0 < share < WHOLE:
            use = use.without(self._books.apart.gpus(job.id, node))
        slices = _pick(job, share, node, use, beside)
        return None if slices is None else NodeAllocation(node.id, slices, spec.cpus, spec.mem_bytes)

    def _free_now(self, job: Job, node: Node, piece: NodeAllocation) -> bool:
        """Whether nobody else holds any of ``piece``, for which there is room in this trial."""
        return self._untouched(node) or _free_now(job, node, piece)

    def _untouched(self, node: Node) -> bool:
        """Whether what fits here in this trial fits beside what is held, too."""
        return node.promised is node.held and node.id not in self._use

    def _gang(self, job: Job, count: int, nodes: Iterable[NodeId] | None, free_now: bool) -> Allocation | None:
        """``count`` whole GPUs of several nodes; those that are free now if that is possible."""
        if self._room.total < count:
            return None
        wanted = None if nodes is None else set(nodes)
        spec, use, most = job.spec, self._use, job.spec.max_nodes
        modest = not (job.attempts or spec.cpus or spec.mem_bytes or job.gpu_mem_bytes)
        for now in (True,) if free_now else (True, False):
            pieces: list[NodeAllocation] = []
            left = count
            for node, idle in self._emptiest_first(wanted):
                piece: NodeAllocation | None
                if modest and idle == len(node.slices) <= left and node.promised is node.held and node.id not in use:
                    # Most pieces of most gangs are all of an idle node: for a job that asks for nothing else, and has
                    # nowhere to come back to, there is nothing to look at.
                    piece = node.entire
                else:
                    piece = self._on_node(job, min(idle, left) * WHOLE, node, ())
                    if now and piece is not None and not self._free_now(job, node, piece):
                        piece = None
                if piece is not None:
                    pieces.append(piece)
                    left -= len(piece.gpus)
                    if left == 0 or len(pieces) == most:
                        break
            if left == 0:
                return Allocation(tuple(pieces))
        return None

    def _combined(self, job: Job, count: int, nodes: Iterable[NodeId] | None, free_now: bool) -> Allocation | None:
        """``count`` whole GPUs of nodes that share a checkpoint root; if several do, of as few nodes as possible."""
        if self._room.total < count:
            return None
        groups: dict[str, list[NodeId]] = {}
        for id in self.nodes if nodes is None else nodes:
            if (node := self.nodes.get(id)) is not None:
                groups.setdefault(node.facts.checkpoint_root_id, []).append(id)
        for now in (True,) if free_now else (True, False):
            found = [room for group in groups.values() if (room := self._gang(job, count, group, now)) is not None]
            if found:
                return min(found, key=lambda room: len(room.nodes))
        return None

    def _spread(self, job: Job, share: int, nodes: Iterable[NodeId] | None, free_now: bool) -> Allocation | None:
        """The same number of whole GPUs on each of as many nodes as ``job`` wants, which share a checkpoint root."""
        count = job.spec.nodes
        each, wanted = share // count, None if nodes is None else set(nodes)
        for now in (True,) if free_now else (True, False):
            found: dict[str, list[NodeAllocation]] = {}
            for id in self._candidates(job, each, True):
                node = self.nodes.get(id) if wanted is None or id in wanted else None
                piece = None if node is None else self._on_node(job, each, node, ())
                if node is None or piece is None or (now and not self._free_now(job, node, piece)):
                    continue
                pieces = found.setdefault(node.facts.checkpoint_root_id, [])
                pieces.append(piece)
                if len(pieces) == count:
                    return Allocation(tuple(pieces))
        return None

    def _emptiest_first(self, wanted: set[NodeId] | None) -> Iterator[tuple[Node, int]]:
        idle, known, sliced = self._room.idle, self.nodes, self._books.sliced
        for count in sorted(idle, reverse=True):
            if count == 0:
                return
            for id in idle[count]:
                if wanted is None or id in wanted:
                    if not sliced or id not in sliced:
                        yield known[id], count
                    elif together := sliced[id].idle_together(self.use(id)):
                        yield sliced[id], together


def _pick(
    job: Job, share: int, node: Node, use: Use, beside: Collection[GpuId] | None = None
) -> tuple[GpuSlice, ...] | None:
    """The GPUs of ``node`` that ``job`` would get beside ``use``; None if there are too few.

    ``beside`` are those of them that it has there anyway; none, and not None, if all that it has are on other nodes.
    """
    if share == 0:
        return ()
    if share < WHOLE:
        return _pick_shared(job, share, node, use)
    count, memory = share // WHOLE, job.gpu_mem_bytes
    if node.topology is not None:
        return _pick_linked(job, count, node, node.topology, use, beside)
    if node.held is use and not (job.attempts or memory or use.whole or use.shares):
        return node.entire.gpus[:count] if count <= len(node.slices) else None
    own = _own_gpus(job)
    if not own:
        free = tuple(islice(_idle(node, memory, use, node.held), count))
        if len(free) == count:
            return free
    # Its own first, then those that nobody holds any more, then those that are being freed.
    idle = list(_idle(node, memory, use))
    chosen = {piece.gpu: piece for piece in idle if piece.gpu in own}
    for piece in chain(_idle(node, memory, use, node.held), idle):
        if len(chosen) >= count:
            break
        chosen[piece.gpu] = piece
    if len(chosen) < count:
        return None
    ids = set(islice(chosen, count))
    return tuple(piece for piece in idle if piece.gpu in ids)


def _pick_linked(
    job: Job, count: int, node: Node, topology: Topology, use: Use, beside: Collection[GpuId] | None
) -> tuple[GpuSlice, ...] | None:
    """As `_pick`, where it makes a difference how GPUs reach each other. MIG slices are for jobs on one GPU."""
    alone, memory = count == 1 and beside is None, job.gpu_mem_bytes
    idle = {piece.gpu: piece for piece in _idle(node, memory, use) if alone or piece.gpu not in topology.slices}
    own = idle.keys() & _own_gpus(job)
    now = idle.keys() & {piece.gpu for piece in _idle(node, memory, use, node.held)}
    chosen: frozenset[GpuId] = frozenset()
    for pool in (own, now, idle.keys()):
        rest = pool - chosen
        if len(chosen) + len(rest) < count:
            chosen |= rest
            continue
        more = topology.choose(rest, count - len(chosen), idle.keys(), chosen | set(beside or ()))
        return tuple(piece for id, piece in idle.items() if id in chosen or id in more)
    return None


def _idle(node: Node, memory: int, *uses: Use) -> Iterator[GpuSlice]:
    """The whole GPUs of ``node`` with that much memory that none of ``uses`` has, in order of index."""
    ids: Iterator[GpuId] = iter(node.slices)
    for use in uses:
        for taken in (use.whole, use.shares):
            if taken:
                ids = filterfalse(taken.__contains__, ids)
    pieces = map(node.slices.__getitem__, ids)
    return (piece for piece in pieces if piece.mem_bytes >= memory) if memory else pieces


def memory_of(job: Job, share: int, whole: GpuSlice) -> int:
    """What ``job`` gets of the memory of a GPU of which it gets ``share``, in bytes.

    That is its share of it. If its submitter named what its data need, it is that and `CONTEXT_BYTES`; what was
    measured since has that inside.
    """
    needed = job.gpu_mem_bytes
    if not needed:
        return whole.mem_bytes * share // WHOLE
    if needed != job.spec.gpu_mem_bytes:
        return needed
    return max(needed, min(needed + CONTEXT_BYTES, whole.mem_bytes))


def left_over(job: Job, share: int, whole: GpuSlice, offered: GpuSlice, use: Use) -> float | None:
    """What would be left of what is ``offered`` of a ``whole`` GPU, beside ``use`` and ``job``; None: it does not fit.

    The smaller, the better the fit. One number for two things: what is left of its share and of its memory, each
    relative to the whole GPU, added up.
    """
    share_left = WHOLE - use.share(whole.gpu) - share
    memory_left = offered.mem_bytes - use.gpu_mem.get(whole.gpu, 0) - memory_of(job, share, whole)
    if share_left < 0 or memory_left < 0:
        return None
    return share_left / WHOLE + memory_left / (whole.mem_bytes or 1)


def _pick_shared(job: Job, share: int, node: Node, use: Use) -> tuple[GpuSlice, ...] | None:
    """One GPU that has ``share`` left, and memory: free ones first, then its own, then the one with least left then.

    Those with processes of no job come last, where they are offered at all.
    """
    best: tuple[tuple[bool, bool, float], GpuSlice] | None = None
    own, swaps = _own_gpus(job), job.spec.suspend is SuspendMode.SWAP
    for offers in (node.slices, node.beside):
        for id, offered in offers.items():
            if swaps and node.gpus[id].mps and use.share(id):
                continue  # the driver swaps nobody out from under an MPS server
            whole = offered if offers is node.slices else replace(offered, mem_bytes=node.gpus[id].mem_bytes)
            if (left := left_over(job, share, whole, offered, use)) is None:
                continue
            leaving = node.held.share(id) + share > WHOLE
            cost = (leaving and id not in own, id not in own, left)
            if best is None or cost < best[0]:
                best = cost, GpuSlice(id, share, memory_of(job, share, whole))
        if best is not None:
            return (best[1],)
    return None


def _own_gpus(job: Job) -> frozenset[GpuId]:
    holding = job.holding
    return frozenset(holding.allocation.gpu_ids) if holding is not None else frozenset()


def _free_now(job: Job, node: Node, piece: NodeAllocation) -> bool:
    """Whether nobody else holds any of it."""
    holding = job.holding
    own = None if holding is None else next((own for own in holding.allocation.nodes if own.node == node.id), None)
    return node.fits(piece, node.held, own)


def _sees(node: Node, root: str | None) -> bool:
    return root is None or node.facts.checkpoint_root_id == root


def could_spread(job: Job, books: Books) -> bool:
    """Whether ``job`` would fit on as many nodes as it wants, with one checkpoint root, if nobody else ran there."""
    each = job.gpus_min // job.spec.nodes // WHOLE
    roots = [
        node.facts.checkpoint_root_id
        for node in books.usable.values()
        if len(node.slices) >= each and reads_checkpoint(job, node, books)
    ]
    return any(roots.count(root) >= job.spec.nodes for root in set(roots))


def could_combine(job: Job, books: Books) -> bool:
    """Whether as many nodes as ``job`` may have, with one checkpoint root, have enough if nobody else ran there."""
    counts: dict[str, list[int]] = {}
    for node in books.usable.values():
        if reads_checkpoint(job, node, books):
            counts.setdefault(node.facts.checkpoint_root_id, []).append(len(node.slices))
    largest = max((sum(sorted(group)[-job.spec.max_nodes :]) for group in counts.values()), default=0)
    return job.gpus_min <= largest * WHOLE
