"""Changes existing jobs: hold, release, suspend, resume, resize, drill, change, cancel, remove.

A removal is in the journal before anything is removed on a node. A node then asks which of the jobs that it has files
of were removed: at once if the master reaches it, else when it next cleans up.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.job.job import ITS_TURN, Job
from ebbtide_core.job.wait_reason import waited
from ebbtide_core.lifecycle.forgetting import unknown_job
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import WHOLE, JobId, JobState
from ebbtide_core.views.change_effect import in_short, missing_effects
from ebbtide_protos.spec import share_to_parts
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.named_jobs import array_of, events_for_each, job_named, jobs_named, show
from ebbtide_master.api.request_checks import check_rank, check_user
from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import PAUSE, Facts, Parts, RefusedError

CHANGES_OF_A_PART: Final = 200
"""Jobs that are looked at without a break, in less than a millisecond."""


class JobChangeService:
    """Turns requests into events of the jobs that they name."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._clock = master.clock
        self._sessions = master.sessions
        self._environments = master.environments
        self._identities = master.identities
        self._bounds = master.bounds

    async def Suspend(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Suspend a job until it is resumed."""
        return await self._pause(request.job_id, e.SuspendRequested)

    async def Resume(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Let a suspended job go on."""
        return await self._request(request.job_id, e.ResumeRequested)

    async def Hold(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Keep a job from starting (again)."""
        return await self._pause(request.job_id, e.HoldRequested)

    async def Release(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """End a hold."""
        return await self._request(request.job_id, e.ReleaseRequested)

    async def Resize(self, request: client_pb2.ResizeRequest, context: Any) -> client_pb2.Job:
        """Give a job another range of GPUs."""
        low = share_to_parts("--gpus", request.gpus_min)
        high = share_to_parts("--gpus", request.gpus_max) if request.HasField("gpus_max") else low
        return await self._request(request.job_id, lambda id: e.ResizeRequested(id, low, high))

    async def Drill(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Suspend a running job and resume it at once, as a test of its checkpoints; an array is refused."""
        return await self._loop.tell_in_parts(
            lambda cluster: [e.DrillRequested(job_named(cluster, request.job_id).id)],
            lambda cluster: self._show(cluster, request.job_id),
        )

    async def Change(self, request: client_pb2.ChangeRequest, context: Any) -> client_pb2.Job:
        """Give a job another priority, weight or pool; a job that has them already is no error."""
        check_user(request.user)
        check_rank(
            self._bounds,
            request.priority if request.HasField("priority") else None,
            request.weight if request.HasField("weight") else None,
        )
        if request.HasField("max_concurrent") or request.HasField("max_slots"):
            return await self._change_limits(request)
        changes: list[e.JobChanged] = []

        def facts(cluster: Cluster) -> Facts:
            def changed(id: JobId) -> e.JobChanged:
                return _changed(cluster.job(id), id, request)

            # A request is carried out completely or not at all, so a refusal has to come first.
            refused = False
            for job in jobs_named(cluster, request.job_id) if request.HasField("pool") else ():
                refused = refused or (not job.state.finished and cluster.refusal(changed(job.id)) is not None)
                yield PAUSE
            if request.HasField("pool") and not refused:
                yield from events_for_each(cluster, request.job_id, lambda id: _moved(cluster.job(id), id, request))
            for change in events_for_each(cluster, request.job_id, changed):
                if isinstance(change, e.JobChanged):
                    changes.append(change)
                yield change

        def answer(cluster: Cluster) -> Parts[client_pb2.Job]:
            message = yield from self._show(cluster, request.job_id)
            message.effect = yield from _effect(cluster, changes)
            return message

        return await self._loop.tell_in_parts(facts, answer)

    async def Cancel(self, request: client_pb2.CancelRequest, context: Any) -> client_pb2.Job:
        """Cancel a job; a job that was cancelled already is no error."""

        def facts(cluster: Cluster) -> Facts:
            if (jobs := jobs_named(cluster, request.job_id)) and all(job.state is JobState.CANCELLED for job in jobs):
                return []
            return events_for_each(cluster, request.job_id, lambda id: _cancelled(cluster.job(id), id, request))

        return await self._loop.tell_in_parts(facts, lambda cluster: self._show(cluster, request.job_id))

    async def _change_limits(self, request: client_pb2.ChangeRequest) -> client_pb2.Job:
        """Give an array other limits; an array that has them already is no error."""
        if request.HasField("priority") or request.HasField("weight"):
            raise SpecError(
                "--max-concurrent", "cannot be set together with --priority or --weight: set them one by one"
            )

        def facts(cluster: Cluster) -> Iterator[e.ArrayChanged]:
            array = cluster.state.gates.arrays.get(JobId(request.job_id))
            jobs, slots = (0, 0) if array is None else (array.max_concurrent, array.max_slots)
            new_jobs = request.max_concurrent if request.HasField("max_concurrent") else jobs
            new_slots = request.max_slots * WHOLE if request.HasField("max_slots") else slots
            yield e.ArrayChanged(JobId(request.job_id), new_jobs, new_slots, jobs, slots, request.user)

        return await self._loop.tell_in_parts(facts, lambda cluster: self._show(cluster, request.job_id))

    async def Remove(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.RemoveReply:
        """Forget a finished job, or a whole array."""
        gone, user = list[JobId](), caller().user

        def facts(cluster: Cluster) -> Facts:
            jobs = _whole(cluster, request.job_id)
            yield from _refuse_if_needed(cluster, {JobId(request.job_id), *(job.id for job in jobs)})
            for job in jobs:  # either all of them are removed, or none
                if refusal := cluster.refusal(e.JobRemoved(job.id, user)):
                    raise RefusedError(refusal)
                yield PAUSE
            for job in jobs:
                gone.append(job.id)
                yield e.JobRemoved(job.id, user)

        reply = await self._loop.tell_in_parts(facts, lambda _: _reply(gone))
        await self._environments.forget([JobId(request.job_id)])
        await self._sessions.kept_logs.remove(gone)
        self._sessions.tell_of_removed()
        return reply

    async def _pause(self, id: str, kind: type[e.HoldRequested | e.SuspendRequested]) -> client_pb2.Job:
        """Hold or suspend jobs, with events that say what each job waited for until then."""

        def facts(cluster: Cluster) -> Facts:
            return events_for_each(cluster, id, lambda one: kind(one, _waited(cluster.job(one))))

        return await self._loop.tell_in_parts(facts, lambda cluster: self._show(cluster, id))

    async def _request(self, id: str, make_event: Callable[[JobId], Event]) -> client_pb2.Job:
        """Tell what may let a waiting job start: not in the name of a user who was removed while the call waited."""
        asking = caller()

        def facts(cluster: Cluster) -> Facts:
            return self._identities.while_known(asking, events_for_each(cluster, id, make_event))

        return await self._loop.tell_in_parts(facts, lambda cluster: self._show(cluster, id))

    def _show(self, cluster: Cluster, id: str) -> Parts[client_pb2.Job]:
        return show(cluster, id, self._clock.now())


def _changed(job: Job | None, id: JobId, request: client_pb2.ChangeRequest) -> e.JobChanged:
    """Return the event of the changed priority or weight; if there is no job ``id``, the cluster refuses the event."""
    old_priority, old_weight = (0, 0.0) if job is None else (job.priority, job.weight)
    priority = request.priority if request.HasField("priority") else old_priority
    weight = request.weight if request.HasField("weight") else old_weight
    return e.JobChanged(id, priority, weight, old_priority, old_weight, request.user)


def _effect(cluster: Cluster, changes: list[e.JobChanged]) -> Parts[str]:
    """Return in words which effects these changes do not have."""
    jobs, found, pages = cluster.state.jobs, list[str](), range(0, len(changes), CHANGES_OF_A_PART)
    for start in pages:
        found += missing_effects(cluster.policies, jobs, changes[start : start + CHANGES_OF_A_PART])
        yield
    return in_short(found)


def _moved(job: Job | None, id: JobId, request: client_pb2.ChangeRequest) -> e.JobMoved:
    return e.JobMoved(id, request.pool, "" if job is None else job.pool, request.user)


def _cancelled(job: Job | None, id: JobId, request: client_pb2.CancelRequest) -> e.CancelRequested:
    """Return the event of a cancel, which says what the job waited for until then."""
    return e.CancelRequested(id, request.now, _waited(job))


def _waited(job: Job | None) -> str:
    """Return what ``job`` waits for; empty if it does not wait."""
    return waited(job) or ITS_TURN if job is not None and job.waiting else ""


def _reply(gone: list[JobId]) -> Parts[client_pb2.RemoveReply]:
    yield
    return client_pb2.RemoveReply(job_ids=gone)


def _whole(cluster: Cluster, id: str) -> list[Job]:
    """Return the job ``id``, or all tasks of the array ``id``. Raises `RefusedError` for single tasks of an array."""
    job, array = cluster.job(JobId(id)), array_of(cluster, id)
    if array is not None and (array.id != id or (job is not None and job.lineage.task is not None)):
        raise RefusedError(Refusal(RefusalKind.CONFLICT, f"tasks go with their array: remove job {array.id}"))
    if not (jobs := jobs_named(cluster, id)):
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, unknown_job(cluster.state, id)))
    return jobs


def _refuse_if_needed(cluster: Cluster, ids: Collection[JobId]) -> Facts:
    """Raise `RefusedError` if an unfinished job was submitted to wait for one of ``ids``."""
    for number, id in enumerate(list(cluster.state.unfinished)):
        if not number % CHANGES_OF_A_PART:
            yield PAUSE
        job = cluster.job(id)
        if job is not None and any(one.job in ids for one in job.spec.after):
            needed = next(one.job for one in job.spec.after if one.job in ids)
            why = f"job {id}, which is not finished, was submitted with --after {needed}"
            raise RefusedError(Refusal(RefusalKind.CONFLICT, why))
