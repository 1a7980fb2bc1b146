"""Holds arrays: many jobs of one command that are submitted together, with ids such as ``17.3``."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from ebbtide_core.model.types import FINISHED, JobId, JobState

if TYPE_CHECKING:
    from ebbtide_core.job.job import Job


@dataclass(slots=True)
class Array:
    """The tasks of one array by index, except forgotten ones, and how many of all tasks are in each state.

    ``max_slots`` is in parts of GPUs; 0 means no limit.
    """

    id: JobId
    user: str
    tasks: "dict[int, Job]" = field(default_factory=dict)
    states: Counter[JobState] = field(default_factory=Counter)
    max_concurrent: int = 0
    max_slots: int = 0

    @property
    def unfinished(self) -> int:
        """The number of tasks that are not finished."""
        return sum(count for state, count in self.states.items() if state not in FINISHED)

    @property
    def not_ok(self) -> int:
        """The number of tasks that failed or were cancelled."""
        return self.states[JobState.FAILED] + self.states[JobState.CANCELLED]


def ranges(indices: Iterable[int]) -> str:
    """Write indices as a user does: ``0-2,5``."""
    numbers = sorted(set(indices))
    if not numbers:
        return ""
    ends = [index for index, (low, high) in enumerate(pairwise(numbers)) if high > low + 1]
    starts = [0, *(end + 1 for end in ends)]
    pairs = zip(starts, [*ends, len(numbers) - 1], strict=True)
    return ",".join(str(numbers[low]) if low == high else f"{numbers[low]}-{numbers[high]}" for low, high in pairs)


def selected(array: Array, indices: str) -> "list[Job]":
    """Return the tasks that ``indices`` names, in order: ``2`` one task, ``2-5`` a range, an empty text all tasks."""
    low, _, high = indices.partition("-")
    first = int(low) if low else 0
    last = int(high) if high else (first if low else None)
    tasks = array.tasks
    if last is not None and last - first < len(tasks):
        return [tasks[index] for index in range(first, last + 1) if index in tasks]
    return [job for index, job in sorted(tasks.items()) if first <= index and (last is None or index <= last)]
