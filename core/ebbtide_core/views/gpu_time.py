"""What GPU time was spent on: sums of intervals, by whoever asks for them. All of them are seconds or GPU-seconds."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Final

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import GpuId, JobId, NodeId

ROUNDING_S: Final = 0.5
"""Sums of intervals between Unix times may be off by this: less than a second, however many there are."""


class Dimension(Enum):
    """What accounts may be kept by."""

    USER = "user"
    POOL = "pool"
    JOB = "job"
    DAY = "day"


@frozen
class Periods:
    """Times between ``edges``, in Unix seconds and ascending: the window that is asked about, cut into days or not."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.edges) < 2 or not all(low < high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges: at least two times, each later than the one before")

    def cut(self, start: float, end: float) -> Iterator[tuple[int, float]]:
        """The seconds from ``start`` to ``end`` that lie in each period, with its index; none that are outside all."""
        edges = self.edges
        start, end = max(start, edges[0]), min(end, edges[-1])
        index = bisect_right(edges, start) - 1
        while start < end:
            stop = min(end, edges[index + 1])
            yield index, stop - start
            start, index = stop, index + 1


@dataclass(slots=True)
class GpuTime:
    """GPU-seconds that were allocated, and what of it was what; and seconds that ``jobs`` spent otherwise.

    ``allocated`` is ``starting`` (placed, not yet running), ``computing`` and ``leaving`` (from the request to stop, or
    the end, until the GPUs were free). Of ``computing``, ``lost`` was done after the last checkpoint of an attempt that
    failed, was killed or did not save, ``unknown`` was done by one of which nobody knows what it has saved by itself,
    and ``idle`` was spent without using the GPUs. ``waiting``, ``held`` and ``suspended`` are seconds of jobs that had
    no attempt, ``placed`` those of jobs that had one.
    """

    starting: float = 0.0
    computing: float = 0.0
    leaving: float = 0.0
    lost: float = 0.0
    unknown: float = 0.0
    idle: float = 0.0
    waiting: float = 0.0
    held: float = 0.0
    suspended: float = 0.0
    placed: float = 0.0
    jobs: set[JobId] = field(default_factory=set)

    @property
    def allocated(self) -> float:
        """All GPU-seconds in which nobody else could have the GPUs."""
        return self.starting + self.computing + self.leaving

    @property
    def wasted(self) -> float:
        """Those of them that are known to have led to nothing."""
        return self.lost + self.leaving + self.idle


@dataclass(slots=True)
class GpuAccount:
    """What became of one GPU's time, in seconds; ``known`` is for how long there was such a GPU.

    The part of it that was not allocated was ``idle`` (on offer), had ``foreign`` processes on it, or was
    ``unavailable``: its node silent, or itself unusable.
    """

    known: float = 0.0
    allocated: float = 0.0
    idle: float = 0.0
    foreign: float = 0.0
    unavailable: float = 0.0


@frozen
class Usage:
    """What a ledger comes to: accounts by key, all of them together, each GPU, and foreign processes by user."""

    accounts: Mapping[tuple[str, ...], GpuTime]
    total: GpuTime
    gpus: Mapping[tuple[NodeId, GpuId], GpuAccount]
    foreign: Mapping[str, float]
    whole: bool
    """Whether jobs of all users are in it."""


COLUMNS: Final = tuple(entry.name for entry in fields(GpuTime) if entry.name != "jobs")
"""The sums of an `GpuTime`."""


def check(usage: Usage) -> tuple[str, ...]:
    """What does not add up to the second, in words; nothing, if the books are right."""
    problems = [problem for problem in _check_gpus(usage) if problem]
    for key, account in usage.accounts.items():
        if account.lost + account.unknown + account.idle > account.computing + ROUNDING_S:
            problems.append(f"{' '.join(key)}: more GPU time was lost, unknown and idle than computed")
    for column in COLUMNS:
        parts = sum(getattr(account, column) for account in usage.accounts.values())
        if abs(parts - (whole := getattr(usage.total, column))) > ROUNDING_S:
            problems.append(f"{column}: the accounts come to {parts:.1f} s, all together to {whole:.1f} s")
    return tuple(problems)


def _check_gpus(usage: Usage) -> Iterator[str]:
    for (node, gpu), account in usage.gpus.items():
        told = account.allocated + account.idle + account.foreign + account.unavailable
        if abs(told - account.known) > ROUNDING_S:
            yield f"GPU {gpu} of node {node}: {told:.1f} s are accounted for, of {account.known:.1f} s"
    allocated = sum(account.allocated for account in usage.gpus.values())
    if usage.whole and abs(allocated - usage.total.allocated) > ROUNDING_S:
        yield f"GPUs were allocated for {allocated:.1f} s, and jobs had {usage.total.allocated:.1f} s of them"
