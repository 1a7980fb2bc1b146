"""Finds out where the checkpoints of a job are, and which nodes can read them.

An attempt saves checkpoints below the checkpoint root of its node, and all nodes that share the root see them. With
``move_checkpoints`` a job may also go to other nodes: before the attempt starts, the newest checkpoint is copied there
from a node that has it. If the copy fails, the job waits for the nodes that have the checkpoint, as it does without
that option.
"""

from collections.abc import Mapping

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import NodeId
from ebbtide_core.resources.books import Books, Node


def may_copy(job: Job) -> bool:
    """Return whether the checkpoint of ``job`` may be copied, and no copy has failed since the job last ran."""
    return job.spec.move_checkpoints and not job.saved.move_failure


def reads_checkpoint(job: Job, node: Node, books: Books) -> bool:
    """Return whether ``node`` sees what earlier attempts of ``job`` saved, or can get it from a reachable node."""
    return sees_checkpoint(job, node) or (job.saved.root_id in books.roots and may_copy(job))


def sees_checkpoint(job: Job, node: Node) -> bool:
    """Return whether ``node`` sees what earlier attempts of ``job`` saved."""
    return not job.saved.root_id or node.facts.checkpoint_root_id == job.saved.root_id


def nodes_reading_checkpoint(job: Job, books: Books) -> tuple[NodeId, ...]:
    """Return the usable nodes that `reads_checkpoint` is True for, by name."""
    root = job.saved.root_id
    anywhere = not root or (root in books.roots and may_copy(job))
    return books.cache.get(
        ("nodes that read checkpoints of", None if anywhere else root),
        lambda: tuple(sorted(id for id, node in books.usable.items() if anywhere or sees_checkpoint(job, node))),
    )


def nodes_with_checkpoint(job: Job, nodes: Mapping[NodeId, Node]) -> list[Node]:
    """Return the ``nodes``, reachable or not, that have the job's checkpoints, by name; none if it never ran."""
    root = job.saved.root_id
    found = [node for node in nodes.values() if root and node.facts.checkpoint_root_id == root]
    return sorted(found, key=lambda node: node.id)


def copy_source(job: Job, node: NodeId, nodes: Mapping[NodeId, Node]) -> NodeId | None:
    """Return from which of ``nodes`` ``node`` has to copy the job's checkpoint before a start; None if it sees it."""
    if sees_checkpoint(job, nodes[node]):
        return None
    found = sorted(nodes_with_checkpoint(job, nodes), key=lambda keeper: not keeper.reachable)
    return found[0].id if found else None
