"""Makes the phrases that the sentences about several events share."""

from ebbtide_core.model.types import NodeId


def by(user: str) -> str:
    """Return `` by USER``, or nothing if no user asked for it."""
    return f" by {user}" if user else ""


def on(node: NodeId) -> str:
    """Return `` on node NODE``, or nothing if the event is about all nodes of the attempt."""
    return f" on node {node}" if node else ""


def until_then(waited: str) -> str:
    """Return the bracketed reason for which the job had waited, or nothing if there is none."""
    return f" (until then: {waited})" if waited else ""


def count_gpus(count: int) -> str:
    """Return ``1 GPU`` or ``N GPUs``."""
    return f"{count} GPU{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a duration in words, rounded to hours, minutes or seconds."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
