"""Breaks down the time from the request to suspend a job to its first step after it is resumed."""

from typing import Final

from ebbtide_core.job.job import Job, Suspension

PARTS: Final = ("save", "exit", "free", "queue", "start", "import", "load", "first_step")
"""The parts of that time, in order."""


def parts_of(job: Job, suspension: Suspension) -> dict[str, float]:
    """Return the seconds of each part, as far as they are known.

    ``save``: from the request to the job's checkpoint. ``exit``: until its last process ended. ``free``: until its
    GPUs' memory was released. ``queue``: until the job was placed again. ``start``: until its process was seen to run.
    ``import``: until the script asked for its job. ``load``: until the script had the checkpoint. ``first_step``: until
    it reported a step. A job that was swapped has only the parts that it went through.
    """
    moments = [("free", suspension.exited, suspension.gpu_free)]
    attempt = job.attempts[suspension.resumed_by - 1] if suspension.resumed_by else None
    if suspension.exited is not None:
        moments.insert(0, ("exit", suspension.requested + (suspension.checkpoint_s or 0.0), suspension.exited))
    if attempt is not None and not attempt.swaps:
        moments += [("queue", suspension.gpu_free, attempt.placed), ("start", attempt.placed, attempt.first_started)]
    found = {part: max(0.0, end - begin) for part, begin, end in moments if begin is not None and end is not None}
    if suspension.checkpoint_s is not None:
        found = {"save": suspension.checkpoint_s, **found}
    if attempt is not None and attempt.start is not None and not attempt.swaps:
        start = attempt.start
        found |= {"import": start.import_s, "first_step": start.step_s}
        found |= {} if start.load_s is None else {"load": start.load_s}
    return {part: found[part] for part in PARTS if part in found}
