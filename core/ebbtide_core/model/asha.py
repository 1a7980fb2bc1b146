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

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import JobId, Progress

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
class RungPlace:
    """Where a task stands at a rung: ``rank`` counts from 1, and ``best`` of those ``of`` go on as things are."""

    rung: int
    rank: int
    of: int
    best: int


_Entry = tuple[bool, float, int, JobId]
"""What orders the results at a rung: no number, the value (the less, the better), when it came, and whose it is."""


@dataclass(slots=True)
class HalvingTask:
    """A task: its ``results`` at the rungs that it has reached, and what stands for the last of them if it ``waits``.

    From ``passed`` of them it went on.
    """

    results: list[float | None] = field(default_factory=list)
    passed: int = 0
    over: bool = False
    entry: _Entry | None = None

    @property
    def waits(self) -> bool:
        """Whether it is not to go on for now."""
        return not self.over and self.passed < len(self.results)


class SuccessiveHalving:
    """The tasks of one array. It is made of facts alone, so that whoever folds a journal has the same.

    All that is asked of it costs as much as there are rungs, and as there are tasks to name, however many there are.
    """

    def __init__(self, asha: Asha) -> None:
        self.asha = asha
        self.rungs = asha.rungs()
        self.tasks: dict[JobId, HalvingTask] = {}
        self._results: list[list[_Entry]] = [[] for _ in self.rungs]
        self._waiting: list[list[_Entry]] = [[] for _ in self.rungs]
        """Those of them that wait there."""
        self._open = [0] * (len(self.rungs) + 1)
        """How many that are not over have reached so many rungs."""

    # --- facts ---

    def add(self, id: JobId) -> None:
        """There is a task of that id."""
        self.tasks[id] = HalvingTask()
        self._open[0] += 1

    def reach(self, id: JobId, value: float | None) -> None:
        """The task has come to its next rung, with a result; None: it is no number."""
        task = self.tasks[id]
        self._wait_no_more(task)
        rung = len(task.results)
        sign = -1.0 if self.asha.mode is Mode.MAX else 1.0
        task.entry = (value is None, sign * (value or 0.0), len(self._results[rung]), id)
        task.results.append(value)
        for entries in (self._results, self._waiting):
            insort(entries[rung], task.entry)
        self._open[rung] -= 1
        self._open[rung + 1] += 1

    def promote(self, id: JobId) -> None:
        """The task goes on from where it waits."""
        task = self.tasks[id]
        self._wait_no_more(task)
        task.passed = len(task.results)

    def end(self, id: JobId) -> None:
        """The task is over, one way or the other; its results stay."""
        task = self.tasks[id]
        self._wait_no_more(task)
        if not task.over:
            task.over = True
            self._open[len(task.results)] -= 1

    def _wait_no_more(self, task: HalvingTask) -> None:
        if task.waits and task.entry is not None:
            waiting = self._waiting[len(task.results) - 1]
            del waiting[bisect_left(waiting, task.entry)]

    @property
    def over(self) -> bool:
        """Whether all tasks are."""
        return not any(self._open)

    # --- what follows ---

    def next_rung(self, id: JobId) -> int | None:
        """The steps of the next rung that the task comes to; None if there is none."""
        reached = len(self.tasks[id].results)
        return self.rungs[reached] if reached < len(self.rungs) else None

    def place(self, id: JobId) -> RungPlace:
        """Where the task stands at the last rung that it has reached."""
        task = self.tasks[id]
        assert task.entry is not None
        rung = len(task.results) - 1
        results = self._results[rung]
        return RungPlace(rung, bisect_left(results, task.entry) + 1, len(results), self._bests()[0][rung])

    def promotable(self) -> list[JobId]:
        """Who waits and may go on, those at the highest rung first, and the better ones first."""
        found = []
        for rung, best in reversed(list(enumerate(self._bests()[0]))):
            waiting = self._waiting[rung]
            found += [id for *_, id in waiting[: self._rank(rung, best)]]
        return found

    def hopeless(self) -> list[JobId]:
        """Who waits and can never go on, whatever those do who may still come."""
        quotas = enumerate(self._bests()[1])
        return [id for rung, quota in quotas for *_, id in self._waiting[rung][self._rank(rung, quota) :]]

    def _bests(self) -> tuple[list[int], list[int]]:
        """How many of the results at each rung go on as things are, and how many at most in the end."""
        bests, quotas, hopeless = [], [], 0
        for rung, results in enumerate(self._results):
            at_most = len(results) + sum(self._open[: rung + 1]) - hopeless
            quota = max(1, at_most // self.asha.eta)
            quotas.append(quota)
            bests.append(quota if len(results) == at_most else len(results) // self.asha.eta)
            hopeless += len(self._waiting[rung]) - self._rank(rung, quota)
        return bests, quotas

    def _rank(self, rung: int, count: int) -> int:
        """How many of the ``count`` best results at ``rung`` are of tasks that wait there."""
        results, waiting = self._results[rung], self._waiting[rung]
        return bisect_left(waiting, results[count]) if count < len(results) else len(waiting)
