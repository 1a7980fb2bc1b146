"""Who has to go so that a job fits: tried on a draft's trial, which is left as it was."""

from collections.abc import Iterable, Sequence

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, NodeId
from ebbtide_core.policies.draft import Draft, count_text
from ebbtide_core.resources.eligibility import may_use


def could_make_room(draft: Draft, job: Job, given: list[Allocation], id: NodeId) -> bool:
    """A quick look at the node's sums: False only if ``job`` cannot fit there without what ``given`` holds."""
    node = draft.snapshot.nodes.get(id)
    if node is None:
        return False
    if job.pinned_allocation is not None:
        return id in job.pinned_allocation.node_ids
    if (job.constrained or draft.snapshot.books.heterogeneous) and not may_use(job, draft.snapshot.books, id):
        return False
    use, spec = draft.trial.use(id), job.spec
    pieces = [piece for allocation in given for piece in allocation.nodes if piece.node == id]
    if spec.cpus and use.cpus - sum([piece.cpus for piece in pieces]) + spec.cpus > node.facts.cpus + 1e-6:
        return False
    if spec.mem_bytes and use.mem_bytes - sum([p.mem_bytes for p in pieces]) + spec.mem_bytes > node.facts.mem_bytes:
        return False
    return node.idle(use) + sum([len(piece.gpus) for piece in pieces]) >= job.gpus_min // WHOLE


def makes_room(draft: Draft, job: Job, victims: list[Job], nodes: Sequence[NodeId] | None) -> bool:
    """Whether ``job`` fits on one of ``nodes`` (all if None) without ``victims``."""
    if draft.may_have_room is not None and not draft.may_have_room(job, victims):
        return False
    given = [allocation for victim in victims if (allocation := draft.allocation(victim)) is not None]
    for allocation in given:
        draft.trial.give(allocation)
    room = draft.trial.find(job, job.gpus_min, nodes)
    for allocation in given:
        draft.trial.take(allocation)
    return room is not None


def minimal_set(draft: Draft, job: Job, candidates: list[Job], nodes: Sequence[NodeId] | None) -> list[Job]:
    """The first candidates that together make room, less those that turn out not to be needed; the last go first."""
    if not makes_room(draft, job, candidates, nodes):
        return []
    victims: list[Job] = []
    for candidate in candidates:
        victims.append(candidate)
        if makes_room(draft, job, victims, nodes):
            break
    for victim in reversed(victims[:-1]):
        rest = [other for other in victims if other is not victim]
        if makes_room(draft, job, rest, nodes):
            victims = rest
    return victims


def preempt(draft: Draft, job: Job, levels: Iterable[list[Job]], reason: str) -> list[Job]:
    """Evict as few as possible for ``job`` because of ``reason``, and place it there; nobody if all cannot help.

    Jobs of a later one of ``levels`` are looked at only if those before do not suffice. One victim alone is preferred,
    the first that will do, then the fewest on one node, or on all for a gang; each of them is needed. Jobs that
    never proved that they can suspend are the last of their level.
    """
    levels = (sorted(level, key=_unproved) for level in levels)
    victims, nodes = _gang_victims(draft, job, levels) if draft.trial.is_gang(job) else _victims(draft, job, levels)
    if not victims:
        return []
    for victim in victims:
        draft.evict(victim, reason, job.id)
    room = draft.trial.find(job, job.gpus_min, nodes)
    assert room is not None, f"preemption made no room for job {job.id}"
    names = ", ".join(victim.id for victim in victims)
    draft.place(job, room, f"waiting for {count_text(job.gpus_min)} that job {names} is asked to free", claim=True)
    return victims


def _victims(draft: Draft, job: Job, levels: Iterable[list[Job]]) -> tuple[list[Job], list[NodeId]]:
    on_node: dict[NodeId, list[Job]] = {}
    for level in levels:
        nodes = {node: None for victim in level for node in nodes_of(victim)}
        for victim in level:
            for node in nodes_of(victim):
                if _would_do(draft, job, [victim], node):
                    return [victim], [node]
                on_node.setdefault(node, []).append(victim)
        sets = [
            (minimal_set(draft, job, on_node[node], [node]), [node])
            for node in nodes
            if _would_do(draft, job, on_node[node], node)
        ]
        if sets:
            return min(sets, key=lambda found: len(found[0]))
    return [], []


def _gang_victims(draft: Draft, job: Job, levels: Iterable[list[Job]]) -> tuple[list[Job], None]:
    candidates: list[Job] = []
    for level in levels:
        candidates += level
        if makes_room(draft, job, candidates, None):
            return minimal_set(draft, job, candidates, None), None
    return [], None


def _unproved(job: Job) -> bool:
    return not job.proved


def _would_do(draft: Draft, job: Job, victims: list[Job], node: NodeId) -> bool:
    given = [victim.planned for victim in victims if victim.planned is not None]
    return could_make_room(draft, job, given, node) and makes_room(draft, job, victims, [node])


def may_be_preempted(draft: Draft, job: Job, min_run_s: float) -> bool:
    """Whether ``job``, which has room, may be asked to step aside now; if only later, look again then."""
    if not job.preemptible or job.id in draft.evictions or job.id in draft.placements:
        return False
    if any(node not in draft.snapshot.nodes for node in nodes_of(job)):
        return False
    return not draft.spared(job, min_run_s)


def nodes_of(job: Job) -> tuple[NodeId, ...]:
    """Where the room promised to ``job`` is."""
    return job.planned.node_ids if job.planned is not None else ()
