"""Defines the event that a job left when it was asked to, and that not all of its work is known to be saved."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import Checkpointed, JobId


@frozen
class WorkUnsaved(Event):
    """The attempt left when it was asked to, and not all of its work is known to be saved.

    ``checkpointed`` says whether it saved. ``lost`` says which work will be, or may be, repeated, and ``hint`` what may
    help the job to save next time; both are empty if nothing is known.
    """

    job: JobId
    attempt: int
    checkpointed: Checkpointed
    lost: str
    hint: str = ""
