"""Keeps the books of each node: what attempts hold there, and what is promised to jobs.

Two sums are kept for everything that can be allocated:

- *held*: allocated to attempts whose GPUs are not proven free. If this sum exceeds a capacity, it is double-booked.
- *promised*: allocated to attempts that are to go on, or claimed. Policies plan with this sum: an attempt that was
  asked to stop no longer counts, and the room that is kept for its preemptor does.

The sums differ only while something is being freed. Otherwise one object on a node is both sums, so that a change is
made once. An attempt may start where its allocation fits both sums. The cost of a change depends only on its size, not
on the number of GPUs or nodes. Each change checks that it does not use a GPU twice.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol

from ebbtide_core.events import NodeRegistered
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.settings import Fitting
from ebbtide_core.model.types import (
    WHOLE,
    Allocation,
    AttemptRef,
    Drain,
    GpuFacts,
    GpuId,
    GpuSlice,
    JobId,
    Loan,
    NodeAllocation,
    NodeId,
)
from ebbtide_core.resources.bookings import Bookings
from ebbtide_core.resources.cache import Cache
from ebbtide_core.resources.loans import Loans
from ebbtide_core.resources.node_usage import CPU_DIGITS, ForeignUse, NodeUse, Stray
from ebbtide_core.resources.node_values import NodeValues
from ebbtide_core.resources.topology import Topology, together, topology_of


@dataclass(slots=True)
class Node:
    """One node: its facts, what is held and promised on it, and whether it can be reached.

    ``attempts`` are the jobs with an attempt here that is not proven over; ``on_gpus`` are the ones of these that hold
    GPUs. ``planned`` are the jobs with room promised here. ``kept`` is what each job's attempt has here until it ends,
    also while its GPU memory is swapped out. ``quarantine`` gives the reason for each GPU whose memory was not
    released; such a GPU is not used, even if the node reports it as healthy. ``slices`` are the GPUs on offer in order
    of index, each as the slice that a job gets of a whole GPU. ``sound`` says that all GPUs are on offer and the node
    is in service. ``promised`` is the same object as ``held`` while the two are equal. ``entire`` has all ``slices``
    and nothing else. ``foreign`` are the GPUs with foreign processes, which are not in ``slices``; ``beside`` are the
    ones of these whose shares are offered all the same, with the memory that the foreign processes leave. ``topology``
    is None if it makes no difference which GPUs a job gets. ``together`` is how many of the GPUs one job can have,
    ``models`` are their models. ``drain`` says how the node was taken out of service, None if it was not. ``loan`` says
    when the node ends, None if it stays. The node is lost since ``lost_since``, and got the master's last
    acknowledgement at ``acknowledged``, both in Unix seconds. ``dead`` says which user or hook confirmed that the node
    is dead. ``strays`` are attempts here that are not in the books (see `ebbtide_core.nodes.strays`); their GPUs are
    not on offer.
    """

    id: NodeId
    facts: NodeRegistered
    gpus: dict[GpuId, GpuFacts]
    connected: bool = False
    lost: bool = False
    last_seen: float = 0.0
    held: NodeUse = field(default_factory=NodeUse)
    promised: NodeUse = field(init=False)
    attempts: set[JobId] = field(default_factory=set)
    on_gpus: set[JobId] = field(default_factory=set)
    planned: set[JobId] = field(default_factory=set)
    kept: dict[JobId, NodeAllocation] = field(default_factory=dict)
    quarantine: dict[GpuId, str] = field(default_factory=dict)
    slices: dict[GpuId, GpuSlice] = field(default_factory=dict)
    entire: NodeAllocation = field(init=False)
    sound: bool = True
    foreign: dict[GpuId, ForeignUse] = field(default_factory=dict)
    beside: dict[GpuId, GpuSlice] = field(default_factory=dict)
    topology: Topology | None = field(init=False)
    together: int = field(init=False)
    models: frozenset[str] = field(init=False)
    drain: Drain | None = None
    loan: Loan | None = None
    lost_since: float = 0.0
    acknowledged: float = 0.0
    dead: str = ""
    strays: dict[AttemptRef, Stray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.promised = self.held
        self.link()
        self.list_slices()

    def part(self) -> None:
        """Make ``promised`` an object of its own, so that it can change while ``held`` does not."""
        if self.promised is self.held:
            self.promised = self.held.copy()

    def join(self) -> None:
        """Make ``promised`` the same object as ``held`` if both are equal, so that the next change is made once."""
        if self.promised == self.held:
            self.promised = self.held

    def set_quarantine(self, gpu: GpuId, reason: str) -> None:
        """Take ``gpu`` out of use for ``reason``, until its memory is released; `refresh_node` has to follow."""
        self.quarantine[gpu] = reason
        self.gpus[gpu] = replace(self.gpus[gpu], healthy=False, unhealthy_reason=reason)

    @property
    def usable(self) -> bool:
        """Whether jobs may be placed on the node."""
        return self.connected and not self.lost and self.drain is None

    def takes_back(self, now: float) -> bool:
        """Return whether jobs in the node's memory may go on here: on a drained node, until the deadline."""
        drain = self.drain
        return self.reachable and (drain is None or drain.deadline is None or drain.deadline > now)

    def has_ended(self, now: float) -> bool:
        """Return whether the node is gone at Unix time ``now`` as was announced, and nothing of any job is left there.

        Then its silence means nothing.
        """
        over = self.lost and self.loan is not None and self.loan.until <= now
        return over and not self.attempts and not self.strays

    @property
    def reachable(self) -> bool:
        """Whether the node can be sent requests."""
        return self.connected and not self.lost

    def idle(self, use: NodeUse) -> int:
        """Return how many GPUs on offer are not in use at all, given ``use``."""
        if self.sound:
            return len(self.slices) - len(use.whole) - len(use.shares)
        return sum(1 for gpu in self.slices if gpu not in use.whole and gpu not in use.shares)

    def fits(self, piece: NodeAllocation, use: NodeUse, less: NodeAllocation | None = None) -> bool:
        """Return whether ``piece`` fits beside ``use``, of which the part ``less`` does not count."""
        if piece is self.entire and less is None:
            return not (use.whole or use.shares)
        cpus = round(use.cpus - less.cpus, CPU_DIGITS) if less else use.cpus
        if piece.cpus and cpus + piece.cpus > self.facts.cpus:
            return False
        if piece.mem_bytes and use.mem_bytes - (less.mem_bytes if less else 0) + piece.mem_bytes > self.facts.mem_bytes:
            return False
        whole, shares, slices = use.whole, use.shares, self.slices
        own = {gpu.gpu: gpu for gpu in less.gpus} if less else {}
        for gpu in piece.gpus:
            id = gpu.gpu
            if id not in slices:
                if not self._fits_beside(gpu, use, own.get(id)):
                    return False
            elif (id in whole and id not in own) or (
                id in shares
                and (
                    shares[id] + gpu.share - (own[id].share if id in own else 0) > WHOLE
                    or use.gpu_mem[id] + gpu.mem_bytes - (own[id].mem_bytes if id in own else 0) > slices[id].mem_bytes
                )
            ):
                return False
        return True

    def _fits_beside(self, piece: GpuSlice, use: NodeUse, less: GpuSlice | None) -> bool:
        """Return whether a share of a GPU fits beside foreign processes."""
        left, id = self.beside.get(piece.gpu), piece.gpu
        if left is None or piece.share == WHOLE or id in use.whole:
            return False
        share, memory = (less.share, less.mem_bytes) if less else (0, 0)
        fits = use.gpu_mem.get(id, 0) - memory + piece.mem_bytes <= left.mem_bytes
        return fits and use.share(id) - share + piece.share <= WHOLE

    def offers(self, piece: GpuSlice) -> bool:
        """Return whether the GPU of ``piece`` is on offer for a share of that size, even if it is in use now."""
        return piece.gpu in self.slices or (piece.share < WHOLE and piece.gpu in self.beside)

    def idle_together(self, use: NodeUse) -> int:
        """Return how many idle GPUs one job could have; MIG slices do not count, because they are not combined."""
        count = self.idle(use)
        if self.topology is None or not self.topology.slices:
            return count
        apart = [gpu for gpu in self.topology.slices if gpu in self.slices]
        return count - sum(1 for gpu in apart if use.share(gpu) == 0)

    def link(self) -> None:
        """Update what depends on the node's set of GPUs: the topology and the models."""
        self.topology, self.together = topology_of(self.gpus.values()), together(self.gpus.values())
        self.models = frozenset(facts.model for facts in self.gpus.values())

    def list_slices(self) -> None:
        """Update which GPUs are on offer."""
        healthy = sorted((facts for facts in self.gpus.values() if facts.healthy), key=lambda facts: facts.index)
        if self.strays:
            set_aside = {gpu for stray in self.strays.values() for gpu in stray.gpus}
            healthy = [facts for facts in healthy if facts.gpu not in set_aside]
        own = [facts for facts in healthy if facts.gpu not in self.foreign]
        self.slices = {facts.gpu: GpuSlice(facts.gpu, WHOLE, facts.mem_bytes) for facts in own}
        self.entire = NodeAllocation(self.id, tuple(self.slices.values()))
        self.sound = len(own) == len(self.gpus) and self.drain is None
        self.beside = {}
        for facts in healthy if self.facts.share_with_foreign and self.foreign else ():
            if (use := self.foreign.get(facts.gpu)) is not None and (taken := use.mem_bytes) is not None:
                self.beside[facts.gpu] = GpuSlice(facts.gpu, WHOLE, max(0, facts.mem_bytes - taken))


SharedGpu = tuple[int, int, int]
"""What decides whether a share of a GPU fits beside others: parts and bytes in use, and the bytes that the GPU has."""


class Room:
    """An index of the usable nodes by idle GPUs (promised to no job), so that a search need not look at every node.

    ``idle[n]`` has the nodes with n idle GPUs. ``shared`` numbers the nodes where shares of a GPU are in use, in the
    order in which they came to be shared, and ``alike`` has the ones of these with such a GPU on offer. ``total`` is
    the number of idle GPUs of all nodes.
    """

    def __init__(self) -> None:
        self.idle: defaultdict[int, dict[NodeId, None]] = defaultdict(dict)
        self.shared: dict[NodeId, int] = {}
        self.alike: dict[SharedGpu, set[NodeId]] = {}
        self.total = 0
        self._count: dict[NodeId, int] = {}
        self._gpus: dict[NodeId, frozenset[SharedGpu]] = {}
        self._shared_so_far = 0

    def update(self, node: Node, use: NodeUse) -> None:
        """Update the index for ``node``, of which ``use`` is promised."""
        # This runs for every piece of every placement, so the common case is spelled out.
        id, shares, idle = node.id, use.shares, self.idle
        if node.sound and node.connected and not node.lost:
            count = len(node.slices) - len(use.whole)
            if shares:
                count -= len(shares)
        else:
            count = node.idle(use) if node.usable else -1
        before = self._count.get(id, -1)
        if count != before:
            self._count[id] = count
            if before >= 0:
                self.total -= before
                del idle[before][id]
            if count >= 0:
                self.total += count
                idle[count][id] = None
        if shares and count >= 0:
            self._share(node, use)
        elif self.shared and self.shared.pop(id, None) is not None:
            self._know(id, frozenset())

    def idle_on(self, id: NodeId) -> int:
        """Return how many GPUs are idle on a usable node."""
        return max(0, self._count.get(id, 0))

    def _share(self, node: Node, use: NodeUse) -> None:
        id, slices, memory = node.id, node.slices, use.gpu_mem
        if id not in self.shared:
            self._shared_so_far += 1
            self.shared[id] = self._shared_so_far
        self._know(
            id,
            frozenset(
                [(used, memory[gpu], slices[gpu].mem_bytes) for gpu, used in use.shares.items() if gpu in slices]
            ),
        )

    def _know(self, id: NodeId, gpus: frozenset[SharedGpu]) -> None:
        before = self._gpus.get(id, frozenset())
        if gpus == before:
            return
        for gone in before - gpus:
            self.alike[gone].remove(id)
            if not self.alike[gone]:
                del self.alike[gone]
        for new in gpus - before:
            self.alike.setdefault(new, set()).add(id)
        if gpus:
            self._gpus[id] = gpus
        else:
            del self._gpus[id]

    def copy(self) -> "Room":
        """Return an independent copy."""
        other = Room()
        other.idle.update((count, nodes.copy()) for count, nodes in self.idle.items())
        other.shared, other.total, other._count = self.shared.copy(), self.total, self._count.copy()
        other.alike = {gpu: nodes.copy() for gpu, nodes in self.alike.items()}
        other._gpus, other._shared_so_far = self._gpus.copy(), self._shared_so_far
        return other


@frozen
class NodeMaxima:
    """The most that any node of the pool, reachable or not, has for one job.

    ``gpus`` are the GPU counts of all nodes, the largest first; ``sums`` are the counts of the largest node, of the two
    largest together, and so on. ``alike`` says that no node has a taint and all GPUs are of one model.
    """

    gpus: tuple[int, ...]
    sums: tuple[int, ...]
    gpu_mem_bytes: int
    cpus: float
    mem_bytes: int
    alike: bool

    def gpus_of(self, nodes: int) -> int:
        """Return how many GPUs the largest ``nodes`` nodes have together."""
        return self.sums[min(nodes, len(self.sums)) - 1]

    def nodes_with(self, share: int) -> int:
        """Return how many nodes have at least ``share`` parts of GPUs."""
        return sum(1 for count in self.gpus if count * WHOLE >= share)


class AntiAffinity(Protocol):
    """The rules that two jobs must not share a GPU (see `ebbtide_core.resources.anti_affinity`)."""

    def gpus(self, job: JobId, node: Node) -> Mapping[GpuId, JobId]:
        """Return the GPUs of ``node`` that ``job`` must not share, each with the other job there."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class Books:
    """The books of the nodes of one pool.

    ``problems`` are faults of the books that must never occur, such as a GPU that is used twice. ``usable`` are the
    reachable nodes in service, ``drained`` the reachable nodes that are drained. ``everywhere`` are the nodes of all
    pools, and ``roots`` are the checkpoint roots that the reachable ones of these see. ``largest`` is the most GPUs
    that one job can have on one usable node. Of the usable nodes, ``foreign`` are the ones with foreign processes,
    ``beside`` the ones that offer shares beside such processes, ``sliced`` the ones with MIG slices, ``tainted`` the
    ones with taints, and ``mixed`` the ones with GPUs of several models. ``heterogeneous`` says that taints, different
    GPU models or ends of nodes limit even jobs without constraints. ``anti_affinity`` is None while no jobs are kept
    apart, ``booked`` is None while there are no bookings. ``loans`` are the usable nodes that end. ``changes`` is
    counted up whenever a change may affect where a job would fit if no other job had room.
    """

    def __init__(
        self,
        everywhere: dict[NodeId, Node],
        roots: NodeValues[str],
        problems: list[str],
        fitting: Fitting = Fitting.BEST,
    ) -> None:
        self.fitting = fitting
        self.everywhere = everywhere
        self.nodes: dict[NodeId, Node] = {}
        self.usable: dict[NodeId, Node] = {}
        self.room = Room()
        self.problems = problems
        self.roots = roots
        self.drained: dict[NodeId, Node] = {}
        self.largest = 0
        self.foreign: dict[NodeId, Node] = {}
        self.beside: dict[NodeId, Node] = {}
        self.anti_affinity: AntiAffinity | None = None
        self.booked: Bookings | None = None
        self.loans = Loans()
        self.sliced: dict[NodeId, Node] = {}
        self.tainted: dict[NodeId, Node] = {}
        self.mixed: dict[NodeId, Node] = {}
        self.heterogeneous = False
        self._models = NodeValues[str]()
        self._together = NodeValues[int]()
        """How many GPUs one job can have, on each of the usable nodes."""
        self.changes = 0
        self.cache = Cache()
        """Results computed from all nodes; they are forgotten when a node comes, goes or changes."""
        self._most: NodeMaxima | None = None

    def register(self, event: NodeRegistered, now: float) -> Node:
        """Register a node's facts; a GPU that it no longer reports but that is held stays, as unusable.

        The caller must `refresh` the node afterwards.
        """
        gpus = {facts.gpu: facts for facts in event.gpus}
        node = self.everywhere.get(event.node)
        if node is None:
            node = self.everywhere[event.node] = Node(event.node, event, gpus, loan=event.loan)
        elif (node.facts.loan, node.facts.boot_id) != (event.loan, event.boot_id):
            node.loan = event.loan  # else what was said of its end later still holds
        self.nodes[event.node] = node
        for gpu, facts in node.gpus.items():
            if gpu not in gpus and node.held.share(gpu) > 0:
                gpus[gpu] = replace(facts, healthy=False, unhealthy_reason="its node lost it")
        if node.facts.boot_id != event.boot_id:  # no process outlives a reboot
            node.quarantine.clear()
            node.foreign.clear()
        node.foreign = {gpu: use for gpu, use in node.foreign.items() if gpu in gpus}
        for gpu in node.quarantine.keys() & gpus.keys():
            gpus[gpu] = replace(gpus[gpu], healthy=False, unhealthy_reason=node.quarantine[gpu])
        node.facts, node.gpus, node.last_seen = event, gpus, now
        node.connected, node.lost, node.dead = True, False, ""
        node.strays = {ref: stray for ref, stray in node.strays.items() if ref in event.known}
        node.link()
        return node

    def unregister(self, node: Node) -> None:
        """Remove ``node`` from the pool; nothing of it may be held or promised."""
        del self.nodes[node.id]
        node.connected = False
        self.refresh(node)

    def refresh(self, node: Node) -> None:
        """Update the books after ``node`` changed in what it has, or in whether it can be reached."""
        self.changes += 1
        node.list_slices()
        usable = node.usable
        sliced = node.topology is not None and node.topology.slices
        indexes = (self.usable, True), (self.foreign, node.foreign), (self.beside, node.beside), (self.sliced, sliced)
        if node.reachable and node.drain is not None:
            self.drained[node.id] = node
        else:
            self.drained.pop(node.id, None)
        kinds = (self.tainted, node.facts.taints), (self.mixed, len(node.models) > 1)
        for index, belongs in (*indexes, *kinds):
            if usable and belongs:
                index[node.id] = node
            else:
                index.pop(node.id, None)
        self.loans.note(node.id, node.loan if usable else None)
        self.room.update(node, node.promised)
        self.roots.note(node.id, (node.facts.checkpoint_root_id,) if node.reachable else ())
        self._models.note(node.id, tuple(node.models) if usable else ())
        self._together.note(node.id, (node.together,) if usable else ())
        self.heterogeneous = bool(self.tainted) or bool(self.loans) or len(self._models) > 1
        self.cache.clear()
        self.largest = max(self._together, default=0)
        self._most = None

    @property
    def most(self) -> NodeMaxima:
        """The most that any node has of each resource."""
        if self._most is None:
            nodes = self.nodes.values()
            gpus = tuple(sorted((node.together for node in nodes), reverse=True))
            self._most = NodeMaxima(
                gpus=gpus,
                sums=tuple(accumulate(gpus)),
                gpu_mem_bytes=max((gpu.mem_bytes for node in nodes for gpu in node.gpus.values()), default=0),
                cpus=max((node.facts.cpus for node in nodes), default=0.0),
                mem_bytes=max((node.facts.mem_bytes for node in nodes), default=0),
                alike=not any(node.facts.taints for node in nodes) and len({m for n in nodes for m in n.models}) <= 1,
            )
        return self._most

    def occupy(self, job: JobId, allocation: Allocation) -> None:
        """Enter ``allocation`` as held by and promised to an attempt of ``job``."""
        nodes, update = self.nodes, self.room.update
        for piece in allocation.nodes:
            node = nodes[piece.node]
            held, promised = node.held, node.promised
            fine = held.add(piece)
            if promised is not held:
                fine = promised.add(piece) and fine
            if not fine:
                self.problems.append(f"job {job} gets GPUs of node {node.id} that are held or promised already")
            node.attempts.add(job)
            if piece.gpus:
                node.on_gpus.add(job)
            node.planned.add(job)
            update(node, promised)

    def vacate(self, job: JobId, allocation: Allocation) -> None:
        """Undo `occupy`: ``allocation`` is proven free and no longer promised."""
        nodes, update = self.nodes, self.room.update
        for piece in allocation.nodes:
            node = nodes[piece.node]
            held, promised = node.held, node.promised
            fine = held.remove(piece)
            if promised is not held:
                fine = promised.remove(piece) and fine
            if not fine:
                self.problems.append(f"job {job} leaves what it did not have on node {node.id}")
            node.attempts.discard(job)
            node.on_gpus.discard(job)
            node.planned.discard(job)
            update(node, promised)

    def keep(self, job: JobId, piece: NodeAllocation) -> None:
        """Enter ``piece`` as kept by an attempt of ``job`` until it ends, also while its GPU memory is swapped out."""
        node = self.nodes[piece.node]
        node.held.add(piece)
        if node.promised is not node.held:
            node.promised.add(piece)
        node.attempts.add(job)
        node.kept[job] = piece
        self.changes += 1

    def drop(self, job: JobId, piece: NodeAllocation) -> None:
        """Undo `keep`."""
        node = self.nodes[piece.node]
        fine = node.held.remove(piece)
        if node.promised is not node.held:
            fine = node.promised.remove(piece) and fine
        if not fine:
            self.problems.append(f"job {job} drops what it did not keep on node {node.id}")
        node.attempts.discard(job)
        node.kept.pop(job, None)
        self.changes += 1

    def free(self, job: JobId, allocation: Allocation, leaves: bool = True) -> None:
        """Enter as free what an attempt of ``job`` held; the caller has settled before which job it is promised to.

        Unless it ``leaves``, the attempt lives on there without the GPUs.
        """
        for piece in allocation.nodes:
            node = self.nodes[piece.node]
            node.part()
            if not node.held.remove(piece):
                self.problems.append(f"job {job} frees what it did not hold on node {node.id}")
            node.join()
            node.on_gpus.discard(job)
            if leaves:
                node.attempts.discard(job)

    def promise(self, job: JobId, allocation: Allocation) -> None:
        """Promise ``allocation`` to ``job``."""
        for piece in allocation.nodes:
            node = self.nodes[piece.node]
            node.part()
            if not node.promised.add(piece):
                self.problems.append(f"job {job} is promised GPUs of node {node.id} that are promised already")
            node.planned.add(job)
            self.room.update(node, node.promised)

    def release(self, job: JobId, allocation: Allocation) -> None:
        """Take back the promise of ``allocation``: a claim was given up, or an attempt is to end."""
        for piece in allocation.nodes:
            node = self.nodes[piece.node]
            node.part()
            if not node.promised.remove(piece):
                self.problems.append(f"job {job} gives up what it was not promised on node {node.id}")
            node.join()
            node.planned.discard(job)
            self.room.update(node, node.promised)

    def open(self, allocation: Allocation) -> bool:
        """Return whether all of ``allocation`` is usable, not held, and promised to no job."""
        for piece in allocation.nodes:
            node = self.usable.get(piece.node)
            if node is None or not node.fits(piece, node.held):
                return False
            if node.promised is not node.held and not node.fits(piece, node.promised):
                return False
        return True

    def free_now(self, allocation: Allocation) -> bool:
        """Return whether all of ``allocation`` is usable and not held, even if it is promised to a job."""
        for piece in allocation.nodes:
            node = self.usable.get(piece.node)
            if node is None or not node.fits(piece, node.held):
                return False
        return True
