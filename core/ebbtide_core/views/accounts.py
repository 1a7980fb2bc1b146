"""Keeps one user's sums in one pool, and what each job added to them."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from struct import Struct, pack
from typing import Final

from ebbtide_core.model.types import WHOLE, JobId
from ebbtide_core.views.gpu_time import COLUMNS, UsageColumn
from ebbtide_core.views.integral import Integral, Presence

Change = tuple[int, float, float]
"""A change of a rate: the number of the `UsageColumn`, the Unix time, and by how many parts of a GPU, or of a job."""
_PACKED: Final = Struct("<Bdd")


@dataclass(slots=True)
class JobStay:
    """A job in an account: when it ``came``, and when it had ``left`` that account before, if it was there before."""

    job: JobId
    came: float
    left: float | None
    columns: tuple[Integral, ...]
    """The sums of the account, by column."""
    changes: list[Change] = field(default_factory=list)

    def change(self, column: UsageColumn, time: float, by: float) -> None:
        """Change the rate of a column by so many parts from Unix time ``time`` on."""
        self.changes.append((column, time, by))
        self.columns[column].change(time, by)


@dataclass(slots=True)
class PastStay:
    """A stay that is over, in 300 bytes."""

    job: JobId
    came: float
    packed: bytes


class PoolAccount:
    """The sums of one user's jobs in one pool.

    The sum of a window takes two look-ups for each column. A job's own sums are computed from its changes of rates.
    """

    def __init__(self) -> None:
        self.presence = Presence()
        self._columns = tuple(Integral() for _ in UsageColumn)
        self._stays: dict[JobId, JobStay] = {}
        self._past: list[PastStay] = []
        self._ends = array("d")
        """When the past stays ended, in ascending order."""

    def enter(self, job: JobId, now: float, left: float | None) -> JobStay:
        """Count ``job`` from Unix time ``now`` on; it had left at ``left`` if it was here before."""
        stay = self._stays[job] = JobStay(job, now, left, self._columns)
        self.presence.enter(now, left)
        return stay

    def leave(self, stay: JobStay, now: float) -> None:
        """Stop counting the job; all its rates are 0 from ``now`` on."""
        del self._stays[stay.job]
        self.presence.leave(now, stay.came, stay.left)
        if now > stay.came:
            packed = pack("<" + len(stay.changes) * "Bdd", *chain.from_iterable(stay.changes))
            self._past.append(PastStay(stay.job, stay.came, packed))
            self._ends.append(now)

    def between(self, start: float, end: float) -> list[float]:
        """Return the sums of all columns from ``start`` to ``end``, in seconds or GPU-seconds."""
        return [column.between(start, end) / WHOLE for column in self._columns]

    def jobs(self, start: float, end: float) -> "list[JobSums]":
        """Return the jobs that were here at any time from ``start`` to ``end``, each once for each stay."""
        stays = [JobSums(stay.job, stay.came, None, stay.changes) for stay in self._stays.values() if stay.came < end]
        first = bisect_right(self._ends, start)
        past = zip(self._past[first:], self._ends[first:], strict=True)
        stays += [JobSums(stay.job, stay.came, left, stay.packed) for stay, left in past if stay.came < end]
        return stays


@dataclass(slots=True)
class JobSums:
    """One job's stay in an account, from ``came`` until ``left``, None while it is there."""

    job: JobId
    came: float
    left: float | None
    changes: list[Change] | bytes

    def overlaps(self, start: float, end: float) -> bool:
        """Return whether the job was there at any time from ``start`` to ``end``."""
        return self.came < end and (self.left is None or self.left > start)

    def between(self, start: float, end: float) -> list[float]:
        """Return its sums from ``start`` to ``end``, by column, as `PoolAccount.between` does."""
        sums = [0.0] * len(COLUMNS)
        for column, time, by in self._changes():
            if time < end:
                sums[column] += by * (end - (time if time > start else start))
        return [parts / WHOLE for parts in sums]

    def _changes(self) -> Iterable[Change] | Iterator[Change]:
        return _PACKED.iter_unpack(self.changes) if isinstance(self.changes, bytes) else self.changes
