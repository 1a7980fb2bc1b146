"""Asynchronous successive halving over the tasks of an array: who goes on, who waits, and who is given up.

From Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht and Talwalkar, "A system for massively parallel
hyperparameter tuning" (2020), algorithm 2. Rungs are at min_steps * eta^k steps. Whoever reaches one steps aside with a
checkpoint, and goes on from there as soon as it is among the best 1/eta of the results at that rung. So no result is
waited for, and a promotion costs a resume.

Where the paper is silent, because it never runs out of configurations: once nobody else can come to a rung, the best
one there goes on, however few they are; and whoever could not be among the best even if all others that may still come
were worse is given up. Of equal results the one that was there first is better; one that is no number (NaN) is the
worst.
"""

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ebbtide_core.frozen import frozen
from ebbtide_core.model import JobId, Progress

MAX_ETA: Final = 100
MAX_STEPS: Final = 10**15


class Mode(Enum):
    """Which results are better: the smaller, or the greater ones."""

    MIN = "min"
    MAX = "max"


@frozen(kw_only=True)
class Asha:
    """What tasks are compared by: their ``metric`` at rungs from ``min_steps`` on, each ``eta`` times the one before.

    Beyond ``max_steps`` there is no rung: whoever gets so far runs to its own end.
    """

    min_steps: int
    max_steps: int
    metric: str = "loss"
    mode: Mode = Mode.MIN
    eta: int = 4

    def rungs(self) -> tuple[int, ...]:
        """The steps of all rungs, ascending."""
        steps, rungs = self.min_steps, []
        while steps < self.max_steps:
            rungs.append(steps)
            steps *= self.eta
        return tuple(rungs)

    def fault(self) -> str:
        """What is wrong with it, in words that name the setting and the limit; empty if nothing."""
        if not 2 <= self.eta <= MAX_ETA:
            return f"eta: {self.eta} is not between 2 and {MAX_ETA}"
        if not 1 <= self.min_steps <= MAX_STEPS:
            return f"min-steps: {self.min_steps} is not between 1 and {MAX_STEPS}"
        if not self.min_steps < self.max_steps <= MAX_STEPS:
            return f"max-steps: {self.max_steps} is not more than min-steps, {self.min_steps}, and at most {MAX_STEPS}"
        return "" if self.metric else "metric: has no name"


def result_of(progress: Progress, metric: str) -> tuple[bool, float | None]:
    """Whether ``progress`` tells of ``metric``, and its value: None if that is no number any more."""
    if metric in progress.diverged:
        return True, None
    value = progress.metrics.get(metric, progress.loss if metric == "loss" else None)
    return value is not None, value


@dataclass(frozen=True, slots=True)
class Place:
    """Where a task stands at a rung: ``rank`` counts from 1, and ``best`` of those ``of`` go on as things are."""

    rung: int
    rank: int
    of: int
    best: int


@dataclass(slots=True)
class Task:
    """A task: its ``results`` at the rungs that it has reached, and from how many of them it went on."""

    results: list[float | None] = field(default_factory=list)
    passed: int = 0
    over: bool = False

    @property
    def waits(self) -> bool:
        """Whether it is not to go on for now."""
        return not self.over and self.passed < len(self.results)


_Entry = tuple[bool, float, int, JobId]
"""What orders the results at a rung: no number, the value (the less, the better), when it came, and whose it is."""


class Sweep:
    """The tasks of one array. It is made of facts alone, so that whoever folds a journal has the same."""

    def __init__(self, asha: Asha) -> None:
        self.asha = asha
        self.rungs = asha.rungs()
        self.tasks: dict[JobId, Task] = {}
        self._results: list[list[_Entry]] = [[] for _ in self.rungs]

    # --- facts ---

    def add(self, id: JobId) -> None:
        """There is a task of that id."""
        self.tasks[id] = Task()

    def reach(self, id: JobId, value: float | None) -> None:
        """The task has come to its next rung, with a result; None: it is no number."""
        task = self.tasks[id]
        rung = len(task.results)
        task.results.append(value)
        sign = -1.0 if self.asha.mode is Mode.MAX else 1.0
        insort(self._results[rung], (value is None, sign * (value or 0.0), len(self._results[rung]), id))

    def promote(self, id: JobId) -> None:
        """The task goes on from where it waits."""
        self.tasks[id].passed = len(self.tasks[id].results)

    def end(self, id: JobId) -> None:
        """The task is over, one way or the other; its results stay."""
        self.tasks[id].over = True

    @property
    def over(self) -> bool:
        """Whether all tasks are."""
        return all(task.over for task in self.tasks.values())

    # --- what follows ---

    def next_rung(self, id: JobId) -> int | None:
        """The steps of the next rung that the task comes to; None if there is none."""
        reached = len(self.tasks[id].results)
        return self.rungs[reached] if reached < len(self.rungs) else None

    def place(self, id: JobId) -> Place:
        """Where the task stands at the last rung that it has reached."""
        rung = len(self.tasks[id].results) - 1
        results = self._results[rung]
        rank = next(number for number, entry in enumerate(results, start=1) if entry[-1] == id)
        return Place(rung, rank, len(results), self._bests()[0][rung])

    def promotable(self) -> list[JobId]:
        """Who waits and may go on, those at the highest rung first, and the better ones first."""
        bests = list(enumerate(self._bests()[0]))
        return [id for rung, best in reversed(bests) for id in self._waiting(rung, 0, best)]

    def hopeless(self) -> list[JobId]:
        """Who waits and can never go on, whatever those do who may still come."""
        return self._bests()[1]

    def _bests(self) -> tuple[list[int], list[JobId]]:
        """How many of the results at each rung go on as things are; and who can never be one of them."""
        bests, hopeless = [], list[JobId]()
        for rung, results in enumerate(self._results):
            given_up = set(hopeless)
            open = [id for id, task in self.tasks.items() if not task.over and len(task.results) <= rung]
            at_most = len(results) + len([id for id in open if id not in given_up])
            quota = max(1, at_most // self.asha.eta)
            bests.append(quota if len(results) == at_most else len(results) // self.asha.eta)
            hopeless += self._waiting(rung, quota, at_most)
        return bests, hopeless

    def _waiting(self, rung: int, start: int, stop: int) -> Iterator[JobId]:
        """Those who wait at ``rung``, from the ``start``-th best (counted from 0) to before the ``stop``-th."""
        for *_, id in self._results[rung][start:stop]:
            if self.tasks[id].waits and len(self.tasks[id].results) == rung + 1:
                yield id
