"""Rebuilds the cluster from the journal, and sets aside the lines that cannot be read."""

import gc
import logging
from collections.abc import Callable
from typing import Final, TypeVar

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster
from ebbtide_core.job.job import InvalidTransitionError
from ebbtide_core.lifecycle import unreadable_jobs
from ebbtide_core.model.types import JobId

from ebbtide_master.store.journal import DamagedLineError, Journal, Store, StoredEvent, StoreError

KEPT: Final = (e.JobSubmitted, e.CancelRequested)
"""Events that are still applied of a job that was set aside."""
T = TypeVar("T")

log = logging.getLogger(__name__)


def recovered(store: Store, attempt: Callable[[], T]) -> T:
    """Return what ``attempt`` makes of the journal; if it finds damaged lines, set them aside and attempt once more."""
    gc.disable()  # every new object is kept, and searching them again and again takes a fifth of the time
    try:
        return attempt()
    except DamagedLineError:
        store.set_damage_aside()
        return attempt()
    finally:
        gc.enable()


def fold(cluster: Cluster, store: Journal, seen: Callable[[StoredEvent], None] | None = None) -> int:
    """Fold the journal into the new ``cluster`` without deciding or ordering anything; return the number of lines.

    ``seen`` is called with each line once it was applied. Raises `DamagedLineError` at a line that is not set aside
    yet, and `StoreError` at a line that does not follow from the lines before it.
    """
    aside, count, now = _reasons(store), 0, 0.0
    for line in store.events():
        count, now = count + 1, line.time
        reason = aside.get(job) if aside and (job := getattr(line.event, "job", None)) else None
        if reason is not None and not isinstance(line.event, KEPT):
            continue
        try:
            cluster.replay(line.event, line.time)
        except (InvalidTransitionError, LookupError) as error:
            what = f"line {line.sequence} of the journal, {type(line.event).__name__}"
            raise StoreError(f"{what}, does not follow from those before it: {error}") from error
        if reason is not None and isinstance(line.event, e.JobSubmitted):
            unreadable_jobs.hold(cluster.state, line.event.job, reason, line.time)
        if seen is not None:
            seen(line)
    _settle_damage(cluster, store, now)
    return count


def _reasons(store: Journal) -> dict[str, str]:
    """Return why jobs are set aside, by job id; of several damaged lines, the first one of the job."""
    return {line.job: str(line) for line in reversed(list(store.damage.values())) if line.job}


def _settle_damage(cluster: Cluster, store: Journal, now: float) -> None:
    for line in store.damage.values():
        log.error("journal=damaged %s; %s set aside", line, f"job {line.job} is" if line.job else "it is")
        if line.kind == e.JobSubmitted.__name__:
            unreadable_jobs.count_unread(cluster.state, JobId(line.job), str(line))
    if store.damage:
        unreadable_jobs.hold_dependents(cluster.state, now)
