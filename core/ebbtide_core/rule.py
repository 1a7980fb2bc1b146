"""What a rule is: all that the core knows of one kind of event, in one place.

Each area has a table ``RULES`` of the events that are its own, and `ebbtide_core.dispatch` joins them. A type checker
sees every function together with the event that it is given.
"""

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Generic, TypeVar

from ebbtide_core.commands import Command
from ebbtide_core.events import Event, JobEvent
from ebbtide_core.job.job import Job
from ebbtide_core.model import limits
from ebbtide_core.model.refusals import Refusal
from ebbtide_core.state import ClusterState

E = TypeVar("E", bound=Event)
J = TypeVar("J", bound=JobEvent)


@dataclass(frozen=True, slots=True)
class Rule(Generic[E]):
    """What happens when an ``event`` comes, in the order of the fields; what is None does not happen.

    Only ``apply`` changes the state, and it decides nothing: the state is the fold of it over the journal. All others
    only look at the state, ``command`` and ``decide`` as it is once the event was applied.
    """

    event: type[E]
    _: KW_ONLY
    refuse: Callable[[ClusterState, E], Refusal | None] | None = None
    """Why a user's request cannot be granted; asked before the request becomes an event."""
    news: Callable[[ClusterState, E], bool] | None = None
    """Whether an event that may come twice, late, or about what is over is news; what is no news changes nothing."""
    again: Callable[[ClusterState, E], Iterable[Command]] | None = None
    """What the world is asked to do because of an event that is no news."""
    apply: Callable[[ClusterState, E, float], None] | None = None
    """What the event changes, at which Unix time."""
    command: Callable[[ClusterState, E], Iterable[Command]] | None = None
    """What the world is asked to do because of it."""
    decide: Callable[[ClusterState, E], Iterable[Event]] | None = None
    """The events that follow from it; each is taken in before the next is asked for."""
    say: Callable[[E], str]
    """One line that says what the event was; jobs and nodes are named only where it is not about them."""


def about_job(apply: Callable[[ClusterState, Job, J, float], None]) -> Callable[[ClusterState, J, float], None]:
    """Wrap ``apply``, so that it is given the job, and the job's story, state and place in the queue follow."""

    def apply_to_job(state: ClusterState, event: J, now: float) -> None:
        job = state.jobs.get(event.job)
        if job is None:
            return
        if event.durable:
            story = job.story
            story.append((now, event))
            if len(story) > limits.STORY_LENGTH:
                del story[0]
        apply(state, job, event, now)
        state.refresh(job, now)

    return apply_to_job


def only_told(state: ClusterState, job: Job, event: JobEvent, now: float) -> None:
    """Change nothing but the job's story; what follows are events of their own."""
