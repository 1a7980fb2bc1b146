"""Who has to go so that a job fits: tried on a draft's trial, which is left as it was."""

from collections.abc import Sequence

from ebbtide_core.job import Job
from ebbtide_core.model import WHOLE, Allocation, NodeId
from ebbtide_core.policies.draft import Draft


def could_make_room(draft: Draft, job: Job, given: list[Allocation], id: NodeId) -> bool:
    """A quick look at the node's sums: False only if ``job`` cannot fit there without what ``given`` holds."""
    node = draft.snapshot.nodes.get(id)
    if node is None:
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
