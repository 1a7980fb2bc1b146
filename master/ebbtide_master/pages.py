"""Many jobs are shown a page at a time, so that nobody waits meanwhile, and nothing piles up for who reads slowly."""

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from ebbtide_core import limits
from ebbtide_core.cluster import Cluster
from ebbtide_core.model import JobId
from ebbtide_core.spec import SpecError
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.arrays import changed_among, is_over, named, shown
from ebbtide_master.views import job_message

PAGE: Final = 50
"""Jobs of an answer; a few milliseconds of the master's time."""
PAGE_OF_STREAM: Final = 10
"""Jobs that a stream tells of at once: there may be many streams, and what they tell is wanted less urgently."""


def check_ids(ids: Collection[str]) -> None:
    """Raise `SpecError` if a request names more jobs than it may."""
    if len(ids) > limits.MAX_IDS:
        raise SpecError("job_ids", f"{len(ids)} are over the limit of {limits.MAX_IDS}")


def pages(ids: Sequence[str], size: int = PAGE) -> Iterator[Sequence[str]]:
    """So many at a time."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def names_of(cluster: Cluster, ids: Collection[str], all: bool, folded: bool) -> list[str]:
    """Which jobs a listing has: those named, else all unfinished ones, or with ``all`` all; ``folded``, arrays once."""
    jobs = (
        job for id in ids or (cluster.state.jobs if all else cluster.state.unfinished) for job in named(cluster, id)
    )
    if not folded:
        return [job.id for job in jobs]
    return list(dict.fromkeys(job.id if job.task is None else job.task.array for job in jobs))


def shown_of(cluster: Cluster, names: Collection[str], now: float) -> list[client_pb2.Job]:
    """These jobs and arrays, but for those that were forgotten since."""
    return [shown(cluster, name, now) for name in names if named(cluster, name)]


def to_be_shown(cluster: Cluster, wanted: list[str], changed: set[JobId] | None) -> tuple[list[str], bool]:
    """What to show a watcher: the ``wanted`` ones, or all unfinished ones at first, of which something changed.

    And whether nothing can follow, because those that were named are finished.
    """
    if wanted:
        some = wanted if changed is None else [id for id in wanted if changed_among(cluster, id, changed)]
        return some, all(is_over(cluster, id) for id in wanted)
    return list(cluster.state.unfinished) if changed is None else sorted(changed), False


def watched(cluster: Cluster, names: Collection[str], by_name: bool, now: float) -> list[client_pb2.Job]:
    """These jobs as a watcher is shown them. Those that it named have to exist, else `RefusedError` is raised."""
    if by_name:
        return [shown(cluster, name, now, briefly=True) for name in names]
    return [job_message(job, now) for name in names if (job := cluster.state.jobs.get(JobId(name))) is not None]
