"""The fact that a job left when it was asked to, and that not all of its work is known to be saved."""

from ebbtide_core.events.base import Event
from ebbtide_core.model.frozen import frozen
from ebbtide_core.model.types import Checkpointed, JobId


@frozen
class WorkUnsaved(Event):
    """The attempt left when it was asked to, and ``lost`` says what will be repeated, or may be; empty: nobody knows.

    ``checkpointed`` says whether it saved, and ``hint`` what may help it to next time; empty: nothing is known.
    """

    job: JobId
    attempt: int
    checkpointed: Checkpointed
    lost: str
    hint: str = ""
