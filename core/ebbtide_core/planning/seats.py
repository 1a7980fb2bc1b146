"""Deals GPUs out like seats of a parliament, and lists the sizes that a job may have (seed 001, §IV)."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import Final

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import WHOLE

SIZES_REMEMBERED: Final = 1024
MOST_SHARING: Final = 16
"""The most jobs that one GPU is divided among."""


def dhondt(votes: Sequence[int], starts: Sequence[int], seats: int) -> list[int]:
    """Deal ``seats`` out by the D'Hondt method, one after the other to the candidate with most votes / (seats + 1).

    Candidate k starts with ``starts[k]`` seats; of equal candidates, the first in the list wins. Raise ``ValueError``
    if there are fewer seats than candidates start with.
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
    """Return the seats that each candidate wins in any case, so that fewer than one per candidate remain to be dealt.

    With fractional seats, each candidate would have the greater of its start and votes / λ, for the λ at which all
    seats are dealt out. Rounding down leaves seats over; so the λ of the final result is smaller, and no candidate has
    less than this.
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
    """Return the sizes from ``low`` to ``high`` parts that a job may have, ascending: 1/n of a GPU, then whole GPUs."""
    shares = [WHOLE // n for n in range(MOST_SHARING, 1, -1)]
    wholes = range(WHOLE * max(1, -(-low // WHOLE)), high + 1, WHOLE)
    return tuple(size for size in (*shares, *wholes) if low <= size <= high) or (low,)


def size_at_most(job: Job, share: int) -> int:
    """Return the greatest size of ``job`` of at most ``share`` parts; 0 if even its smallest size is more."""
    if share >= WHOLE:
        share -= share % WHOLE
        if job.gpus_min <= share and job.gpus_max >= WHOLE:
            return min(share, job.gpus_max)
    known = sizes(job.gpus_min, min(job.gpus_max, WHOLE))
    index = bisect_right(known, share)
    return known[index - 1] if index else 0
