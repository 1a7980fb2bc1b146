"""Decides how much GPU memory a job is given: what its script used before, and more once that was not enough.

A job that asks for a share of a GPU without ``--gpu-mem`` is given what the last runs of its script used, and a tenth
more. A job that uses more than it was given has to go on elsewhere, with as much as it showed that it needs. A job that
ran out of memory beside others is run once more with a GPU of its own. docs/explanation/policies/gpu-memory.md explains
this.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from ebbtide_core import events as e
from ebbtide_core.estimates.work import Script, script_of
from ebbtide_core.events import Event
from ebbtide_core.job.job import Attempt, Job
from ebbtide_core.job.outcome import Ending, Outcome
from ebbtide_core.model.limits import MIB
from ebbtide_core.model.types import WHOLE, Allocation, ExitFacts, GpuSlice, JobState, StopCause, SuspendMode
from ebbtide_core.reconcile import stop
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState

RUNS: Final = 5
"""Number of runs of a script whose peaks count."""
TELLING_S: Final = 5.0
"""Seconds that a run must compute for its peak to count as all that its script needs. A shorter run was sampled once or
twice, perhaps before it had all of its memory."""
STEP: Final = 256 * MIB
"""Bytes. Requests that are made from peaks are whole multiples of this."""


def request_for(used_bytes: int) -> int:
    """Return the bytes to ask for when a job used ``used_bytes``: a tenth more, rounded up to `STEP`."""
    return -(-used_bytes * 11 // (10 * STEP)) * STEP


def gib(size: int) -> str:
    """Return a size in words, to a tenth of a GiB: ``9.1 GiB``, ``6 GiB``."""
    return f"{round(size / 2**30, 1):g} GiB"


# --- what a script used before ---


def learned_request(state: ClusterState, job: Job) -> e.GpuMemoryChanged | None:
    """Return the memory that a new job is given instead of its share of a GPU's memory.

    None if the job names an amount itself, or no run of its script was measured.
    """
    script = script_of(job)
    peaks = state.peaks.get(script) if script else None
    if not peaks or job.gpu_memory.requested_bytes or not 0 < job.gpus_min < WHOLE:
        return None
    runs = "its last run" if len(peaks) == 1 else f"its last {len(peaks)} runs"
    needed = _most_of_one(state, job, request_for(max(peaks)))
    return e.GpuMemoryChanged(job.id, needed, job.gpus_min, _most_asked(job), f"from {runs}")


def remember(state: ClusterState, job: Job, ending: JobState) -> None:
    """Remember the peak of ``job``, which is over, for its script."""
    if (script := script_of(job)) is not None:
        remember_peak(state, script, job.gpu_memory.peak_bytes, whole=tells(job, ending))


def tells(job: Job, ending: JobState) -> bool:
    """Return whether the peak of ``job`` is all that its script needs."""
    return ending is JobState.COMPLETED and job.times.ran_s >= TELLING_S


def remember_peak(state: ClusterState, script: Script, peak: int, *, whole: bool) -> None:
    """Remember the ``peak`` bytes of a run that is over; if it was not ``whole``, only if it exceeds the known
    peaks."""
    known = state.peaks
    if whole or peak > max(known.get(script, ()), default=peak):
        known.setdefault(script, deque(maxlen=RUNS)).append(peak)


# --- more than it was given ---


def _is_first_overrun(state: ClusterState, event: e.MemoryOverran) -> bool:
    """Return whether the overrun is news: an attempt with whole GPUs takes nothing from others, and a stopped one
    leaves."""
    attempt = state.newest(event.job, event.attempt)
    if attempt is None or attempt.overran or attempt.stop is not None or attempt.end is not None:
        return False
    return attempt.allocation.share < WHOLE and event.gpu in attempt.allocation.gpu_ids


def _overran(state: ClusterState, job: Job, event: e.MemoryOverran, now: float) -> None:
    job.attempts[-1].overran = True
    job.gpu_memory = replace(job.gpu_memory, overruns=job.gpu_memory.overruns + 1)


def _decide_overrun(state: ClusterState, event: e.MemoryOverran) -> Iterator[Event]:
    """Stop the attempt that uses more than it was given; if its job can be suspended, it goes on with more."""
    job, why = state.jobs[event.job], _why_overran(event)
    if not job.preemptible:
        yield stop(job, StopCause.EXPELLED, why)
        return
    change = _after_overrun(state, job, event)
    yield change
    goes_on = "a GPU of its own" if change.gpus_min >= WHOLE else gib(change.mem_bytes)
    yield stop(job, StopCause.OVERRAN, f"{why}; it resumes with {goes_on}")


def _why_overran(event: e.MemoryOverran) -> str:
    return f"uses {gib(event.used_bytes)} of GPU memory, {gib(event.allowed_bytes)} were given to it"


def _after_overrun(state: ClusterState, job: Job, event: e.MemoryOverran) -> e.GpuMemoryChanged:
    """Return what the job needs from now on.

    The job gets a GPU of its own if no GPU has room for that much beside others, if the job has overrun before, or if
    it is swapped and so cannot go to any other GPU. An attempt on a whole GPU cannot overrun.
    """
    needed = request_for(event.used_bytes)
    alone = needed >= _largest(state, job) or job.gpu_memory.overruns > 1 or job.spec.suspend is SuspendMode.SWAP
    reason = f"it used {gib(event.used_bytes)} in attempt {event.attempt}"
    return _change_to(state, job, needed, reason, alone)


# --- out of memory ---


def read_end(job: Job, attempt: Attempt, exit: ExitFacts, outcome: Outcome) -> Outcome:
    """Fold: note the memory peak of an attempt that ended; return what its end means if it ran out of GPU memory."""
    share = attempt.allocation.share
    if exit.gpu_mem_peak_bytes is not None and exit.gpu_mem_peak_bytes > job.gpu_memory.peak_bytes and share <= WHOLE:
        job.gpu_memory = replace(job.gpu_memory, peak_bytes=exit.gpu_mem_peak_bytes)
    if not exit.out_of_memory or outcome.ending is not Ending.FAILED or not share:
        return outcome
    what = f"out of GPU memory ({gib(_given(attempt))})"
    if share >= WHOLE or job.gpu_memory.alone_after or outcome.final:
        return Outcome(Ending.FAILED, what, final=outcome.final)
    job.gpu_memory = replace(job.gpu_memory, alone_after=attempt.number)
    return Outcome(Ending.REQUEUED, f"{what}; it is run again, this once, with a GPU of its own")


def after_end(state: ClusterState, job: Job, attempt: Attempt) -> e.GpuMemoryChanged | None:
    """Return what the job needs from now on if it is run again because it ran out of memory; else None."""
    if job.gpu_memory.alone_after != attempt.number or job.end is not None:
        return None
    given = _given(attempt)
    exit = attempt.end.exit if attempt.end is not None else None
    peak = exit.gpu_mem_peak_bytes if exit is not None else None
    reason = f"it ran out of {gib(given)} in attempt {attempt.number}"
    return _change_to(state, job, request_for(max(given, peak or 0)), reason, alone=True)


# --- what both lead to ---


def _may_need_other_memory(state: ClusterState, event: e.GpuMemoryChanged) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and job.end is None


def _change(state: ClusterState, job: Job, event: e.GpuMemoryChanged, now: float) -> None:
    """Give the job another amount of GPU memory, and a GPU of its own if it needs that.

    Otherwise its range stays: as the largest size, older versions wrote what an array or a quota left the job then.
    """
    if job.claiming:
        state.unplan(job)
    state.leave_queue(job)  # because the queue groups jobs by their demand
    if job.gpus_min != event.gpus_min:
        job.gpus_min, job.gpus_max, job.range_changed = event.gpus_min, event.gpus_max, True
        if job.admission is not None:
            job.admission.ask(event.gpus_max)
    job.gpu_memory = replace(job.gpu_memory, requested_bytes=event.mem_bytes, changed_because=event.reason)


def widen(state: ClusterState, attempt: Attempt) -> None:
    """Fold: give a swapped attempt that overran its GPU the whole of that GPU, because it can come back to no other."""
    [piece] = attempt.allocation.nodes
    gpus = state.nodes[piece.node].gpus
    slices = tuple(GpuSlice(held.gpu, WHOLE, gpus[held.gpu].mem_bytes) for held in piece.gpus)
    attempt.allocation = Allocation((replace(piece, gpus=slices),))


def _change_to(state: ClusterState, job: Job, needed: int, reason: str, alone: bool) -> e.GpuMemoryChanged:
    least = WHOLE if alone else 0
    needed = _most_of_one(state, job, max(needed, job.gpu_memory.requested_bytes))
    return e.GpuMemoryChanged(job.id, needed, max(job.gpus_min, least), max(_most_asked(job), least), reason)


def _most_asked(job: Job) -> int:
    """Return how many parts of GPUs the job may have at most, whatever its array or its user's quota leaves it."""
    return job.gpus_max if job.admission is None else job.admission.asked


def _most_of_one(state: ClusterState, job: Job, needed: int) -> int:
    """Return ``needed``, or the memory of the largest GPU in the job's pool if that is less."""
    return min(needed, _largest(state, job) or needed)


def _largest(state: ClusterState, job: Job) -> int:
    return state.pools[job.pool].books.most.gpu_mem_bytes


def _given(attempt: Attempt) -> int:
    return max((piece.mem_bytes for node in attempt.allocation for piece in node.gpus), default=0)


# --- in words ---


def _say_changed(event: e.GpuMemoryChanged) -> str:
    alone = " and a GPU of its own" if event.gpus_min >= WHOLE else ""
    return f"needs {gib(event.mem_bytes)} of GPU memory{alone}: {event.reason}"


RULES: Final = (
    Rule(
        e.MemoryOverran,
        news=_is_first_overrun,
        apply=about_job(_overran),
        decide=_decide_overrun,
        say=lambda event: f"attempt {event.attempt} {_why_overran(event)} (GPU {event.gpu})",
    ),
    Rule(
        e.GpuMemoryChanged,
        news=_may_need_other_memory,
        apply=about_job(_change),
        say=_say_changed,
    ),
)
