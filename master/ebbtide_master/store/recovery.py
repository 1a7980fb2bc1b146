"""How a master comes to know what the journal says: it folds it, and sets aside what of it cannot be read."""

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
"""What is taken in of a job that was set aside."""
T = TypeVar("T")

log = logging.getLogger(__name__)


def recovered(store: Store, attempt: Callable[[], T]) -> T:
    """What ``attempt`` makes of the journal; made anew if it comes to damaged lines, which are set aside then."""
    gc.disable()  # all that is made is kept, and looking through it again and again takes a fifth of the time
    try:
        return attempt()
    except DamagedLineError:
        store.set_damage_aside()
        return attempt()
    finally:
        gc.enable()


def fold(cluster: Cluster, store: Journal, seen: Callable[[StoredEvent], None] | None = None) -> int:
    """Fold the journal into the new ``cluster``; how many lines that were. Nothing is decided, or asked of the world.

    ``seen`` is told of each line once it was applied. Raises `DamagedLineError` at a line that is not set aside yet,
    and `StoreError` if a line does not follow from those before it.
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
            unreadable_jobs.set_aside(cluster.state, line.event.job, reason, line.time)
        if seen is not None:
            seen(line)
    _settle_damage(cluster, store, now)
    return count


def _reasons(store: Journal) -> dict[str, str]:
    """Why jobs are set aside, by id."""
    return {line.job: str(line) for line in reversed(list(store.damage.values())) if line.job}


def _settle_damage(cluster: Cluster, store: Journal, now: float) -> None:
    for line in store.damage.values():
        log.error("journal=damaged %s; %s set aside", line, f"job {line.job} is" if line.job else "it is")
        if line.kind == e.JobSubmitted.__name__:
            unreadable_jobs.count_unread(cluster.state, JobId(line.job), str(line))
    if store.damage:
        unreadable_jobs.hold_dependents(cluster.state, now)
