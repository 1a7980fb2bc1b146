"""For what a job waited, once that is over: words for its story."""

from ebbtide_core.job.job import ITS_TURN, Job


def waited(job: Job) -> str:
    """For what ``job`` has waited until now; empty if no more can be said than that it was not its turn.

    What its policy said comes first, then the gate that held it back, then that it was not to be tried again at once.
    """
    last = job.attempt
    if job.reason is not ITS_TURN and (last is None or job.reason != last.outcome):
        return job.reason
    if job.admission is not None and job.admission.why:
        return job.admission.why
    if last is not None and last.exited is not None and job.not_before > last.exited:
        return f"{last.outcome}; tried again {job.not_before - last.exited:g} s later"
    return ""
