"""Finds which GPUs a job would get, in a trial over the books that can be changed and thrown away."""

from collections.abc import Callable, Collection, Iterable, Iterator

from ebbtide_core.job.job import Job
from ebbtide_core.model.settings import Fitting
from ebbtide_core.model.types import WHOLE, Allocation, GpuId, NodeAllocation, NodeId
from ebbtide_core.resources.bookings import Barred
from ebbtide_core.resources.books import Books, Node, Room
from ebbtide_core.resources.checkpoint_location import reads_checkpoint
from ebbtide_core.resources.elastic_jobs import ElasticJobs
from ebbtide_core.resources.eligibility import Domain, domain_of, domains, largest
from ebbtide_core.resources.gpu_selection import left_beside, pick
from ebbtide_core.resources.node_usage import NodeUse

NodeRank = Callable[[Node], float]
"""Orders nodes: a job goes to one of the lowest rank that has room."""


class Trial:
    """The promised use of every node, as if a plan had been carried out; copied only where it differs.

    What is taken is entered only at the next look-up, so the last placement of a pass, often its only one, costs
    nothing.
    """

    def __init__(self, books: Books, *, as_if_unbooked: bool = False) -> None:
        self.nodes = books.usable
        self._books = books
        self._booked = None if as_if_unbooked else books.booked
        self._room: Room = books.room
        self.spreads = books.fitting is Fitting.WORST
        """Whether all jobs go to the emptiest node."""
        self._changed = False
        self._taken: list[Allocation] = []
        self._use: dict[NodeId, NodeUse] = {}
        self._is_empty = False
        """Whether all is as if no job held anything, so that all room counts as free now."""
        self._barred: Barred = {}
        """The GPUs that the job of the last search may not have because they are booked."""
        self._domain: Domain | None = None
        """The domain of the search under way; ``nodes`` are its nodes during the search."""

    def empty(self) -> None:
        """Give back all that is promised or held, except for what attempts keep even while swapped out.

        From then on, the trial does not see what is promised; it holds until a node changes, or what attempts keep.
        """
        self._enter()
        self._room, self._changed, self._is_empty = self._room.copy(), True, True
        for node in self.nodes.values():
            use = self._use[node.id] = NodeUse()
            for piece in node.kept.values():
                use.add(piece)
            if node.planned:
                self._room.update(node, use)

    @property
    def idle(self) -> int:
        """How many GPUs of usable nodes are promised to no job; an upper bound if shares of GPUs were taken."""
        if not self._taken:
            return self._room.total
        return self._room.total - sum([taken.share // WHOLE for taken in self._taken])

    @property
    def most(self) -> int:
        """An upper bound of the share of GPUs that is promised to no job, in parts."""
        if (idle := self.idle) > 0:
            return idle * WHOLE
        shared = self._room.shared or self._books.beside or any(taken.share % WHOLE for taken in self._taken)
        return WHOLE - 1 if shared else 0

    def nodes_with_room(self) -> Iterator[NodeId]:
        """Iterate over the nodes where a GPU may be free, or a part of one; some may come twice, or be full by now."""
        for count, nodes in self._room.idle.items():
            if count:
                yield from nodes
        yield from self._room.shared
        yield from self._books.beside

    def nodes_with_spare(self, elastic: ElasticJobs, share: int) -> set[NodeId]:
        """Return the nodes, and perhaps others, that have room for ``share`` if elastic jobs give a surplus back."""
        found = elastic.nodes_with(-(-share // WHOLE), self._room.idle)
        return found.union(self._room.shared, self._books.beside)

    def how_many_with_spare(self, elastic: ElasticJobs, share: int) -> int:
        """Return how many nodes `nodes_with_spare` would return, or a few more."""
        found = elastic.how_many_with(-(-share // WHOLE), self._room.idle)
        return found + len(self._room.shared) + len(self._books.beside)

    def has_spare(self, elastic: ElasticJobs, node: NodeId, share: int) -> bool:
        """Return whether `nodes_with_spare` would return ``node``, which is usable."""
        if node in self._room.shared or node in self._books.beside:
            return True
        return self._room.idle_on(node) + elastic.spare.get(node, 0) >= -(-share // WHOLE)

    @property
    def room(self) -> Room:
        """The index of nodes by idle GPUs; it must not be changed."""
        self._enter()
        return self._room

    def use(self, node: NodeId) -> NodeUse:
        """Return what is in use on ``node``; it must not be changed."""
        if self._taken:
            self._enter()
        return self._use.get(node) or self.nodes[node].promised

    def take(self, allocation: Allocation) -> None:
        """Take ``allocation`` into use."""
        self._taken.append(allocation)

    def give(self, allocation: Allocation) -> None:
        """Give ``allocation`` back."""
        self._enter()
        for node, use, piece in self._changing(allocation):
            use.remove(piece)
            self._room.update(node, use)

    def _enter(self) -> None:
        """Enter in the copy what was taken since the last look-up."""
        taken, self._taken = self._taken, []
        for allocation in taken:
            for node, use, piece in self._changing(allocation):
                use.add(piece)
                self._room.update(node, use)

    def _changing(self, allocation: Allocation) -> Iterator[tuple[Node, NodeUse, NodeAllocation]]:
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
        """Return whether ``job`` can have ``share`` parts of GPUs (None: its smallest size) only on several nodes."""
        if job.spec.nodes > 1:
            return True
        share = job.gpus_min if share is None else share
        return share > WHOLE and job.spec.max_nodes > 1 and share > largest(job, self._books) * WHOLE

    def find(
        self,
        job: Job,
        share: int,
        nodes: Iterable[NodeId] | None = None,
        *,
        free_now: bool = False,
        fullest: bool = False,
        rank: NodeRank | None = None,
    ) -> Allocation | None:
        """Return room for ``job`` with ``share`` parts of GPUs on the best of ``nodes`` (None: all); None if none fits.

        Room that no other job still holds comes first; with ``free_now``, only such room counts. After that, nodes of
        a lower ``rank`` come first, if there is one. Among equal ones a job goes to the fullest node (best fit). A job
        that can grow, and any job if the trial `spreads` them, goes to the emptiest node instead, unless ``fullest`` is
        set. A share goes to the GPU of which least is left then. A job that is larger than any node and allows several
        takes whole GPUs from as few nodes as possible; so does a job that may be spread, if no single node has room. A
        job that asks for a number of nodes takes equally many GPUs from each.
        """
        self._enter()
        if self._booked is not None:
            self._barred = self._booked.barred(job)
        if (own := job.pinned_allocation) is not None:
            return self._own(job, own, nodes, free_now)
        restricted = (job.eligibility.constrained or self._books.heterogeneous) and self._domain is None
        if restricted and (among := domains(job, self._books, share)) is not None:
            return self._find_among(among, job, share, nodes, free_now, fullest, rank)
        if job.spec.nodes > 1 or (share > WHOLE and self.is_gang(job, share)):
            return self._on_several(job, share, nodes, free_now)
        later, known, uses = None, self.nodes, self._use
        cpus, count, waits = job.spec.cpus, share // WHOLE, job.holding is None
        for id in self._best_first(job, share, fullest, rank) if nodes is None else nodes:
            node = known.get(id)
            # These two checks rule out most nodes, and are much cheaper than picking GPUs.
            if node is None or (cpus and (uses.get(id) or node.promised).cpus + cpus > node.facts.cpus):
                continue
            if later and waits and (node.held.cpus + cpus > node.facts.cpus or not _may_be_free_now(node, share)):
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

    def _find_among(
        self,
        among: tuple[Domain, ...],
        job: Job,
        share: int,
        nodes: Iterable[NodeId] | None,
        free_now: bool,
        fullest: bool,
        rank: NodeRank | None,
    ) -> Allocation | None:
        """Do as `find` within one of the domains; room that is free now in any domain comes first."""
        everywhere, nodes = self.nodes, None if nodes is None else tuple(nodes)
        try:
            for now in (True, False) if len(among) > 1 and not free_now else (free_now,):
                for self._domain in among:
                    self.nodes = self._domain.nodes
                    room = self.find(job, share, nodes, free_now=now, fullest=fullest, rank=rank)
                    if room is not None:
                        return room
        finally:
            self.nodes, self._domain = everywhere, None
        return None

    def _on_several(self, job: Job, share: int, nodes: Iterable[NodeId] | None, free_now: bool) -> Allocation | None:
        if job.spec.nodes > 1:
            return self._spread(job, share, nodes, free_now)
        return (self._combined if job.spec.spread else self._gang)(job, share // WHOLE, nodes, free_now)

    def _own(self, job: Job, own: Allocation, nodes: Iterable[NodeId] | None, free_now: bool) -> Allocation | None:
        """Return ``own``, the pinned allocation of ``job``, if no other job has it in this trial; else None."""
        [piece] = own.nodes
        node = self.nodes.get(piece.node)
        if (
            node is None
            or (nodes is not None and piece.node not in nodes)
            or not node.fits(piece, self.use(piece.node))
            or (
                self._books.anti_affinity is not None
                and piece.gpus[0].gpu in self._books.anti_affinity.gpus(job.id, node)
            )
            or piece.gpus[0].gpu in self._barred.get(piece.node, ())
        ):
            return None
        return own if not free_now or _free_now(job, node, piece) else None

    def has_room(self, job: Job, node: Node) -> bool:
        """Return whether ``node`` has room for ``job``, or for one node's part of a job that asks for several nodes."""
        self._enter()
        if self._booked is not None:
            self._barred = self._booked.barred(job)
        if job.spec.nodes > 1:
            return self._on_node(job, job.gpus_min // job.spec.nodes, node) is not None
        return self.find(job, job.gpus_min, (node.id,)) is not None

    def grown(self, job: Job, allocation: Allocation, share: int) -> Allocation | None:
        """Return ``allocation``, in use in this trial, with more whole GPUs up to ``share`` parts; None without room.

        The GPUs come from its own nodes, and from other nodes only if ``share`` is more than any node has.
        """
        self._enter()
        if self._booked is not None:
            self._barred = self._booked.barred(job)
        if not (job.eligibility.constrained or self._books.heterogeneous):
            return self._grown(job, allocation, share)
        if (domain := domain_of(job, allocation, self._books)) is None:
            return None
        everywhere, self.nodes, self._domain = self.nodes, domain.nodes, domain
        try:
            return self._grown(job, allocation, share)
        finally:
            self.nodes, self._domain = everywhere, None

    def _grown(self, job: Job, allocation: Allocation, share: int) -> Allocation | None:
        pieces, left = [], (share - allocation.share) // WHOLE
        for piece in allocation.nodes:
            node = self.nodes[piece.node]
            use, own_gpus = self._seen(node), [gpu.gpu for gpu in piece.gpus]
            if node.topology is not None and not node.topology.slices.isdisjoint(own_gpus):
                return None
            more = min(left, node.idle_together(use))
            extra = pick(job, more * WHOLE, node, use, own_gpus)
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

    def _open(self, node: Node, use: NodeUse) -> NodeUse:
        """Return ``use`` of ``node`` with the GPUs that are booked for other users counted as in use."""
        return use.without(barred) if (barred := self._barred.get(node.id)) is not None else use

    def _best_first(self, job: Job, share: int, fullest: bool, rank: NodeRank | None) -> Iterable[NodeId]:
        """Return the nodes that may have room, first the nodes with GPUs that are booked for the job's user now."""
        candidates: Iterable[NodeId] = self._candidates(job, share, fullest)
        if rank is not None:
            candidates = sorted((id for id in candidates if id in self.nodes), key=lambda id: rank(self.nodes[id]))
        if self._booked is None or not (booked := self._booked.own(job)):
            return candidates
        return sorted(candidates, key=lambda id: id not in booked)

    def idle_beside(self, job: Job, allocation: Allocation) -> int:
        """Return how many idle GPUs on the nodes of ``allocation``, its allocation in use, ``job`` could have too."""
        domain = (
            domain_of(job, allocation, self._books)
            if job.eligibility.constrained or self._books.heterogeneous
            else None
        )
        if self._booked is not None:
            self._barred = self._booked.barred(job)
        seen = [(self.nodes[id], self._open(self.nodes[id], self.use(id))) for id in allocation.node_ids]
        if domain is None:
            return sum(node.idle(use) for node, use in seen)
        return sum(node.idle(use.without(domain.barred.get(node.id, ()))) for node, use in seen)

    def _candidates(self, job: Job, share: int, fullest: bool) -> Iterator[NodeId]:
        """Yield the nodes that may have room, the best first; a node can come twice."""
        idle = self._room.idle
        if 0 < share < WHOLE:
            yield from self._by_least_left(job, share)
        first = max(1, share // WHOLE) if share else 0
        for count in sorted(idle, reverse=(job.gpus_max > share or self.spreads) and not fullest):
            if count >= first:
                yield from idle[count]
        if 0 < share < WHOLE and self._books.beside:
            yield from self._books.beside

    def _by_least_left(self, job: Job, share: int) -> Iterator[NodeId]:
        """Yield the nodes that have ``share`` left of a GPU that is shared already, the best fit first."""
        room = self._room
        by_left: dict[float, list[set[NodeId]]] = {}
        for (used, used_bytes, whole_bytes), nodes in room.alike.items():
            if (left := left_beside(job, share, used, whole_bytes - used_bytes, whole_bytes)) is not None:
                by_left.setdefault(left, []).append(nodes)
        seen: set[NodeId] = set()
        for left in sorted(by_left):
            found = set[NodeId]().union(*by_left[left]) - seen
            yield from sorted(found, key=room.shared.__getitem__)
            seen |= found

    def _on_node(
        self, job: Job, share: int, node: Node, beside: Collection[GpuId] | None = None
    ) -> NodeAllocation | None:
        """Return room for ``job`` on ``node``; ``beside`` is as for `pick`. None without room."""
        use, spec = self._use.get(node.id) or node.promised, job.spec
        if (
            (spec.cpus and use.cpus + spec.cpus > node.facts.cpus)
            or (spec.mem_bytes and use.mem_bytes + spec.mem_bytes > node.facts.mem_bytes)
            or (job.saved.root_id and not reads_checkpoint(job, node, self._books))
        ):
            return None
        if self._books.anti_affinity is not None and 0 < share < WHOLE:
            use = use.without(self._books.anti_affinity.gpus(job.id, node))
        if self._domain is not None and (barred := self._domain.barred.get(node.id)) is not None:
            use = use.without(barred)
        slices = None
        if self._booked is not None:
            use = self._open(node, use)
            if own := self._booked.own(job).get(node.id):
                slices = pick(job, share, node, use.without(node.gpus.keys() - own), beside)
        slices = pick(job, share, node, use, beside) if slices is None else slices
        return None if slices is None else NodeAllocation(node.id, slices, spec.cpus, spec.mem_bytes)

    def _seen(self, node: Node) -> NodeUse:
        """Return what is in use on ``node``, counting in the GPUs that the job of this search may not have."""
        barred = None if self._domain is None else self._domain.barred.get(node.id)
        use = self._open(node, self._use.get(node.id) or node.promised)
        return use if barred is None else use.without(barred)

    def _free_now(self, job: Job, node: Node, piece: NodeAllocation) -> bool:
        """Return whether no other job holds any of ``piece``, for which there is room in this trial."""
        return self._untouched(node) or _free_now(job, node, piece)

    def _untouched(self, node: Node) -> bool:
        """Return whether room in this trial on ``node`` is certain not to be held, or may be."""
        return self._is_empty or (node.promised is node.held and node.id not in self._use)

    def _gang(self, job: Job, count: int, nodes: Iterable[NodeId] | None, free_now: bool) -> Allocation | None:
        """Return ``count`` whole GPUs of several nodes, all of them free now if possible; None without room."""
        if self._room.total < count:
            return None
        wanted = None if nodes is None else set(nodes)
        spec, use, most = job.spec, self._use, job.spec.max_nodes
        modest = not (self._barred or job.attempts or spec.cpus or spec.mem_bytes or job.gpu_memory.requested_bytes)
        for now in (True,) if free_now else (True, False):
            pieces: list[NodeAllocation] = []
            left = count
            for node, idle in self._emptiest_first(wanted):
                piece: NodeAllocation | None
                if modest and idle == len(node.slices) <= left and node.promised is node.held and node.id not in use:
                    # Most pieces of most gangs are a whole idle node. For a job that asks for nothing else and has no
                    # earlier attempt, such a node needs no further check.
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
        """Return ``count`` whole GPUs of as few nodes as possible that share a checkpoint root; None without room."""
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
        """Return equally many whole GPUs on each of the nodes that ``job`` asks for, which share a checkpoint root."""
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

    def _emptiest_first(self, wanted: set[NodeId] | None) -> Iterable[tuple[Node, int]]:
        """Return the nodes with idle GPUs that the job may have, and how many, the most first."""
        found = self._with_idle(wanted)
        some_barred = self._barred or self._books.sliced or (self._domain is not None and self._domain.barred)
        return sorted(found, key=lambda each: -each[1]) if some_barred else found

    def _with_idle(self, wanted: set[NodeId] | None) -> Iterator[tuple[Node, int]]:
        """Yield the nodes with idle GPUs that the job may have, and how many, in the order of all their idle GPUs."""
        idle, known, sliced = self._room.idle, self.nodes, self._books.sliced
        for count in sorted(idle, reverse=True):
            if count == 0:
                return
            for id in idle[count]:
                if (wanted is None or id in wanted) and (node := known.get(id)) is not None:
                    whole = self._domain is None or id not in self._domain.barred
                    if whole and not (sliced and id in sliced) and id not in self._barred:
                        yield node, count
                    elif together := node.idle_together(self._seen(node)):
                        yield node, together


def _may_be_free_now(node: Node, share: int) -> bool:
    """Return False only if no GPU of ``node`` has ``share`` parts that are not held, or not so many whole GPUs."""
    held = node.held
    if not 0 < share < WHOLE:
        return node.idle(held) >= share // WHOLE
    if node.beside or node.idle(held) > 0:
        return True
    return any(used + share <= WHOLE for used in held.shares.values())


def _free_now(job: Job, node: Node, piece: NodeAllocation) -> bool:
    """Return whether no other job holds any of ``piece``."""
    holding = job.holding
    own = None if holding is None else next((own for own in holding.allocation.nodes if own.node == node.id), None)
    return node.fits(piece, node.held, own)


def _sees(node: Node, root: str | None) -> bool:
    return root is None or node.facts.checkpoint_root_id == root
