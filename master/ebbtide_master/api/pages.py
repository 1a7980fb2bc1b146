"""Many jobs are shown a page at a time, and named in parts.

So nobody waits meanwhile, and nothing piles up for who reads slowly.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import JobId, JobState
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.arrays import array_of, breadth, changed_among, is_over, named, shown
from ebbtide_master.api.views import STATES, job_message
from ebbtide_master.loop import Parts

PAGE: Final = 50
"""Jobs of an answer; a few milliseconds of the master's time."""
PAGE_OF_STREAM: Final = 10
"""Jobs that a stream tells of at once: there may be many streams, and what they tell is wanted less urgently."""

NAMES_OF_A_PART: Final = 500
"""Are looked at a time, in less than a millisecond."""


def check_ids(ids: Collection[str]) -> None:
    """Raise `SpecError` if a request names more jobs than it may."""
    if len(ids) > limits.MAX_IDS:
        raise SpecError("job_ids", f"{len(ids)} are over the limit of {limits.MAX_IDS}")


def pages(ids: Sequence[str], size: int = PAGE) -> Iterator[Sequence[str]]:
    """So many at a time."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def names_of(cluster: Cluster, request: client_pb2.ListJobsRequest, user: str = "") -> Parts[list[str]]:
    """Which jobs a listing has: those named, else all unfinished ones, or with ``all`` all; ``folded``, arrays once.

    Of these, those of the ``user``, if one is named, in the states that are asked for, and the last so many.
    """
    names, ids = dict[str, None](), request.job_ids
    states = {state for state in JobState if STATES[state] in request.states}
    if ids:
        yield from _check_work(cluster, ids)
    known = list(cluster.state.jobs if request.all else cluster.state.unfinished)
    for number, id in enumerate(dict.fromkeys(ids) or known):
        if not number % NAMES_OF_A_PART or ids:
            yield
        for job in named(cluster, id):
            if (not user or job.user == user) and (not request.states or job.state in states):
                names[job.id if job.task is None or not request.folded else job.task.array] = None
    return list(names)[-request.limit :] if request.limit else list(names)


def _check_work(cluster: Cluster, ids: Iterable[str]) -> Parts[None]:
    """Raise `SpecError` if ``ids`` stand for too many tasks, those that are named again and again among them."""
    work = 0
    for number, id in enumerate(dict.fromkeys(ids)):
        if not number % NAMES_OF_A_PART:
            yield
        work += breadth(cluster, id)
        if work > max(limits.MAX_UNFINISHED_JOBS, len(cluster.state.jobs)):
            raise SpecError("job_ids", f"they stand for more than {limits.MAX_UNFINISHED_JOBS} jobs")


def shown_of(cluster: Cluster, names: Collection[str], now: float) -> Parts[list[client_pb2.Job]]:
    """These jobs and arrays, but for those that were forgotten since."""
    found = list[client_pb2.Job]()
    for name in names:
        if cluster.job(JobId(name)) is not None or array_of(cluster, name) is not None:
            found.append((yield from shown(cluster, name, now, in_list=True)))
        yield
    return found


def to_be_shown(
    cluster: Cluster, wanted: list[str], changed: set[JobId] | None, ends: set[str]
) -> Parts[tuple[list[str], bool]]:
    """What to show a watcher: the ``wanted`` ones, or all unfinished ones at first, of which something changed.

    And whether nothing can follow, because those that were named are finished. ``ends`` has those whose end was shown:
    a job may end after what has ``changed`` was looked up.
    """
    if not wanted:
        return list(cluster.state.unfinished) if changed is None else sorted(changed), False
    if changed is None:
        yield from _check_work(cluster, wanted)
    arrays, some, over = {job.partition(".")[0] for job in changed or ()}, list[str](), True
    for id in wanted:
        yield
        ended = is_over(cluster, id)
        if changed is None or (ended and id not in ends) or changed_among(cluster, id, changed, arrays):
            some.append(id)
        if ended:
            ends.add(id)
        over = over and ended
    return some, over


def watched(cluster: Cluster, names: Collection[str], by_name: bool, now: float) -> Parts[list[client_pb2.Job]]:
    """These jobs as a watcher is shown them. Those that it named have to exist, else `RefusedError` is raised."""
    found = list[client_pb2.Job]()
    for name in names:
        if by_name:
            found.append((yield from shown(cluster, name, now, briefly=True, in_list=True)))
        elif (job := cluster.state.jobs.get(JobId(name))) is not None:
            found.append(job_message(job, now, in_list=True))
        yield
    return found
