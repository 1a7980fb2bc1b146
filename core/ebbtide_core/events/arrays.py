"""Events of arrays, of dependencies, and of jobs that go back to the queue."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import JobId


@frozen
class RequeueRequested(Event):
    """A user wants the running job to step aside and to go back to the queue."""

    job: JobId


@frozen
class JobRequeued(Event):
    """The job, which is over, was submitted again, as ``again_as``."""

    job: JobId
    again_as: JobId


@frozen
class DependencyFailed(Event):
    """The job can never start: what it depends on ended otherwise. It is given up."""

    job: JobId
    reason: str


@frozen
class ArrayChanged(Event):
    """A user gave the array other limits: jobs, and parts of GPUs, at a time; 0 is none. The old are for its story."""

    job: JobId
    max_concurrent: int
    max_slots: int
    old_concurrent: int
    old_slots: int
    user: str = ""
