"""Preemption: the choice of the jobs that step aside for another, and its claim to their room.

The functions here try sets of victims on a draft's trial and leave it as it was; only `claim` changes the draft.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE, Allocation, NodeId
from ebbtide_core.planning.draft import Draft, count_text
from ebbtide_core.resources.eligibility import may_use

Nodes = tuple[NodeId, ...] | None
"""The nodes where the job must fit; None means any."""
Choice = tuple[list[Job], Nodes]
"""The victims, and the nodes where there is room without them."""


def preempt(draft: Draft, job: Job, levels: Iterable[list[Job]], reason: str) -> list[Job]:
    """Evict as few jobs as possible for ``job``, and place it in their room; return them, empty if that fails."""
    choice = choose(draft, job, levels)
    if choice is None:
        return []
    claim(draft, job, choice, reason)
    return choice[0]


def choose(draft: Draft, job: Job, levels: Iterable[list[Job]]) -> Choice | None:
    """Choose as few jobs as possible to step aside so that ``job`` fits; return None if all together make no room.

    Jobs of a later level are considered only if those of the ``levels`` before it do not suffice. The first victim that
    suffices alone is preferred, then the fewest on one node, or on all nodes for a gang; each of them is needed. Jobs
    that never proved that they can suspend come last in their level.
    """
    levels = map(_proved_first, levels)
    return _of_all_nodes(draft, job, levels) if draft.trial.is_gang(job) else _of_one_node(draft, job, levels)


def _of_one_node(draft: Draft, job: Job, levels: Iterable[list[Job]]) -> Choice | None:
    by_node: dict[NodeId, list[Job]] = {}
    reach, needed = reaches(draft, job), _counted(draft, job)
    idle = idle_gpus(draft) if needed else {}  # GPUs of each node without the victims so far, at most
    for level in levels:
        of_level: dict[NodeId, list[Job]] = {}
        for victim in level:
            room = victim.planned
            if room is None:
                continue
            reached = reach(victim)
            for piece in room.nodes:
                node = piece.node
                if reached and suffice(draft, job, [victim], (node,)):
                    return [victim], (node,)
                there = of_level[node] = by_node.setdefault(node, [])
                there.append(victim)
                idle[node] = idle.get(node, 0) + len(piece.gpus)
        likely = [(node, victims) for node, victims in of_level.items() if idle[node] >= needed]
        enough: dict[Nodes, list[Job]] = {
            (node,): victims for node, victims in likely if suffice(draft, job, victims, (node,))
        }
        if enough:
            return cheapest_set(draft, job, enough, len)
    return None


def _of_all_nodes(draft: Draft, job: Job, levels: Iterable[list[Job]]) -> Choice | None:
    candidates: list[Job] = []
    for level in levels:
        candidates += level
        if makes_room(draft, job, candidates, None):
            return minimal_set(draft, job, candidates, None), None
    return None


def _proved_first(level: list[Job]) -> list[Job]:
    return sorted(level, key=_unproved)


def _unproved(job: Job) -> bool:
    return not job.suspending.proved


# --- candidates ---


def may_be_preempted(draft: Draft, job: Job, min_run_s: float) -> bool:
    """Return whether ``job``, which has room, may be preempted now; if only later, request a pass for then."""
    if not job.preemptible or job.id in draft.evictions or job.id in draft.placements:
        return False
    if any(node not in draft.snapshot.nodes for node in nodes_of(job)):
        return False
    return not draft.spared(job, min_run_s)


def nodes_of(job: Job) -> tuple[NodeId, ...]:
    """Return the nodes of the room promised to ``job``."""
    return job.planned.node_ids if job.planned is not None else ()


# --- victims ---


def makes_room(draft: Draft, job: Job, victims: list[Job], nodes: Nodes) -> bool:
    """Return whether ``job`` fits on ``nodes`` without ``victims``."""
    if draft.may_have_room is not None and not draft.may_have_room(job, victims):
        return False
    given = _rooms(draft, victims)
    for room in given:
        draft.trial.give(room)
    found = draft.trial.find(job, draft.least(job), nodes)
    for room in given:
        draft.trial.take(room)
    return found is not None


def reaches(draft: Draft, job: Job) -> Callable[[Job], bool]:
    """Return a test that is False only for jobs that alone free too few GPUs of each of their nodes for ``job``.

    It costs so little that all jobs with room can be asked. It holds until the draft changes.
    """
    needed = _counted(draft, job)
    if not needed:
        return all_reach
    free = idle_gpus(draft)

    def reach(victim: Job) -> bool:
        room = draft.allocation(victim)
        for piece in room.nodes if room is not None else ():
            if len(piece.gpus) + free.get(piece.node, 0) >= needed:
                return True
        return False

    return reach


def _counted(draft: Draft, job: Job) -> int:
    """Return how many whole GPUs of one node ``job`` needs; 0 if it has other needs, which counting does not tell."""
    others = job.pinned_allocation is not None or draft.trial.is_gang(job)
    return 0 if others else draft.least(job) // WHOLE


def idle_gpus(draft: Draft) -> dict[NodeId, int]:
    """Return how many GPUs of each node are idle, without nodes that have none."""
    return {node: count for count, nodes in draft.trial.room.idle.items() if count for node in nodes}


def all_reach(victim: Job) -> bool:
    """Return True: the test for a job that needs no whole GPUs of a node."""
    return True


def suffice(draft: Draft, job: Job, victims: list[Job], nodes: Nodes) -> bool:
    """Return what `makes_room` does, after a quick check of the nodes' sums, which rules most of them out."""
    given = _rooms(draft, victims) if nodes is not None else []
    if nodes is not None and not any(could_make_room(draft, job, given, node) for node in nodes):
        return False
    return makes_room(draft, job, victims, nodes)


def _rooms(draft: Draft, jobs: list[Job]) -> list[Allocation]:
    return [room for job in jobs if (room := draft.allocation(job)) is not None]


def could_make_room(draft: Draft, job: Job, given: Sequence[Allocation], id: NodeId) -> bool:
    """Check the node's sums quickly; return False only if ``job`` cannot fit there once ``given`` is free."""
    node = draft.snapshot.nodes.get(id)
    if node is None:
        return False
    if job.pinned_allocation is not None:
        return id in job.pinned_allocation.node_ids
    if (job.eligibility.constrained or draft.snapshot.books.heterogeneous) and not may_use(
        job, draft.snapshot.books, id
    ):
        return False
    use, spec = draft.trial.use(id), job.spec
    pieces = [piece for allocation in given for piece in allocation.nodes if piece.node == id]
    if spec.cpus and use.cpus - sum([piece.cpus for piece in pieces]) + spec.cpus > node.facts.cpus + 1e-6:
        return False
    if spec.mem_bytes and use.mem_bytes - sum([p.mem_bytes for p in pieces]) + spec.mem_bytes > node.facts.mem_bytes:
        return False
    return node.idle(use) + sum([len(piece.gpus) for piece in pieces]) >= draft.least(job) // WHOLE


def minimal_set(draft: Draft, job: Job, candidates: list[Job], nodes: Nodes) -> list[Job]:
    """Return the first candidates that together make room, without those that turn out not to be needed.

    The last ones are dropped first. The list is empty if all candidates together make no room.
    """
    victims: list[Job] = []
    for candidate in candidates:
        victims.append(candidate)
        if suffice(draft, job, victims, nodes):
            break
    else:
        return []
    for victim in reversed(victims[:-1]):
        rest = [other for other in victims if other is not victim]
        if suffice(draft, job, rest, nodes):
            victims = rest
    return victims


def cheapest_set(
    draft: Draft, job: Job, by_nodes: Mapping[Nodes, list[Job]], cost: Callable[[list[Job]], Any]
) -> Choice | None:
    """Return the cheapest of the minimal sets of each entry of ``by_nodes``, the first of equal ones; None if none."""
    sets = [
        (victims, nodes)
        for nodes, candidates in by_nodes.items()
        if (victims := minimal_set(draft, job, candidates, nodes))
    ]
    return min(sets, key=lambda choice: cost(choice[0]), default=None)


# --- claiming their room ---


def claim(draft: Draft, job: Job, choice: Choice, reason: str, *, named: int = 0) -> None:
    """Evict the victims because of ``reason``, and promise their room to ``job``.

    The wait reason of ``job`` names all victims, or only the last ``named`` ones.
    """
    victims, nodes = choice
    for victim in victims:
        draft.evict(victim, reason, job.id)
    room = draft.trial.find(job, draft.least(job), nodes)
    assert room is not None, f"preemption made no room for job {job.id}"
    names = ", ".join(victim.id for victim in victims[-named:])
    draft.place(job, room, f"waiting for {count_text(draft.least(job))} that job {names} is asked to free", claim=True)
