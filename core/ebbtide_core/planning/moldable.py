"""Moldable policies decide how many GPUs a job gets when it starts, and keep that number (seed 001, §IV)."""

from ebbtide_core.job.job import Job
from ebbtide_core.model.types import Allocation
from ebbtide_core.planning.balance import balanced
from ebbtide_core.planning.draft import Draft
from ebbtide_core.planning.elastic import fit_ranges
from ebbtide_core.planning.pool import Arrivals, Divide, supply
from ebbtide_core.planning.resizing import fits_beside
from ebbtide_core.planning.seats import size_at_most, sizes
from ebbtide_core.resources.eligibility import could_run
from ebbtide_core.resources.placing import Trial
from ebbtide_core.snapshot import Plan, Snapshot


def plan_moldable(snapshot: Snapshot, divide: Divide) -> Plan:
    """Plan a pass that divides what is free among the waiting jobs; running jobs keep what they have."""
    draft = Draft(snapshot)
    fit_ranges(draft)
    queue = snapshot.queue
    assert isinstance(queue, Arrivals)
    smallest = queue.smallest(snapshot.books)
    here = supply(draft)
    if smallest >= here.available:
        start_at_smallest(draft, queue)
        return draft.plan()
    start_without_gpus(draft, queue)
    jobs = queue.with_gpus(snapshot.books)
    wanted = divide(draft, jobs, here)
    if wanted is None:
        for job, allocation in balanced(Draft(snapshot), jobs, {}, frozenset()):
            _start(draft, job, allocation)
    for job, share in wanted or ():
        _start(draft, job, find_at_most(draft.trial, job, share))
    return draft.plan()


def _start(draft: Draft, job: Job, allocation: Allocation | None) -> None:
    if allocation is None or not fits_beside(draft.trial, allocation):
        draft.wait(job)
    else:
        draft.place(job, allocation, "starting")


def start_at_smallest(draft: Draft, queue: Arrivals) -> bool:
    """Start each waiting job that fits at its smallest size, in order of arrival.

    Return whether the jobs left out are all larger than the sum of what is free, so that none failed for scattered
    GPUs.
    """
    refused: list[int] = []

    def fits(job: Job) -> bool:
        if draft.admit(job):
            return True
        refused.append(job.gpus_min)
        return False

    queue.first_fit(fits, lambda: most_free(draft))
    head = queue.head()  # wording the reason for every waiting job would cost more than the pass
    if head is not None and head.id not in draft.placements:
        draft.wait(head)
    return not refused or min(refused) > supply(draft).available


def start_without_gpus(draft: Draft, queue: Arrivals) -> None:
    """Start jobs without GPUs, and record why jobs wait that could not run even on an idle cluster."""
    queue.first_fit(draft.admit, lambda: 0)
    for job, _ in queue.kinds():
        if not could_run(job, draft.snapshot.books):
            draft.wait(job)


def most_free(draft: Draft) -> int:
    """Return the greatest share that may be free, in parts."""
    return draft.trial.most


def find_at_most(trial: Trial, job: Job, share: int) -> Allocation | None:
    """Return room for the greatest size of ``job`` that fits, at most ``share`` parts; None if none fits."""
    best = trial.find(job, size_at_most(job, share))
    if best is not None:
        return best
    smaller = [size for size in sizes(job.gpus_min, job.gpus_max) if size < size_at_most(job, share)]
    low, high = 0, len(smaller)
    while low < high:  # if a size does not fit, no larger one does
        middle = (low + high) // 2
        found = trial.find(job, smaller[middle])
        if found is None:
            high = middle
        else:
            best, low = found, middle + 1
    return best
