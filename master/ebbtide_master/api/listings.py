"""Lists, shows and watches jobs (``ebb ls``, ``ebb show``).

Many jobs are shown page by page, and looked up in parts, so that no other call waits meanwhile, and nothing piles up
for a slow reader.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import JobId, JobState
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.named_jobs import array_of, is_changed, is_over, jobs_named, resolve_id, show, tasks_to_check
from ebbtide_master.api.views import PAGE, STATES, job_message
from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import Parts

PAGE_OF_STREAM: Final = 10
"""Jobs that a stream sends at once: there may be many streams, and their news is less urgent."""

NAMES_OF_A_PART: Final = 500
"""Names that are looked up without a break, in less than a millisecond."""


class ListingService:
    """Shows jobs as they are, and as they change."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._clock = master.clock
        self._changes = master.changes
        self._environments = master.environments
        self._throttle = master.throttle

    async def ListJobs(self, request: client_pb2.ListJobsRequest, context: Any) -> client_pb2.ListJobsReply:
        """List all unfinished jobs in order of submission; with ``all``, the finished ones too."""

        check_ids(request.job_ids)
        who = caller().user if request.mine else request.of_user
        names = await self._loop.ask_in_parts(lambda cluster: names_of(cluster, request, who))
        reply = client_pb2.ListJobsReply()
        for page in pages(names):
            async with self._throttle.page(caller(), limits.LISTED_COST * len(page)):
                reply.jobs.extend(await self._loop.ask_in_parts(partial(shown_jobs, names=page, now=self._clock.now())))
        return reply

    async def ShowJob(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Show all of one job; of its environment, which may hold secrets, only the names."""
        id, user = request.job_id, caller().user
        if id.startswith("@"):
            id = await self._loop.ask(lambda cluster: resolve_id(cluster, request.job_id, user))
        message = await self._loop.ask_in_parts(lambda cluster: show(cluster, id, self._clock.now()))
        message.spec.env.update(dict.fromkeys(self._environments.of(JobId(id)), ""))
        return message

    async def WatchJobs(self, request: client_pb2.WatchJobsRequest, context: Any) -> AsyncIterator[client_pb2.Job]:
        """Send the jobs now, and each whenever it changes, until all jobs that were named are finished."""
        check_ids(request.job_ids)
        wanted, ends = list(dict.fromkeys(request.job_ids)), set[str]()
        with self._changes.watch() as watcher:
            due, over = await self._loop.ask_in_parts(lambda cluster: ids_to_show(cluster, wanted, None, ends))
            while True:
                for page in pages(due, PAGE_OF_STREAM):
                    async with self._throttle.page(caller(), len(page)):
                        ask = partial(watched, names=page, by_name=bool(wanted), now=self._clock.now())
                        for message in await self._loop.ask_in_parts(ask):
                            yield message
                if over:
                    return
                changed = await watcher.wait_changed()
                ask_on = partial(ids_to_show, wanted=wanted, changed=changed, ends=ends)
                due, over = await self._loop.ask_in_parts(ask_on)


def check_ids(ids: Collection[str]) -> None:
    """Raise `SpecError` if a request names more jobs than it may."""
    if len(ids) > limits.MAX_IDS:
        raise SpecError("job_ids", f"{len(ids)} are over the limit of {limits.MAX_IDS}")


def pages(ids: Sequence[str], size: int = PAGE) -> Iterator[Sequence[str]]:
    """Yield ``ids`` in pages of ``size``."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def names_of(cluster: Cluster, request: client_pb2.ListJobsRequest, user: str = "") -> Parts[list[str]]:
    """Return the ids of a listing: the named jobs, or all unfinished ones, or with ``all`` all jobs.

    They are filtered by ``user``, if not empty, and by the requested states, and cut to the last ``limit`` ones. If
    ``folded``, an array is listed once.
    """
    names, ids = dict[str, None](), request.job_ids
    states = {state for state in JobState if STATES[state] in request.states}
    if ids:
        yield from _check_work(cluster, ids)
    known = list(cluster.state.jobs if request.all else cluster.state.unfinished)
    for number, id in enumerate(dict.fromkeys(ids) or known):
        if not number % NAMES_OF_A_PART or ids:
            yield
        for job in jobs_named(cluster, id):
            if (not user or job.user == user) and (not request.states or job.state in states):
                names[job.id if job.lineage.task is None or not request.folded else job.lineage.task.array] = None
    return list(names)[-request.limit :] if request.limit else list(names)


def _check_work(cluster: Cluster, ids: Iterable[str]) -> Parts[None]:
    """Raise `SpecError` if ``ids`` name too many tasks; a task counts as often as it is named."""
    work = 0
    for number, id in enumerate(dict.fromkeys(ids)):
        if not number % NAMES_OF_A_PART:
            yield
        work += tasks_to_check(cluster, id)
        if work > max(limits.MAX_UNFINISHED_JOBS, len(cluster.state.jobs)):
            raise SpecError("job_ids", f"they stand for more than {limits.MAX_UNFINISHED_JOBS} jobs")


def shown_jobs(cluster: Cluster, names: Collection[str], now: float) -> Parts[list[client_pb2.Job]]:
    """Return the jobs and arrays of these ``names``, without those that were forgotten since."""
    found = list[client_pb2.Job]()
    for name in names:
        if cluster.job(JobId(name)) is not None or array_of(cluster, name) is not None:
            found.append((yield from show(cluster, name, now, in_list=True)))
        yield
    return found


def ids_to_show(
    cluster: Cluster, wanted: list[str], changed: set[JobId] | None, ends: set[str]
) -> Parts[tuple[list[str], bool]]:
    """Return the ids to show to a watcher, and whether nothing can follow because all ``wanted`` jobs are finished.

    At first, when ``changed`` is None, these are the ``wanted`` jobs, or all unfinished ones; later those that changed.
    ``ends`` collects the jobs whose end was shown, because a job may end after ``changed`` was looked up.
    """
    if not wanted:
        return list(cluster.state.unfinished) if changed is None else sorted(changed), False
    if changed is None:
        yield from _check_work(cluster, wanted)
    arrays, some, over = {job.partition(".")[0] for job in changed or ()}, list[str](), True
    for id in wanted:
        yield
        ended = is_over(cluster, id)
        if changed is None or (ended and id not in ends) or is_changed(cluster, id, changed, arrays):
            some.append(id)
        if ended:
            ends.add(id)
        over = over and ended
    return some, over


def watched(cluster: Cluster, names: Collection[str], by_name: bool, now: float) -> Parts[list[client_pb2.Job]]:
    """Return these jobs as a watcher gets them. Raises `RefusedError` if a job that was named does not exist."""
    found = list[client_pb2.Job]()
    for name in names:
        if by_name:
            found.append((yield from show(cluster, name, now, briefly=True, in_list=True)))
        elif (job := cluster.state.jobs.get(JobId(name))) is not None:
            found.append(job_message(job, now, in_list=True))
        yield
    return found
