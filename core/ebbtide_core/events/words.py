"""Words that the sentences about several events share."""

from ebbtide_core.model.types import NodeId


def by(user: str) -> str:
    """The user that asked for it, if it was one."""
    return f" by {user}" if user else ""


def on(node: NodeId) -> str:
    """The node of an attempt on several nodes that it is about; empty if it is about all of them."""
    return f" on node {node}" if node else ""


def until_then(waited: str) -> str:
    """Why the job had waited, if it had to."""
    return f" (until then: {waited})" if waited else ""


def count_gpus(count: int) -> str:
    """A number of whole GPUs."""
    return f"{count} GPU{'' if count == 1 else 's'}"
