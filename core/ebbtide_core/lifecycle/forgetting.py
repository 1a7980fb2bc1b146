"""Compacts a journal: decides which ended jobs are forgotten, and which lines replace theirs.

The fold of the remaining lines is the same state without those jobs: the ids, the order of the other jobs, what every
node holds, and what is known of scripts stay. A job is forgotten with all its lines, or not at all. A job that lines of
another job name is kept, and so is a task of an array.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.estimates.work import script_of
from ebbtide_core.events import Event
from ebbtide_core.events.codec import Json, encode
from ebbtide_core.job.job import Job
from ebbtide_core.job.meter import MeasuredRate, Setting
from ebbtide_core.measuring import gpu_memory
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import FINISHED, JobId, JobState
from ebbtide_core.rule import Rule
from ebbtide_core.state import ClusterState

ENDS: Final = (e.AttemptExited, e.AttemptRefused, e.CancelRequested, e.DependencyFailed)
"""The events that may end a job."""
ONLY_SAID: Final = frozenset({"job", "for_job"})
"""Fields that name a job without needing it: the event's own job, and the job that gets its room."""


@frozen
class JournalLine:
    """A line of a journal."""

    sequence: int
    time: float
    event: Event


def forgettable(lines: Iterable[JournalLine], state: ClusterState, before: float) -> set[JobId]:
    """Return the forgettable jobs that ended before Unix time ``before``; ``state`` is the fold of ``lines``."""
    gone = {id for id, job in state.jobs.items() if _may_go(job, before) and id not in state.unreadable}
    named: dict[JobId, set[JobId]] = {}
    for line in lines:
        job = JobId(getattr(line.event, "job", ""))
        if isinstance(line.event, e.InterferenceFound) or _leaves_gpus(line.event):
            gone.discard(job)
        named.setdefault(job, set()).update(id for id in _named(line.event) if id in state.jobs)
    kept = [id for id in named if id not in gone]
    while kept:
        found = named.get(kept.pop(), set()) & gone
        gone -= found
        kept += found
    return gone


def rewritten(
    read: Callable[[], Iterable[JournalLine]], gone: set[JobId], jobs: Mapping[JobId, Job]
) -> Iterator[tuple[int, Event | None]]:
    """Yield the lines that change, in order: each sequence number with its new event, or None if the line goes away.

    Each call of ``read`` begins at the first line; ``jobs`` are the jobs that the lines fold to.
    """
    ends: dict[JobId, int] = {}
    for line in read():
        job = JobId(getattr(line.event, "job", ""))
        if job in gone and isinstance(line.event, ENDS) and (end := jobs[job].end) is not None and line.time == end.at:
            ends[job] = line.sequence
    for line in read():
        job = JobId(getattr(line.event, "job", ""))
        if job not in gone:
            continue
        match line.event:
            case e.JobSubmitted():
                yield line.sequence, e.JobsForgotten(1)
            case e.RateMeasured() as rate:
                yield line.sequence, _rate(jobs[job], rate)
            case _:
                yield line.sequence, _run(jobs[job]) if ends.get(job) == line.sequence else None


def _leaves_gpus(event: Event) -> bool:
    return isinstance(event, e.AttemptFreed) and bool(event.dirty_gpus)


def _may_go(job: Job, before: float) -> bool:
    over = job.state in FINISHED and job.end is not None and job.end.at < before
    free = all(attempt.freed is not None for attempt in job.attempts)
    return over and free and job.lineage.task is None and job.lineage.again_as is None


def _named(event: Event) -> Iterator[JobId]:
    """Yield all texts in the event that may be ids of jobs that it needs."""
    texts: list[Json] = [value for name, value in encode(event).items() if name not in ONLY_SAID]
    while texts:
        match texts.pop():
            case str() as text:
                yield JobId(text)
            case dict() as below:
                texts += below.values()
            case list() as below:
                texts += below
            case _:
                pass


def _run(job: Job) -> Event | None:
    script = script_of(job)
    completed = job.state is JobState.COMPLETED
    if script is None or not (completed or job.gpu_memory.peak_bytes):
        return None
    return e.RunForgotten(
        user=script[0],
        script=script[1],
        work_s=job.times.work_s if completed else None,
        ran_s=job.times.ran_s if completed else None,
        peak_bytes=job.gpu_memory.peak_bytes,
        tells=gpu_memory.tells(job, job.state),
    )


def _rate(job: Job, event: e.RateMeasured) -> Event | None:
    if (script := script_of(job)) is None:
        return None
    return e.RateForgotten(
        was=job.id,
        user=script[0],
        script=script[1],
        share=event.share,
        nodes=event.nodes,
        alone=event.alone,
        steps_per_s=event.steps_per_s,
        samples=event.samples,
        model=event.model,
    )


def is_forgotten(state: ClusterState, id: str) -> bool:
    """Return whether there may have been a job with that id that is forgotten."""
    return bool(state.known_since) and id.isdecimal() and int(id) < int(state.gates.next_id(state.submissions))


def unknown_job(state: ClusterState, id: str) -> str:
    """Return in words that there is no job with that id."""
    if id in state.removed:
        return f"job {id} was removed"
    if is_forgotten(state, id):
        return f"job {id} is not known any more: what had ended long ago was forgotten, if there was one"
    return f"job {id} does not exist"


# --- what forgotten jobs leave behind ---


def _fold_jobs(state: ClusterState, event: e.JobsForgotten, now: float) -> None:
    """Keep the ids of the forgotten jobs from being given out again."""
    state.submissions += event.count


def _fold_run(state: ClusterState, event: e.RunForgotten, now: float) -> None:
    script = (event.user, event.script)
    if event.work_s is not None and event.ran_s is not None:
        state.history.add_run(script, event.work_s, event.ran_s)
    if event.peak_bytes:
        gpu_memory.remember_peak(state, script, event.peak_bytes, whole=event.tells)


def _fold_rate(state: ClusterState, event: e.RateForgotten, now: float) -> None:
    setting = Setting(event.share, event.nodes, event.model, event.alone)
    state.rates.add(
        (event.user, event.script), JobId(event.was), setting, MeasuredRate(event.steps_per_s, event.samples)
    )


def _fold_compacted(state: ClusterState, event: e.JournalCompacted, now: float) -> None:
    state.known_since = max(state.known_since, event.before)


RULES: Final = (
    Rule(e.JobsForgotten, apply=_fold_jobs, say=lambda event: "a job that is forgotten"),
    Rule(e.RunForgotten, apply=_fold_run, say=lambda event: "a job that is forgotten"),
    Rule(e.RateForgotten, apply=_fold_rate, say=lambda event: "a job that is forgotten"),
    Rule(
        e.JournalCompacted,
        apply=_fold_compacted,
        say=lambda event: f"{event.count} jobs that ended long ago were forgotten",
    ),
)
