"""Estimates how soon a job is expected to be done, from what a live cluster can know.

Everything is a *time per completion* in seconds: the expected time on the job's smallest size per job that ends (see
`ebbtide_core.estimates.gittins`). For a job of known length it is the time that is left. The first of these sources
that knows something counts: the declared work; reported progress; the lengths of earlier runs of its group, of its
script, of its user's jobs of that class, of all jobs of that class, and of all jobs. A class is the job class together
with the priority. A job that has outlived its source is judged by the next one, so a wrong declaration helps only until
it is found to be wrong. Whoever outlived all is expected to run as long again as so far. A time limit is an upper bound
for all sources.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ebbtide_core.estimates.gittins import RunLengths
from ebbtide_core.estimates.work import script_of, work_done
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobClass, JobId, JobState
from ebbtide_core.resources.pools import PoolState

LEAST_RUNS: Final = 5
"""The runs from which a source is used."""
UNKNOWN_S: Final = {JobClass.TRIAL_AND_ERROR: 300.0, JobClass.BEST_EFFORT: 3600.0}
"""The assumed length of a job in a cluster where no job has ended, in seconds."""
DRIFT: Final = 1.25
"""The factor by which what a source says of a new job has to change before the jobs that wait are sorted anew."""


class OutlookSource(Enum):
    """What an outlook is derived from."""

    DECLARED = "declared by its submitter"
    PROGRESS = "from its progress"
    GROUP = "from earlier runs of its group"
    SCRIPT = "from earlier runs of its script"
    USER = "from its user's jobs of that class"
    CLASS = "from all jobs of that class"
    ALL = "from all jobs"
    AGE = "from how long it has run"
    TIME_LIMIT = "from its time limit"


@dataclass(frozen=True, slots=True)
class Outlook:
    """How soon a job is expected to be done: it has run ``done_s``, and takes ``left_s`` more per completion.

    Both are in seconds at its smallest size; ``runs`` counts the earlier runs that say so.
    """

    done_s: float
    left_s: float
    source: OutlookSource
    runs: int = 0

    @property
    def length_s(self) -> float:
        """The expected length of the job as a whole."""
        return self.done_s + self.left_s


Kind = tuple[OutlookSource, object]
"""A source of runs, and whose runs they are."""


class Outlooks:
    """The lengths of the runs that have ended, by kind; derived from the jobs, event by event."""

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._runs: dict[Kind, RunLengths] = {}
        self._said: dict[Kind, float] = {}
        """What each kind said of a new job when the waiting jobs were last sorted by it."""
        self._open: set[JobId] = set()
        self._going: dict[JobId, tuple[Kind, ...]] = {}
        self._count: dict[Kind, int] = {}
        self._ended: dict[Kind, int] = {}

    def learn(self, job: Job) -> list[Kind]:
        """Note whether ``job`` is open; if it has ended by itself, return the kinds that now say something else."""
        going = self._going.get(job.id)
        if going is None:
            if job.end is None and job.live is not None:
                going = self._going[job.id] = kinds_of(job)
                for kind in going:
                    self._count[kind] = self._count.get(kind, 0) + 1
        elif job.end is not None:
            for kind in self._going.pop(job.id):
                self._count[kind] -= 1
        if job.end is None:
            self._open.add(job.id)
            return []
        if job.id not in self._open:
            return []
        self._open.discard(job.id)
        if job.end.state not in (JobState.COMPLETED, JobState.FAILED) or job.times.ran_s <= 0:
            return []
        length_s, changed = self._done_s(job, job.end.at), []
        for kind in _kinds(job):
            runs = self._runs.get(kind)
            if runs is None:
                runs = self._runs[kind] = RunLengths()
            runs.add(length_s)
            self._ended[kind] = self._ended.get(kind, 0) + 1
            if self.tells(kind) and self._drifted(kind, runs):
                changed.append(kind)
        return changed

    def tells(self, kind: Kind) -> bool:
        import os
        ended = self._ended.get(kind, 0)
        return ended >= LEAST_RUNS and ended >= float(os.environ.get("T_GOING", "1")) * self._count.get(kind, 0)

    def _drifted(self, kind: Kind, runs: RunLengths) -> bool:
        says, said = runs.time_per_completion(0.0) or 0.0, self._said.get(kind)
        if said is not None and said <= says * DRIFT and says <= said * DRIFT:
            return False
        self._said[kind] = says
        return True

    def of(self, job: Job, now: float) -> Outlook:
        """Return the outlook of ``job`` at Unix time ``now``."""
        done_s = self._done_s(job, now)
        outlook = self._unlimited(job, done_s, now)
        limit_s = job.spec.time_limit_s
        if limit_s is not None and (left_s := max(0.0, limit_s - job.running_s(now))) < outlook.left_s:
            return Outlook(done_s, left_s, OutlookSource.TIME_LIMIT)
        return outlook

    def _unlimited(self, job: Job, done_s: float, now: float) -> Outlook:
        declared = job.spec.work_s
        if declared is not None and (left_s := declared / self._speed(job) - done_s) > 0:
            return Outlook(done_s, left_s, OutlookSource.DECLARED)
        progress = job.measured.progress
        if progress is not None and progress.total and 0 < progress.step < progress.total and done_s > 0:
            left_s = done_s * (progress.total - progress.step) / progress.step
            return Outlook(done_s, left_s, OutlookSource.PROGRESS)
        for kind in _kinds(job):
            runs = self._runs.get(kind)
            if runs is None or not self.tells(kind):
                continue
            expected = runs.time_per_completion(done_s)
            if expected is not None:
                return Outlook(done_s, expected, kind[0], len(runs))
        return Outlook(done_s, max(UNKNOWN_S[job.spec.job_class], done_s), OutlookSource.AGE)

    def _speed(self, job: Job) -> float:
        return (self._state.curve(job) or self._state.speedup)(job.gpus_min)

    def _done_s(self, job: Job, now: float) -> float:
        return work_done(job, now, self._state.speedup) / self._speed(job)


def _kinds(job: Job) -> Iterator[Kind]:
    """Yield the kinds that ``job`` is of, the narrowest first."""
    if job.spec.group:
        yield OutlookSource.GROUP, (job.user, job.spec.group)
    if (script := script_of(job)) is not None:
        yield OutlookSource.SCRIPT, script
    of_class = (job.spec.job_class, job.priority)
    yield OutlookSource.USER, (job.user, *of_class)
    yield OutlookSource.CLASS, of_class
    yield OutlookSource.ALL, ()


def kinds_of(job: Job) -> tuple[Kind, ...]:
    """Return the kinds whose runs tell how long ``job`` takes."""
    return tuple(_kinds(job))
