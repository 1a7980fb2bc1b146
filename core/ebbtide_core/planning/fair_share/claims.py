"""Divides the GPUs among groups: what each may claim, and what share of the GPUs that comes to."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ebbtide_core.job.job import Job
from ebbtide_core.planning.fair_share.groups import ShareGroup

SAME: Final = 9
"""Shares that agree to this many decimal places count as equal."""
Turn = tuple[int, float, int]
"""A group's rank; the lower one need not give way: it lacks more jobs (rounded up), is heavier, or is older."""


@dataclass(frozen=True, slots=True)
class SizeStep:
    """One step in a job's size: ``parts`` are added, and ``has`` says whether the job has them already.

    By such a step a job starts, or ``grows`` if that is set.
    """

    job: Job
    parts: int
    has: bool
    grows: bool


@dataclass(slots=True, eq=False)
class ShareClaim:
    """What a group may have in one pass, in parts: from ``least`` to ``demand``; ``left`` is not granted yet.

    ``bound`` is what the group's jobs have that cannot be preempted. A claim stands for ``count`` groups of one kind:
    for the oldest group until that has its first job or cannot have it, then for the ``others``. If ``at_once`` is
    set, these are all ``alike`` down to their only job, which has its room and one size.
    """

    group: ShareGroup
    weight: float
    demand: int
    bound: int
    least: int
    steps: Iterator[SizeStep]
    count: int = 1
    alike: Sequence[tuple[int, ShareGroup]] = ()
    others: Iterator[tuple[int, ShareGroup]] | None = None
    at_once: bool = False
    left: float = 0.0
    granted: int = 0
    next: SizeStep | None = None


def divide(capacity: int, claims: list[ShareClaim]) -> None:
    """Set each claim's share: demand x weight x a common factor, at most its demand, and at least its ``least``."""
    factor = common_factor(capacity, claims, [claim.least for claim in claims])
    for claim in claims:
        claim.left = share_by(factor, claim, claim.least)


def share_by(factor: float, claim: ShareClaim, least: int) -> float:
    """Return the share of ``claim`` by a common factor, at least ``least``, in parts."""
    return max(least, min(claim.demand, claim.demand * claim.weight * factor))


def common_factor(capacity: int, claims: list[ShareClaim], leasts: list[int]) -> float:
    """Return the factor of demand x weight with which the shares, at least ``leasts``, fill ``capacity``."""
    turns: list[tuple[float, float]] = []  # factors at which the slope of the sum of all shares changes, and how
    for claim, least in zip(claims, leasts, strict=True):
        slope = claim.demand * claim.weight
        turns += [(least / slope, slope * claim.count), (1 / claim.weight, -slope * claim.count)]
    least_of_all = sum([claim.count * least for claim, least in zip(claims, leasts, strict=True)])
    factor, slope, total = 0.0, 0.0, float(least_of_all)
    for turn, change in sorted(turns):
        if total + slope * (turn - factor) >= capacity:
            return factor + (max(0.0, capacity - total) / slope if slope else 0.0)
        total += slope * (turn - factor)
        factor, slope = turn, slope + change
    return factor


def by_remainder(claim: ShareClaim, step: SizeStep) -> tuple[float, bool, int, ShareClaim]:
    """Order claims by what their groups lack most, in terms of their next jobs; a running job counts as one more."""
    lacks = claim.left / step.parts + (1 if step.has else 0)
    return (-round(lacks, SAME), step.has, claim.group.number, claim)


def first_step(claim: ShareClaim) -> SizeStep:
    """Return the next step of ``claim``, which has one."""
    assert claim.next is not None
    return claim.next


def turn_of(claim: ShareClaim, step: SizeStep) -> Turn:
    """Return the turn of ``claim``, which does not depend on the jobs that run already."""
    return rank_of(claim.weight, claim.group.number, claim.left, step.parts)


def rank_of(weight: float, number: int, left: float, parts: int) -> Turn:
    """Return the turn of a group that lacks ``left`` parts and asks for ``parts``."""
    lacks = math.ceil(round(left / parts, SAME))
    return (-lacks, -round(weight, SAME), number)
