"""Estimates how soon a job is expected to be done, from what a live cluster can know.

An `Outlook` is in seconds at the job's `working_size`: how long it has run, and its time per completion from now on
(see `ebbtide_core.estimates.gittins`), which is the time that is left if that is known. It comes from the first of
these sources that knows something: the declared work; the reported progress; the lengths of earlier runs of its group,
of its script, of its user's jobs of that class, and of all jobs of that class; the class itself (`UNKNOWN_S`). The
class is that of the job together with its priority. A job that has outlived one source is judged by the next, so a
wrong declaration helps only until it has shown to be wrong. A job that has outlived its class is judged by all jobs,
and one that has outlived these, too, is expected to run as long again as it has. A time limit bounds what any source
says.

A source of runs counts once at least as many of its runs have ended as go on, because the first ones that end are the
short ones. A group, whose runs are alike, counts once two have ended.
"""

from enum import Enum
from typing import Final, NamedTuple, Protocol

from ebbtide_core.estimates.gittins import RunLengths
from ebbtide_core.estimates.sharing import working_size
from ebbtide_core.estimates.work import Speedup, script_of, work_done
from ebbtide_core.events.words import duration
from ebbtide_core.job.job import Job
from ebbtide_core.model.native import mypyc_attr
from ebbtide_core.model.types import JobClass, JobId, JobState

UNKNOWN_S: Final = {JobClass.TRIAL_AND_ERROR: 300.0, JobClass.BEST_EFFORT: 3600.0}
"""The assumed length of a job, in seconds, where nothing else is known."""
DRIFT: Final = 1.25
"""The factor by which the outlook of new jobs of a kind has to change before the waiting ones are sorted anew."""


class OutlookSource(Enum):
    """The source of an outlook."""

    DECLARED = "declared by its submitter"
    PROGRESS = "from its progress"
    GROUP = "from earlier runs of its group"
    SCRIPT = "from earlier runs of its script"
    USER = "from its user's earlier jobs of that class"
    CLASS = "from earlier jobs of that class"
    ALL = "from all earlier jobs"
    AGE = "assumed by its class and how long it has run"
    TIME_LIMIT = "from its time limit"


class Outlook(NamedTuple):
    """How long a job has run, and its time per completion from now on, both in seconds at its `working_size`."""

    done_s: float
    left_s: float
    source: OutlookSource

    @property
    def length_s(self) -> float:
        """How long the job is expected to run in all, at least a second."""
        return max(1.0, self.done_s + self.left_s)

    def __str__(self) -> str:
        """Return the outlook in words."""
        return f"done in about {duration(self.left_s)}, {self.source.value}"


Kind = tuple[OutlookSource, object]
"""Runs that tell something of each other: the source that they are, and whose runs."""


class SpeedCurves(Protocol):
    """What is known of the speed of jobs by their share of GPUs: ``speedup`` where nothing was measured."""

    speedup: Speedup

    def curve(self, job: Job) -> Speedup | None:
        """Return the speed of ``job`` if it was measured, else None."""
        ...


@mypyc_attr(allow_interpreted_subclasses=True)
class Outlooks:
    """What the jobs of one pool tell of each other; derived from the jobs, event by event."""

    def __init__(self, speeds: SpeedCurves) -> None:
        self._speeds = speeds
        self._runs: dict[Kind, RunLengths] = {}
        self._said: dict[Kind, float] = {}
        """The outlook of a new job of each kind when the waiting jobs were last sorted by it."""
        self._going: dict[JobId, list[tuple[Kind, RunLengths]]] = {}
        """The kinds of each job that has started, and the runs of each."""

    def learn(self, job: Job) -> list[Kind]:
        """Take in that ``job`` changed; return the kinds whose new jobs now have another outlook."""
        known = self._going.get(job.id)
        if known is None:
            if job.end is None and job.live is not None:
                self._going[job.id] = known = [(kind, self._runs_of(kind)) for kind in kinds_of(job)]
                for _, runs in known:
                    runs.going += 1
            return []
        if job.end is None:
            return []
        del self._going[job.id]
        for _, runs in known:
            runs.going -= 1
        if job.end.state not in (JobState.COMPLETED, JobState.FAILED) or job.times.ran_s <= 0:
            return []
        length_s = self._done_s(job, job.end.at)
        for _, runs in known:
            runs.add(length_s)
        return [kind for kind, runs in known if self._has_drifted(kind, runs)]

    def _runs_of(self, kind: Kind) -> RunLengths:
        runs = self._runs.get(kind)
        if runs is None:
            runs = self._runs[kind] = RunLengths(alike=kind[0] is OutlookSource.GROUP)
        return runs

    def of(self, job: Job, now: float) -> Outlook:
        """Return the outlook of ``job`` at Unix time ``now``."""
        done_s = self._done_s(job, now)
        outlook = self._unlimited(job, done_s)
        if (limit_s := job.spec.time_limit_s) is None:
            return outlook
        left_s = max(0.0, limit_s - job.running_s(now))
        return Outlook(done_s, left_s, OutlookSource.TIME_LIMIT) if left_s < outlook.left_s else outlook

    def _unlimited(self, job: Job, done_s: float) -> Outlook:
        declared, progress = job.spec.work_s, job.measured.counted
        if declared is not None and (left_s := declared / self._speed(job) - done_s) > 0:
            return Outlook(done_s, left_s, OutlookSource.DECLARED)
        if progress is not None and progress.total and progress.step < progress.total:
            a_step = job.measured.work_of_a_step(done_s * self._speed(job))
            if a_step is not None:
                left_s = a_step * (progress.total - progress.step) / self._speed(job)
                return Outlook(done_s, left_s, OutlookSource.PROGRESS)
        assumed_s = UNKNOWN_S[job.spec.job_class]
        outlived, known = done_s >= assumed_s, self._going.get(job.id)
        if known is None:
            known = [(kind, runs) for kind in kinds_of(job) if (runs := self._runs.get(kind)) is not None]
        for (source, _), runs in known:
            if not runs.tells or (source is OutlookSource.ALL and not outlived):
                continue
            if (expected_s := runs.time_per_completion(done_s)) is not None:
                return Outlook(done_s, expected_s, source)
            outlived = True
        return Outlook(done_s, max(assumed_s, done_s), OutlookSource.AGE)

    def _has_drifted(self, kind: Kind, runs: RunLengths) -> bool:
        said = self._said.get(kind)
        if not runs.tells or (says := runs.time_per_completion(0.0)) is None:
            return False
        if said is not None and says <= said * DRIFT and said <= says * DRIFT:
            return False
        self._said[kind] = says
        return True

    def _done_s(self, job: Job, now: float) -> float:
        return work_done(job, now, self._speeds.speedup) / self._speed(job)

    def _speed(self, job: Job) -> float:
        speed = self._speeds.curve(job) or self._speeds.speedup
        return speed(working_size(job, speed))


def kinds_of(job: Job) -> tuple[Kind, ...]:
    """Return the kinds that ``job`` is of, the narrowest first."""
    of_class = (job.spec.job_class, job.priority)
    kinds: list[Kind] = [
        (OutlookSource.USER, (job.user, *of_class)),
        (OutlookSource.CLASS, of_class),
        (OutlookSource.ALL, None),
    ]
    if (script := script_of(job)) is not None:
        kinds.insert(0, (OutlookSource.SCRIPT, script))
    if job.spec.group:
        kinds.insert(0, (OutlookSource.GROUP, (job.user, job.spec.group)))
    return tuple(kinds)
