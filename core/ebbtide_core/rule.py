"""Defines `Rule`, which holds everything that the core knows about one type of event.

Each area has a table ``RULES`` for its own events, and `ebbtide_core.dispatch` joins the tables. A type checker sees
each function together with the type of event that it takes.
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
    """The functions that are called for an ``event``, in the order of the fields; None means that nothing is called.

    Only ``apply`` changes the state, and it decides nothing: the state is the fold of ``apply`` over the journal. The
    other functions only read the state; ``command`` and ``decide`` read it after the event was applied.
    """

    event: type[E]
    _: KW_ONLY
    refuse: Callable[[ClusterState, E], Refusal | None] | None = None
    """Returns why a user's request cannot be granted, or None; called before the request becomes an event."""
    news: Callable[[ClusterState, E], bool] | None = None
    """Returns whether an event is news. Events that may come twice, or too late, need this; no news changes nothing."""
    again: Callable[[ClusterState, E], Iterable[Command]] | None = None
    """Returns the commands that follow from an event that is no news."""
    apply: Callable[[ClusterState, E, float], None] | None = None
    """Changes the state by the event, which came at the given Unix time."""
    command: Callable[[ClusterState, E], Iterable[Command]] | None = None
    """Returns the commands that follow from the event."""
    decide: Callable[[ClusterState, E], Iterable[Event]] | None = None
    """Returns the events that follow from the event; each is taken in before the next is asked for."""
    say: Callable[[E], str]
    """Returns one line that says what happened; it does not name the job or node that the event is about."""


def about_job(apply: Callable[[ClusterState, Job, J, float], None]) -> Callable[[ClusterState, J, float], None]:
    """Wrap ``apply`` so that it gets the job, and update the job's story, state and place in the queue."""

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


def change_nothing(state: ClusterState, job: Job, event: JobEvent, now: float) -> None:
    """Change nothing but the job's story; everything else that follows is done by events of its own."""
