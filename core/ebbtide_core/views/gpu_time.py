"""Defines the accounts of what GPU time was spent on, and checks that they add up; all in seconds or GPU-seconds."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Final

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import GpuId, JobId, NodeId

ROUNDING_S: Final = 0.5
"""Seconds by which rounding may make sums of intervals between Unix times differ, however many intervals there are."""


class Dimension(Enum):
    """What accounts may be split by."""

    USER = "user"
    POOL = "pool"
    JOB = "job"
    DAY = "day"


@frozen
class Periods:
    """The requested window as one or more periods between ascending ``edges`` in Unix seconds, for example days."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.edges) < 2 or not all(low < high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges: at least two times, each later than the one before")

    def cut(self, start: float, end: float) -> Iterator[tuple[int, float]]:
        """Yield the index of each period that overlaps ``start`` to ``end``, and the seconds of the overlap."""
        edges = self.edges
        start, end = max(start, edges[0]), min(end, edges[-1])
        index = bisect_right(edges, start) - 1
        while start < end:
            stop = min(end, edges[index + 1])
            yield index, stop - start
            start, index = stop, index + 1


@dataclass(slots=True)
class GpuTime:
    """The GPU-seconds that were allocated to ``jobs``, by use, and the seconds that the jobs spent in each state.

    ``allocated`` is ``starting`` (placed, not yet running), ``computing`` and ``leaving`` (from the request to stop, or
    the end, until the GPUs were free). Of ``computing``, ``lost`` was done after the last checkpoint of an attempt that
    failed, was killed or did not save; ``unknown`` was done by an attempt of which it is not known whether it saved by
    itself; and ``idle`` was spent without using the GPUs. ``waiting``, ``held`` and ``suspended`` are seconds of jobs
    without an attempt on GPUs, ``placed`` are seconds of jobs with one.
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
        """All GPU-seconds for which the GPUs were closed to other jobs."""
        return self.starting + self.computing + self.leaving

    @property
    def wasted(self) -> float:
        """The allocated GPU-seconds that are known to have led to no result."""
        return self.lost + self.leaving + self.idle


@dataclass(slots=True)
class GpuAccount:
    """What became of one GPU's time, in seconds; ``known`` is for how long the GPU existed.

    The time that was not allocated was ``idle`` (on offer), had ``foreign`` processes on the GPU, or was
    ``unavailable``, because the node was silent or out of service, or the GPU was unusable.
    """

    known: float = 0.0
    allocated: float = 0.0
    idle: float = 0.0
    foreign: float = 0.0
    unavailable: float = 0.0


@frozen
class Usage:
    """The result of a ledger: accounts by key, their total, each GPU, and seconds of foreign processes by user."""

    accounts: Mapping[tuple[str, ...], GpuTime]
    total: GpuTime
    gpus: Mapping[tuple[NodeId, GpuId], GpuAccount]
    foreign: Mapping[str, float]
    whole: bool
    """Whether the jobs of all users are counted."""


COLUMNS: Final = tuple(entry.name for entry in fields(GpuTime) if entry.name != "jobs")
"""The names of the sums of a `GpuTime`."""


def check(usage: Usage) -> tuple[str, ...]:
    """Return in words what does not add up to the second; empty if all sums are right."""
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
        accounted_s = account.allocated + account.idle + account.foreign + account.unavailable
        if abs(accounted_s - account.known) > ROUNDING_S:
            yield f"GPU {gpu} of node {node}: {accounted_s:.1f} s are accounted for, of {account.known:.1f} s"
    allocated = sum(account.allocated for account in usage.gpus.values())
    if usage.whole and abs(allocated - usage.total.allocated) > ROUNDING_S:
        yield f"GPUs were allocated for {allocated:.1f} s, and jobs had {usage.total.allocated:.1f} s of them"
