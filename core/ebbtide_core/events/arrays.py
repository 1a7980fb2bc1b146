"""Defines the events about arrays, dependencies, and jobs that go back to the queue."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import JobId


@frozen
class RequeueRequested(Event):
    """A user wants the running job to step aside and to go back to the queue.

    With its ``operation_id`` a repeated request finds the job again. ``request`` is a digest of what was asked for.
    """

    job: JobId
    operation_id: str = ""
    request: str = ""


@frozen
class JobRequeued(Event):
    """The job, which is over, was submitted again, as ``again_as``."""

    job: JobId
    again_as: JobId


@frozen
class DependencyFailed(Event):
    """The job is cancelled, because the job or array that it depends on did not end as it should."""

    job: JobId
    reason: str


@frozen
class ArrayChanged(Event):
    """A user gave the array other limits of jobs, and of parts of GPUs, at a time; 0 means no limit.

    ``old_concurrent`` and ``old_slots`` are kept for the array's story.
    """

    job: JobId
    max_concurrent: int
    max_slots: int
    old_concurrent: int
    old_slots: int
    user: str = ""
