"""Ends sessions that no user has used for too long; their node reports since when.

The node decides what counts as use: bytes through a channel, or a busy CPU or GPU. The event is in the journal, so the
warning is part of the job's story and survives the master.
"""

from collections.abc import Iterator
from typing import Final

from ebbtide_core.events import Event, SessionUnused
from ebbtide_core.events.words import duration
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import StopCause
from ebbtide_core.reconcile import stop
from ebbtide_core.rule import Rule, about_job
from ebbtide_core.state import ClusterState


def _is_news(state: ClusterState, event: SessionUnused) -> bool:
    """Return whether the attempt runs, and the event tells something new about it."""
    job = state.jobs.get(event.job)
    attempt = job.live if job is not None else None
    if attempt is None or attempt.number != event.attempt or attempt.stop is not None or attempt.started is None:
        return False
    return attempt.unused_since != event.since or (event.since > 0 and event.left_s <= 0)


def _noted(state: ClusterState, job: Job, event: SessionUnused, now: float) -> None:
    job.attempts[-1].unused_since = event.since
    job.reason = _say(event) if event.since else "running"


def _unused(state: ClusterState, event: SessionUnused) -> Iterator[Event]:
    job = state.jobs[event.job]
    if event.since and event.left_s <= 0 and job.running:
        yield stop(job, StopCause.UNUSED, f"unused for {duration(job.spec.idle_limit_s or 0.0)}")


def _say(event: SessionUnused) -> str:
    if not event.since:
        return "used again"
    return f"unused: ended in {duration(event.left_s)} unless it is used" if event.left_s > 0 else "unused too long"


RULES: Final = (Rule(SessionUnused, news=_is_news, apply=about_job(_noted), decide=_unused, say=_say),)
