"""Says in words what a job waited for, for its story once the wait is over."""

from ebbtide_core.job.job import ITS_TURN, Job


def waited(job: Job) -> str:
    """Return what ``job`` has waited for until now; empty if nothing more is known than that it was not its turn.

    The policy's reason comes first, then the gate that held the job back, then the back-off before a new try.
    """
    last = job.attempt
    end = last.end if last is not None else None
    if job.reason is not ITS_TURN and (end is None or job.reason != end.outcome):
        return job.reason
    if job.admission is not None and job.admission.why:
        return job.admission.why
    if end is not None and job.next.not_before > end.at:
        return f"{end.outcome}; tried again {job.next.not_before - end.at:g} s later"
    return ""
