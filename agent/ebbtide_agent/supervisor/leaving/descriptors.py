"""Shares out this process's descriptors among what takes one for each process of the job.

Enough of them stay free for everything else: this process could not even look for its children without one, and would
end.
"""

import resource


def part_of_descriptors(part: int) -> int:
    """Return how many descriptors one of so many equal parts has of all that this process may open."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (most if most != resource.RLIM_INFINITY else 1 << 20) // part
