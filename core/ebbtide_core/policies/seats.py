"""How many: GPUs dealt out like seats of a parliament, and the sizes that a job may have (seed 001, §IV)."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import Final

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE

SIZES_REMEMBERED: Final = 1024
MOST_SHARING: Final = 16
"""Jobs that one GPU is divided among at most."""


def dhondt(votes: Sequence[int], starts: Sequence[int], seats: int) -> list[int]:
    """Deal ``seats`` out by the D'Hondt method: one after the other to the greatest votes / (seats + 1).

    Candidate k starts with ``starts[k]`` of them; of equals, the first in the list comes first. ``ValueError`` if there
    are fewer seats than candidates start with.
    """
    if sum(starts) > seats:
        raise ValueError(f"{seats} seats are fewer than the {sum(starts)} to start with")
    dealt = _surely_won(votes, starts, seats)
    left = seats - sum(dealt)
    heap = [(-count / (won + 1), index) for index, (count, won) in enumerate(zip(votes, dealt, strict=True)) if count]
    heapify(heap)
    for _ in range(left if heap else 0):
        index = heap[0][1]
        dealt[index] += 1
        heapreplace(heap, (-votes[index] / (dealt[index] + 1), index))
    return dealt


def _surely_won(votes: Sequence[int], starts: Sequence[int], seats: int) -> list[int]:
    """Seats that everybody wins in any case: their quota, rounded down, of those that others do not start with.

    Raised continuously until all seats are dealt out, everybody would have the greater of their start and votes / λ.
    Rounded down, that is fewer seats; so the λ of the result is smaller still, and leaves nobody with less. Less than
    one seat per candidate remains to be dealt out.
    """
    rising = [index for index, count in enumerate(votes) if count]
    total, left = sum(votes), seats - sum(starts[index] for index, count in enumerate(votes) if not count)
    while rising:
        higher = [index for index in rising if votes[index] * left >= starts[index] * total]
        if len(higher) == len(rising):
            break
        for index in set(rising).difference(higher):
            total -= votes[index]
            left -= starts[index]
        rising = higher
    dealt = list(starts)
    for index in rising:
        dealt[index] = max(starts[index], votes[index] * left // total)
    return dealt


@lru_cache(maxsize=SIZES_REMEMBERED)
def sizes(low: int, high: int) -> tuple[int, ...]:
    """The GPU counts from ``low`` to ``high`` parts that a job may have, ascending: 1/n of one, then whole ones."""
    shares = [WHOLE // n for n in range(MOST_SHARING, 1, -1)]
    wholes = range(WHOLE * max(1, -(-low // WHOLE)), high + 1, WHOLE)
    return tuple(size for size in (*shares, *wholes) if low <= size <= high) or (low,)


def size_at_most(job: Job, share: int) -> int:
    """The greatest size of ``job`` that is no more than ``share`` parts; 0 if even its smallest is more."""
    if share >= WHOLE:
        share -= share % WHOLE
        if job.gpus_min <= share and job.gpus_max >= WHOLE:
            return min(share, job.gpus_max)
    known = sizes(job.gpus_min, min(job.gpus_max, WHOLE))
    index = bisect_right(known, share)
    return known[index - 1] if index else 0
