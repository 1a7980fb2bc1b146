"""Defines the accounts of what GPU time was spent on, and checks that they add up; all in seconds or GPU-seconds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from ebbtide_core.model.frozen import frozen

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

    @property
    def whole(self) -> tuple[float, float]:
        """The whole window, from its first to its last edge."""
        return self.edges[0], self.edges[-1]

    @property
    def parts(self) -> tuple[tuple[float, float], ...]:
        """The periods in order, each from one edge to the next."""
        return tuple(zip(self.edges, self.edges[1:], strict=False))


class UsageColumn(IntEnum):
    """The sums of a `GpuTime`, in the order of its fields."""

    STARTING = 0
    COMPUTING = 1
    LEAVING = 2
    LOST = 3
    UNKNOWN = 4
    IDLE = 5
    WAITING = 6
    HELD = 7
    SUSPENDED = 8
    PLACED = 9


COLUMNS: Final = tuple(column.name.lower() for column in UsageColumn)
"""The names of the sums of a `GpuTime`."""


@dataclass(slots=True)
class GpuTime:
    """The GPU-seconds that were allocated to ``jobs``, by use, and the seconds that the jobs spent in each state.

    ``jobs`` is their number. ``allocated`` is ``starting`` (placed, not yet running), ``computing`` and ``leaving``
    (from the request to stop, or the end, until the GPUs were free). Of ``computing``, ``lost`` was done after the last
    checkpoint of an attempt that failed, was killed or did not save; ``unknown`` was done by an attempt of which it is
    not known whether it saved by itself; and ``idle`` was spent without using the GPUs. ``waiting``, ``held`` and
    ``suspended`` are seconds of jobs without an attempt on GPUs, ``placed`` are seconds of jobs with one.
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
    jobs: int = 0

    @property
    def allocated(self) -> float:
        """All GPU-seconds for which the GPUs were closed to other jobs."""
        return self.starting + self.computing + self.leaving

    @property
    def wasted(self) -> float:
        """The allocated GPU-seconds that are known to have led to no result."""
        return self.lost + self.leaving + self.idle

    def add(self, sums: Sequence[float]) -> None:
        """Add one sum to each column, in the order of `UsageColumn`."""
        starting, computing, leaving, lost, unknown, idle, waiting, held, suspended, placed = sums
        self.starting += starting
        self.computing += computing
        self.leaving += leaving
        self.lost += lost
        self.unknown += unknown
        self.idle += idle
        self.waiting += waiting
        self.held += held
        self.suspended += suspended
        self.placed += placed


@frozen
class GpuAccount:
    """What became of the time of all ``gpus``, in GPU-seconds; ``known`` is for how long they existed.

    The time that was not allocated was ``idle`` (on offer), had ``foreign`` processes on the GPU, or was
    ``unavailable``, because the node was silent or out of service, or the GPU was unusable.
    """

    gpus: int
    known: float
    allocated: float
    idle: float
    foreign: float
    unavailable: float


@frozen
class Usage:
    """What a ledger answers: accounts by key, their total, the GPUs, and seconds of foreign processes by user."""

    accounts: Mapping[tuple[str, ...], GpuTime]
    total: GpuTime
    gpus: GpuAccount
    foreign: Mapping[str, float]
    whole: bool
    """Whether the jobs of all users are counted."""


def check(usage: Usage) -> tuple[str, ...]:
    """Return in words what does not add up to the second; empty if all sums are right."""
    problems = [problem for problem in _check_gpus(usage) if problem]
    for key, account in usage.accounts.items():
        if account.lost + account.unknown + account.idle > account.computing + ROUNDING_S:
            problems.append(f"{' '.join(key)}: more GPU time was lost, unknown and idle than computed")
    return tuple(problems)


def _check_gpus(usage: Usage) -> Iterator[str]:
    gpus = usage.gpus
    accounted_s = gpus.allocated + gpus.idle + gpus.foreign + gpus.unavailable
    if abs(accounted_s - gpus.known) > ROUNDING_S:
        yield f"{gpus.gpus} GPUs: {accounted_s:.1f} s are accounted for, of {gpus.known:.1f} s"
    if usage.whole and abs(gpus.allocated - usage.total.allocated) > ROUNDING_S:
        yield f"GPUs were allocated for {gpus.allocated:.1f} s, and jobs had {usage.total.allocated:.1f} s of them"
