"""What a job needs of a GPU's memory: what its script used before, and more once that was not enough.

Who names no ``--gpu-mem`` and asks for a share of a GPU is given what the last runs of its script used, and a tenth
more. Who uses more than it was given has to go on elsewhere, with as much as it showed that it needs; who ran out of
memory beside others is run once more with a GPU of its own. docs/policies.md ("GPU memory") has it in words.
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
"""Runs of a script whose peaks count."""
TELLING_S: Final = 5.0
"""A run that computed for less was looked at once or twice, perhaps before it had all that it needed."""
STEP: Final = 256 * MIB
"""Requests that are made from peaks are whole multiples of this."""


def request_for(used_bytes: int) -> int:
    """How much to ask for a job that used so much: a tenth more, rounded up to `STEP`."""
    return -(-used_bytes * 11 // (10 * STEP)) * STEP


def gib(size: int) -> str:
    """A size in words, to a tenth of a GiB: ``9.1 GiB``, ``6 GiB``."""
    return f"{round(size / 2**30, 1):g} GiB"


# --- what a script used before ---


def learned(state: ClusterState, job: Job) -> e.GpuMemoryChanged | None:
    """What a new job is given instead of its share of a GPU's memory; None if it asks for itself, or nothing tells."""
    script = script_of(job)
    peaks = state.peaks.get(script) if script else None
    if not peaks or job.gpu_mem_bytes or not 0 < job.gpus_min < WHOLE:
        return None
    runs = "its last run" if len(peaks) == 1 else f"its last {len(peaks)} runs"
    needed = _most_of_one(state, job, request_for(max(peaks)))
    return e.GpuMemoryChanged(job.id, needed, job.gpus_min, job.gpus_max, f"from {runs}")


def remember(state: ClusterState, job: Job, ending: JobState) -> None:
    """The job, whose peak is known, is over."""
    if (script := script_of(job)) is not None:
        remember_peak(state, script, job.gpu_mem_peak_bytes, whole=tells(job, ending))


def tells(job: Job, ending: JobState) -> bool:
    """Whether the peak of ``job`` is all that its script needs."""
    return ending is JobState.COMPLETED and job.ran_s >= TELLING_S


def remember_peak(state: ClusterState, script: Script, peak: int, *, whole: bool) -> None:
    """A run of ``script`` is over; one that does not tell the ``whole`` only shows if more is needed."""
    known = state.peaks
    if whole or peak > max(known.get(script, ()), default=peak):
        known.setdefault(script, deque(maxlen=RUNS)).append(peak)


# --- more than it was given ---


def _is_first_overrun(state: ClusterState, event: e.MemoryOverran) -> bool:
    """An attempt that has the whole GPU takes nothing from others; one that is to stop has heard of it."""
    attempt = state.newest(event.job, event.attempt)
    if attempt is None or attempt.overran or attempt.stop is not None or attempt.exited is not None:
        return False
    return attempt.allocation.share < WHOLE and event.gpu in attempt.allocation.gpu_ids


def _overran(state: ClusterState, job: Job, event: e.MemoryOverran, now: float) -> None:
    """Its newest attempt uses more than it was given."""
    job.attempts[-1].overran = True
    job.overruns += 1


def _decide_overrun(state: ClusterState, event: e.MemoryOverran) -> Iterator[Event]:
    """An attempt that uses more than it was given leaves; its job goes on with more, if it can be suspended."""
    job, why = state.jobs[event.job], _why_overran(event)
    if not job.preemptible:
        yield stop(job, StopCause.EXPELLED, why)
        return
    change = _after_overrun(state, job, event)
    yield change
    goes_on = "a GPU of its own" if change.gpus_min >= WHOLE else gib(change.mem_bytes)
    yield stop(job, StopCause.OVERRAN, f"{why}; it goes on with {goes_on}")


def _why_overran(event: e.MemoryOverran) -> str:
    """What an attempt did, in words."""
    return f"uses {gib(event.used_bytes)} of GPU memory, {gib(event.allowed_bytes)} were given to it"


def _after_overrun(state: ClusterState, job: Job, event: e.MemoryOverran) -> e.GpuMemoryChanged:
    """What the job needs from now on.

    It gets a GPU of its own if no GPU has room for that beside others, if it has overrun before, or if it cannot go
    to any other GPU (it is swapped). On a whole GPU nobody is overrun.
    """
    needed = request_for(event.used_bytes)
    alone = needed >= _largest(state, job) or job.overruns > 1 or job.spec.suspend is SuspendMode.SWAP
    reason = f"it used {gib(event.used_bytes)} in attempt {event.attempt}"
    return _change_to(state, job, needed, reason, alone)


# --- out of memory ---


def read_end(job: Job, attempt: Attempt, exit: ExitFacts, outcome: Outcome) -> Outcome:
    """Fold: take note of the peak of an attempt that ended, and say what it means if it ran out of GPU memory."""
    share = attempt.allocation.share
    if exit.gpu_mem_peak_bytes is not None and share <= WHOLE:
        job.gpu_mem_peak_bytes = max(job.gpu_mem_peak_bytes, exit.gpu_mem_peak_bytes)
    if not exit.out_of_memory or outcome.ending is not Ending.FAILED or not share:
        return outcome
    what = f"out of GPU memory ({gib(_given(attempt))})"
    if share >= WHOLE or job.alone_after or outcome.final:
        return Outcome(Ending.FAILED, what, final=outcome.final)
    job.alone_after = attempt.number
    return Outcome(Ending.REQUEUED, f"{what}; it is run again, this once, with a GPU of its own")


def after_end(state: ClusterState, job: Job, attempt: Attempt) -> e.GpuMemoryChanged | None:
    """What the job needs from now on, if it is to be run again because it ran out of memory."""
    if job.alone_after != attempt.number or job.ending is not None:
        return None
    given = _given(attempt)
    peak = attempt.exit.gpu_mem_peak_bytes if attempt.exit is not None else None
    reason = f"it ran out of {gib(given)} in attempt {attempt.number}"
    return _change_to(state, job, request_for(max(given, peak or 0)), reason, alone=True)


# --- what both lead to ---


def _may_need_other_memory(state: ClusterState, event: e.GpuMemoryChanged) -> bool:
    job = state.jobs.get(event.job)
    return job is not None and job.ending is None


def _change(state: ClusterState, job: Job, event: e.GpuMemoryChanged, now: float) -> None:
    """The job needs another amount of GPU memory, and perhaps another number of GPUs."""
    if job.claiming:
        state.unplan(job)
    if job.queued is not None:  # the queue groups by what is needed
        state.pools[job.pool].queue.remove(job.queued, job)
        job.queued = None
    if (job.gpus_min, job.gpus_max) != (event.gpus_min, event.gpus_max):
        job.gpus_min, job.gpus_max, job.range_changed = event.gpus_min, event.gpus_max, True
        if job.admission is not None:
            job.admission.ask(event.gpus_max)
    job.gpu_mem_bytes, job.gpu_mem_from = event.mem_bytes, event.reason


def widen(state: ClusterState, job: Job, attempt: Attempt) -> None:
    """Fold: a swapped attempt, which left its GPU because it overran it, comes back to all of that GPU only."""
    [piece] = attempt.allocation.nodes
    gpus = state.nodes[piece.node].gpus
    slices = tuple(GpuSlice(held.gpu, WHOLE, gpus[held.gpu].mem_bytes) for held in piece.gpus)
    attempt.allocation = job.pinned_allocation = Allocation((replace(piece, gpus=slices),))


def _change_to(state: ClusterState, job: Job, needed: int, reason: str, alone: bool) -> e.GpuMemoryChanged:
    low, high = (max(job.gpus_min, WHOLE), max(job.gpus_max, WHOLE)) if alone else (job.gpus_min, job.gpus_max)
    return e.GpuMemoryChanged(job.id, _most_of_one(state, job, max(needed, job.gpu_mem_bytes)), low, high, reason)


def _most_of_one(state: ClusterState, job: Job, needed: int) -> int:
    """``needed``, or what the largest GPU that it can get has if that is less: nobody can have more."""
    return min(needed, _largest(state, job) or needed)


def _largest(state: ClusterState, job: Job) -> int:
    """The memory of the largest GPU of its pool."""
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
