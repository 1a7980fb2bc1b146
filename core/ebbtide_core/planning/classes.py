"""Places trial-and-error jobs before best-effort ones, for FitGpp and its baselines (seed 000 §2.1).

Trial-and-error jobs come before all best-effort jobs in the queue, and while one waits, no job grows into what it will
need. A policy of this family only decides how to make room for a trial-and-error job at the cost of best-effort ones.
"""

from collections.abc import Callable
from typing import Final

from ebbtide_core.admission.queues import QueueKey
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobClass
from ebbtide_core.planning.defragment import defragment
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import admit_by_shrinking, fit_ranges, grow
from ebbtide_core.planning.staying import Stay, stays_by_itself
from ebbtide_core.resources.eligibility import holds_up

Preempt = Callable[[Draft, Job], bool]
"""Makes room for a job and places it there; returns False, with nothing changed, if that is impossible."""

_NOT_FOR_BEST_EFFORT: Final = Stay("only trial-and-error jobs preempt others (ebb submit --te)")
_TRIAL_AND_ERROR: Final = Stay("trial-and-error, which is not preempted")


def by_class(job: Job) -> QueueKey:
    """Order trial-and-error jobs first; within a class, preempted jobs first, then by submission."""
    return (job.spec.job_class is JobClass.BEST_EFFORT, not job.next.at_head, job.sequence, job.gpus_min, job.gpus_max)


def best_effort(job: Job) -> bool:
    """Return whether a trial-and-error job may take the place of ``job``."""
    return job.spec.job_class is JobClass.BEST_EFFORT


def admit_in_order(draft: Draft, preempt_for: Preempt, resize_after_s: float, *, moves: bool = False) -> None:
    """Place waiting jobs until one has to wait, trial-and-error jobs by preemption if need be; then grow elastic jobs.

    With ``moves``, other jobs are moved for the first job that would have to wait (see `defragment`).
    """
    fit_ranges(draft)
    turns = draft.snapshot.queue.turns()
    for job in turns:
        trial = not best_effort(job)
        admitted = draft.admit(job) or admit_by_shrinking(draft, job, 0.0 if trial else resize_after_s)
        admitted = admitted or (trial and preempt_for(draft, job))
        if not admitted and not (moves and defragment(draft, job, resize_after_s)):
            draft.wait(job)
            if not holds_up(job, draft.snapshot.books):
                turns.skip_demand()
                continue
            if trial:
                return
            break
    grow(draft, resize_after_s)


def may_be_preempted(draft: Draft, job: Job, min_run_s: float) -> bool:
    """Return whether ``job`` is best-effort and may be preempted now; if only later, request a pass for then."""
    if not best_effort(job) or not job.preemptible or job.id in draft.evictions:
        return False
    return not draft.spared(job, min_run_s)


def stays_in_class(job: Job, waiting: Job, min_run_s: float, now: float) -> Stay | None:
    """Return why ``job`` is not preempted for ``waiting`` under a policy of this family; None if it may be."""
    if best_effort(waiting):
        return _NOT_FOR_BEST_EFFORT
    return stays_by_itself(job, min_run_s, now) if best_effort(job) else _TRIAL_AND_ERROR
