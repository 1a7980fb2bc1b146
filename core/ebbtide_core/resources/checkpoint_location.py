"""Where the checkpoints of a job are, and who can read them.

An attempt leaves them below the checkpoint root of its node, and nodes that share the root see them. With
``move_checkpoints`` a job may go to others, too: the newest one is copied there before the attempt starts, from a node
that has it. If that fails, the job waits for the nodes that have it, as it does without.
"""

from collections.abc import Mapping

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import NodeId
from ebbtide_core.resources.books import Books, Node


def moves(job: Job) -> bool:
    """Whether a copy of its checkpoint may be made, and none failed since it last ran."""
    return job.spec.move_checkpoints and not job.move_failure


def reads_checkpoint(job: Job, node: Node, books: Books) -> bool:
    """Whether ``node`` sees what earlier attempts of ``job`` saved, or can get it from a node that can be reached."""
    return sees_checkpoint(job, node) or (job.checkpoint_root_id in books.roots and moves(job))


def sees_checkpoint(job: Job, node: Node) -> bool:
    """Whether ``node`` sees what earlier attempts of ``job`` saved."""
    return not job.checkpoint_root_id or node.facts.checkpoint_root_id == job.checkpoint_root_id


def keepers(job: Job, nodes: Mapping[NodeId, Node]) -> list[Node]:
    """Those of ``nodes`` that have its checkpoints, reachable or not, by name; none if no attempt of it ever ran."""
    root = job.checkpoint_root_id
    found = [node for node in nodes.values() if root and node.facts.checkpoint_root_id == root]
    return sorted(found, key=lambda node: node.id)


def source(job: Job, node: NodeId, nodes: Mapping[NodeId, Node]) -> NodeId | None:
    """From which of ``nodes`` ``node`` has to get its checkpoint before it starts there; None if it sees it."""
    if sees_checkpoint(job, nodes[node]):
        return None
    found = sorted(keepers(job, nodes), key=lambda keeper: not keeper.reachable)
    return found[0].id if found else None
