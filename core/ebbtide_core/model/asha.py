"""Decides, by asynchronous successive halving, which tasks of an array go on, which wait, and which are stopped.

From Li, Jamieson, Rostamizadeh, Gonina, Ben-tzur, Hardt, Recht and Talwalkar, "A system for massively parallel
hyperparameter tuning" (2020), algorithm 2. Rungs are at min_steps * eta^k steps. A task that reaches a rung steps aside
with a checkpoint, and goes on from there as soon as it is among the best 1/eta of the results at that rung. So no task
waits for a particular result, and a promotion costs a resume.

The paper never runs out of configurations, so two rules are our own. Once no other task can reach a rung, the best task
there goes on, however few they are. A task that could not be among the best, even if all tasks that may still come were
worse, is stopped. Of equal results the earlier one is better; a result that is not a number (NaN) is the worst.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ebbtide_core.model.choices import JobId
from ebbtide_core.model.spec.halving import Asha, Mode

if TYPE_CHECKING:
    from ebbtide_core.model.types import ProgressFacts


def result_of(progress: "ProgressFacts", metric: str) -> tuple[bool, float | None]:
    """Return whether ``progress`` has ``metric``, and its value; the value is None if it is not a number any more."""
    if metric in progress.diverged:
        return True, None
    value = progress.metrics.get(metric, progress.loss if metric == "loss" else None)
    return value is not None, value


@dataclass(frozen=True, slots=True)
class RungPlace:
    """A task's ``rank``, from 1, among the ``of`` results at a rung, of which the ``best`` ones go on at present."""

    rung: int
    rank: int
    of: int
    best: int


_Entry = tuple[bool, float, int, JobId]
"""A result as rungs order it: whether it is not a number, its value (less is better), its arrival, and its task."""


@dataclass(slots=True)
class HalvingTask:
    """A task with its ``results`` at the rungs that it reached, of which it passed the first ``passed``.

    ``entry`` is its last result as the rung orders it.
    """

    results: list[float | None] = field(default_factory=list)
    passed: int = 0
    over: bool = False
    entry: _Entry | None = None

    @property
    def waits(self) -> bool:
        """Whether the task waits at the last rung that it reached."""
        return not self.over and self.passed < len(self.results)


class SuccessiveHalving:
    """The tasks of one array. It depends on events alone, so that every fold of a journal has the same.

    The cost of a query grows with the number of rungs and of tasks in the answer, not with the number of all tasks.
    """

    def __init__(self, asha: Asha) -> None:
        self.asha = asha
        self.rungs = asha.rungs()
        self.tasks: dict[JobId, HalvingTask] = {}
        self._results: list[list[_Entry]] = [[] for _ in self.rungs]
        self._arrivals = [0] * len(self.rungs)
        """The number of results at each rung so far, with those that were taken back: of equals the first is better."""
        self._waiting: list[list[_Entry]] = [[] for _ in self.rungs]
        """The results at each rung whose tasks wait there."""
        self._open = [0] * (len(self.rungs) + 1)
        """The number of unfinished tasks by the number of rungs that they have reached."""

    # --- facts ---

    def add(self, id: JobId) -> None:
        """Add the task with that id."""
        self.tasks[id] = HalvingTask()
        self._open[0] += 1

    def reach(self, id: JobId, value: float | None) -> None:
        """Note the task's result at its next rung; None: it is not a number."""
        task = self.tasks[id]
        self._wait_no_more(task)
        rung = len(task.results)
        sign = -1.0 if self.asha.mode is Mode.MAX else 1.0
        task.entry = (value is None, sign * (value or 0.0), self._arrivals[rung], id)
        self._arrivals[rung] += 1
        task.results.append(value)
        for entries in (self._results, self._waiting):
            insort(entries[rung], task.entry)
        self._open[rung] -= 1
        self._open[rung + 1] += 1

    def promote(self, id: JobId) -> None:
        """Note that the task goes on from the rung where it waits."""
        task = self.tasks[id]
        self._wait_no_more(task)
        task.passed = len(task.results)

    def end(self, id: JobId, *, stopped_early: bool = True) -> None:
        """Note that the task is over. Its results stay, except for one with which it could still have gone on.

        Otherwise a task that its user cancelled would keep its place among the best from one that can use it.
        """
        task = self.tasks[id]
        if task.waits and task.entry is not None and not stopped_early:
            results = self._results[len(task.results) - 1]
            del results[bisect_left(results, task.entry)]
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
        """Whether all tasks are over."""
        return not any(self._open)

    # --- what follows ---

    def next_rung(self, id: JobId) -> int | None:
        """Return the steps of the next rung for the task; None if there is none."""
        reached = len(self.tasks[id].results)
        return self.rungs[reached] if reached < len(self.rungs) else None

    def place(self, id: JobId) -> RungPlace:
        """Return the task's place at the last rung that it reached."""
        task = self.tasks[id]
        assert task.entry is not None
        rung = len(task.results) - 1
        results = self._results[rung]
        return RungPlace(rung, bisect_left(results, task.entry) + 1, len(results), self._bests()[0][rung])

    def promotable(self) -> list[JobId]:
        """Return the waiting tasks that may go on: those at the highest rung first, and the better ones first."""
        found = []
        for rung, best in reversed(list(enumerate(self._bests()[0]))):
            waiting = self._waiting[rung]
            found += [id for *_, id in waiting[: self._rank(rung, best)]]
        return found

    def hopeless(self) -> list[JobId]:
        """Return the waiting tasks that can never go on, whatever results may still come."""
        quotas = enumerate(self._bests()[1])
        return [id for rung, quota in quotas for *_, id in self._waiting[rung][self._rank(rung, quota) :]]

    def _bests(self) -> tuple[list[int], list[int]]:
        """Return how many of the results at each rung go on at present, and how many at most in the end."""
        bests, quotas, hopeless = [], [], 0
        for rung, results in enumerate(self._results):
            at_most = len(results) + sum(self._open[: rung + 1]) - hopeless
            quota = max(1, at_most // self.asha.eta)
            quotas.append(quota)
            bests.append(quota if len(results) == at_most else len(results) // self.asha.eta)
            hopeless += len(self._waiting[rung]) - self._rank(rung, quota)
        return bests, quotas

    def _rank(self, rung: int, count: int) -> int:
        """Return how many of the ``count`` best results at ``rung`` are of tasks that wait there."""
        results, waiting = self._results[rung], self._waiting[rung]
        return bisect_left(waiting, results[count]) if count < len(results) else len(waiting)
