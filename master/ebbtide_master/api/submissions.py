"""Adds jobs and arrays, all tasks of a request or none (``ebb submit``, ``ebb requeue``)."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.job.facets import GpuMemory
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle.pool_membership import pool_of
from ebbtide_core.measuring import gpu_memory
from ebbtide_core.model import limits
from ebbtide_core.model.array_checks import check_limits, check_task
from ebbtide_core.model.spec import JobSpec, SpecError, validate
from ebbtide_core.model.spec.program import text_size
from ebbtide_core.model.types import WHOLE, JobId, JobState, Task
from ebbtide_protos.spec import spec_from_message
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.named_jobs import events_for_each, jobs_named, latest_of, show
from ebbtide_master.api.notices import allowed_notices
from ebbtide_master.api.request_checks import check_rank, check_user
from ebbtide_master.api.snapshots import check_snapshot
from ebbtide_master.api.views import submit_reply
from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import PAUSE, Facts, Parts, RefusedError
from ebbtide_master.store.environments import written_env
from ebbtide_master.store.journal import Store

Submission = client_pb2.SubmitRequest | client_pb2.RequeueRequest
"""A request that adds jobs."""


Member = tuple[JobSpec, Task | None]
"""A job to be submitted: its spec, and its task, whose array is not known yet."""


class SubmissionService:
    """Turns requests into jobs."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._clock = master.clock
        self._store = master.store
        self._snapshots = master.snapshots
        self._environments = master.environments
        self._identities = master.identities
        self._notifier = master.notifier
        self._bounds = master.bounds
        self._throttle = master.throttle

    async def Submit(self, request: client_pb2.SubmitRequest, context: Any) -> client_pb2.SubmitReply:
        """Accept a job or an array, and reply once it is on disk."""
        spec, warnings = self._accepted(request)
        chosen, operation = list[JobId](), (request.operation_id, digest_of(request))
        env = written_env(spec.env)
        asking = caller()

        def facts(cluster: Cluster) -> Facts:
            jobs = yield from jobs_requested(request, resolve_after(cluster, spec, request.user))
            if known := known_job(cluster, *operation):
                chosen.append(known)
                if not is_whole(cluster, known):  # the master ended before it had accepted all
                    jobs = _like_the_first(cluster, known, jobs)
                    yield from submission_events(cluster, known, jobs, request.user, request.hold)
                return
            self._throttle.submit(cluster, request.user, [spec for spec, _ in jobs], len(env))
            chosen.append(cluster.state.gates.next_id(cluster.state.submissions))
            self._environments.note(chosen[0], env)
            yield from submission_events(cluster, chosen[0], jobs, request.user, request.hold, operation)

        if request.dry_run:
            reply = await self._loop.ask_in_parts(lambda cluster: _try_out(cluster, request, spec))
        else:
            reply = await self._loop.tell(
                lambda cluster: self._identities.while_known(asking, facts(cluster)),
                lambda cluster: submit_reply(chosen[0], cluster.job(chosen[0])),
            )
        reply.warnings.extend(warnings)
        return reply

    def _accepted(self, request: client_pb2.SubmitRequest) -> tuple[JobSpec, list[str]]:
        """Return the job with the cluster's defaults, and warnings; raise `SpecError` or `RefusedError` for a fault.

        The core takes valid jobs only. The commands and variables of tasks with params are checked in `_with_params`.
        """
        spec = spec_from_message(request.spec)
        check_submission(request, self._store)
        check_rank(self._bounds, spec.priority, spec.weight)
        check_snapshot(spec.snapshot, self._snapshots)
        notify, warnings = allowed_notices(spec.notify, self._notifier.settings, may_drop=spec.slurm)
        idle_limit_s = spec.idle_limit_s
        if spec.kind.is_session and not request.spec.HasField("idle_limit_s"):
            idle_limit_s = self._loop.settings.idle_s
        pool = pool_of(spec, self._loop.settings)
        spec = replace(spec, pool=pool, notify=notify, idle_limit_s=idle_limit_s)
        validate(spec)
        return spec, warnings

    async def Requeue(self, request: client_pb2.RequeueRequest, context: Any) -> client_pb2.Job:
        """Requeue a running job, or submit a finished one again; an array only once all its tasks are finished.

        With ``failed``, submit the failed tasks again, whatever the state of the others.
        """
        check_submission(request, self._store)
        chosen, operation = list[JobId](), (request.operation_id, digest_of(request))
        asking = caller()

        def facts(cluster: Cluster) -> Facts:
            jobs = jobs_named(cluster, request.job_id)
            if known := known_job(cluster, *operation):
                was_running = any(job.id == known for job in jobs)
                chosen.append(JobId(request.job_id) if was_running else known)
                if was_running:
                    yield from _not_yet_requeued(cluster, jobs, operation)
                elif not is_whole(cluster, known):  # the master ended before it had accepted all
                    yield from _the_rest(cluster, known, jobs, request.failed)
                return
            if not request.failed and not (jobs and all(job.state.finished for job in jobs)):
                chosen.append(JobId(request.job_id))
                yield from events_for_each(cluster, request.job_id, lambda id: e.RequeueRequested(id, *operation))
                return
            jobs = [job for job in jobs if job.state is JobState.FAILED] if request.failed else jobs
            if any(job.spec.stdin for job in jobs):
                raise RefusedError(_had_stdin(jobs[0]))
            if jobs:
                self._throttle.add_jobs(asking, len(jobs))
                env_bytes = self._environments.size_of(jobs[0].id)
                self._throttle.submit(cluster, request.user, [job.spec for job in jobs], env_bytes)
                chosen.append(cluster.state.gates.next_id(cluster.state.submissions))
                self._environments.note_again(chosen[0], jobs[0].id)
                owner = jobs[0].user or request.user  # the job stays its user's, even if an operator asks
                yield from submission_events(cluster, chosen[0], _again(cluster, jobs), owner, False, operation, jobs)

        def answer(cluster: Cluster) -> Parts[client_pb2.Job]:
            if not chosen:
                raise RefusedError(_nothing_failed(cluster, request.job_id))
            return show(cluster, chosen[0], self._clock.now())

        return await self._loop.tell_in_parts(
            lambda cluster: self._identities.while_known(asking, facts(cluster)), answer
        )


def _not_yet_requeued(cluster: Cluster, jobs: Sequence[Job], operation: tuple[str, str]) -> Facts:
    """Yield the requests for running tasks that a master had not recorded yet as it ended."""
    for job in jobs:
        event = e.RequeueRequested(job.id, *operation)
        if all(recorded != event for _, recorded in job.story) and cluster.refusal(event) is None:
            yield event
        yield PAUSE


# --- checks ---


def check_submission(request: Submission, store: Store) -> None:
    """Raise `SpecError` for an invalid operation id or user, or `RefusedError` if the master's disk is full."""
    if len(request.operation_id) > limits.MAX_OPERATION_ID_LENGTH:
        raise SpecError("operation_id", f"is over the limit of {limits.MAX_OPERATION_ID_LENGTH} characters")
    check_user(request.user)
    if not store.has_room():
        raise RefusedError(Refusal(RefusalKind.LIMIT, "the master's disk is full: no job is accepted for now"))


def digest_of(request: Submission) -> str:
    """Return a digest that tells this request from another of the same operation id; empty if it has none.

    The environment is left out, because not even the digest of a possible secret may be kept.
    """
    if not request.operation_id:
        return ""
    bare = type(request).FromString(request.SerializeToString())
    bare.operation_id = ""
    if isinstance(bare, client_pb2.SubmitRequest):
        bare.spec.ClearField("env")
    return hashlib.blake2b(bare.SerializeToString(deterministic=True), digest_size=8).hexdigest()


def known_job(cluster: Cluster, operation_id: str, digest: str) -> JobId | None:
    """Return the job or array that this request has already made, or None.

    Raises `RefusedError` if another request used the same operation id.
    """
    job = cluster.state.operations.get(operation_id) if operation_id else None
    if job is not None and cluster.state.requests.get(operation_id, digest) != digest:
        message = f"operation_id: {operation_id} was used for another request: every request needs its own"
        raise RefusedError(Refusal(RefusalKind.CONFLICT, message))
    return job


# --- the requested jobs ---


def jobs_requested(request: client_pb2.SubmitRequest, spec: JobSpec) -> Parts[list[Member]]:
    """Return the requested jobs: one, or the tasks of an array. Raises `SpecError` if one of them is invalid.

    Their specs lack the environment that they share, which is kept once (`ebbtide_master.store.environments`).
    """
    bare = replace(spec, env={})
    check_limits(request.max_concurrent, request.max_slots * WHOLE)
    if request.tasks and spec.stdin:
        raise SpecError("--array", "its tasks cannot share standard input: add </dev/null to do without")
    if not request.tasks:
        if request.max_concurrent or request.max_slots:
            option = "--max-concurrent" if request.max_concurrent else "--max-slots"
            raise SpecError(option, "is a limit for the tasks of an array: there is none without --array or --param")
        return [(bare, None)]
    size = len(request.tasks)
    if size > limits.MAX_ARRAY_TASKS:
        raise SpecError("--array", f"{size} tasks are over the limit of {limits.MAX_ARRAY_TASKS}")
    if len({task.index for task in request.tasks}) < size:
        raise SpecError("--array", "an index stands there twice")
    found, total, of_bare = list[Member](), 0, text_size(bare)
    for wanted in request.tasks:
        yield
        params = dict(wanted.params)
        task = Task(JobId(""), wanted.index, size, params, request.max_concurrent, request.max_slots * WHOLE)
        check_task(task)
        own = _with_params(spec, params) if params else bare
        total += text_size(own) if params else of_bare
        if total > limits.MAX_ARRAY_BYTES:
            what = f"the commands and scripts of {size} tasks come to more than"
            raise SpecError("--array", f"{what} the limit of {limits.MAX_ARRAY_BYTES} bytes in all")
        found.append((own, task))
    return found


def _with_params(spec: JobSpec, params: dict[str, str]) -> JobSpec:
    """Return the spec with its params in the command, and with an environment of these params alone."""
    names = re.compile("|".join(rf"\{{{name}\}}" for name in params))
    command = tuple(names.sub(lambda match: params[match[0][1:-1]], argument) for argument in spec.command)
    own = {f"EBB_PARAM_{name.upper()}": value for name, value in params.items()}
    validate(replace(spec, command=command, env={**spec.env, **own}))
    return replace(spec, command=command, env={name: own[name] for name in own if spec.env.get(name) != own[name]})


def resolve_after(cluster: Cluster, spec: JobSpec, user: str) -> JobSpec:
    """Return ``spec`` with the ids of the jobs that it waits for.

    ``@`` stands for the last job or array that the user submitted, and ``@~1`` for the one before that.
    """
    matches = {one.job: re.fullmatch(r"@(?:~(\d{1,4}))?", one.job) for one in spec.after}
    back = {id: int(match[1] or 0) for id, match in matches.items() if match is not None}
    if not back:
        return spec
    latest = latest_of(cluster, user, max(back.values()) + 1)
    ids = {id: latest[number] for id, number in back.items() if number < len(latest)}
    return replace(spec, after=tuple(replace(one, job=ids.get(one.job, one.job)) for one in spec.after))


def _like_the_first(cluster: Cluster, array: JobId, jobs: list[Member]) -> list[Member]:
    """Return the ``jobs`` with what the first task of ``array`` waits for: by now, ``@`` may be another job."""
    first = next(iter(cluster.state.gates.arrays[array].tasks.values()))
    return [(replace(spec, after=first.spec.after), task) for spec, task in jobs]


def _try_out(cluster: Cluster, request: client_pb2.SubmitRequest, spec: JobSpec) -> Parts[client_pb2.SubmitReply]:
    """Return the reply that a submit would get. Raises `RefusedError` if the submit would be refused."""
    jobs = yield from jobs_requested(request, resolve_after(cluster, spec, request.user))
    [first] = islice(submission_events(cluster, JobId(""), jobs, request.user, False), 1)
    assert first is not PAUSE
    refusal, spec = cluster.refusal(first), jobs[0][0]
    if refusal is not None:
        raise RefusedError(refusal)
    job = Job(JobId(""), spec, request.user, 0.0, 0, spec.gpus_min, spec.gpus_max, pool=spec.pool)
    job.gpu_memory = GpuMemory(spec.gpu_mem_bytes)
    needs = gpu_memory.learned_request(cluster.state, job)
    return client_pb2.SubmitReply(
        gpu_mem_bytes=0 if needs is None else needs.mem_bytes, gpu_mem_from="" if needs is None else needs.reason
    )


# --- jobs that are submitted again ---


def _the_rest(cluster: Cluster, id: JobId, jobs: list[Job], failed: bool) -> Facts:
    """Yield the facts for the tasks that the array ``id`` lacks: copies of the jobs that had ended before it began."""
    first = next(iter(cluster.state.gates.arrays[id].tasks.values()))
    over = [job for job in jobs if job.end is not None and job.end.at <= first.submitted]
    over = [job for job in over if job.state is JobState.FAILED] if failed else over
    return submission_events(cluster, id, _again(cluster, over), first.user, False, again=over)


def _again(cluster: Cluster, jobs: list[Job]) -> Iterator[Member]:
    """Yield the same jobs without their dependencies and begin times; tasks become an array with the same limits.

    They lack the digests of their scripts, which may have changed since.
    """
    for job in jobs:
        spec = replace(job.spec, after=(), begin_at=0.0, scripts={})
        validate(spec)  # an older version, with other limits, may have accepted it
        yield spec, _task_again(cluster, job, len(jobs))


def _task_again(cluster: Cluster, job: Job, size: int) -> Task | None:
    if job.lineage.task is None:
        return None
    array = cluster.state.gates.arrays[job.lineage.task.array]
    return replace(job.lineage.task, size=size, max_concurrent=array.max_concurrent, max_slots=array.max_slots)


def _had_stdin(job: Job) -> Refusal:
    return Refusal(RefusalKind.CONFLICT, f"job {job.id} read standard input, which is gone: run it anew with 'ebb run'")


def _nothing_failed(cluster: Cluster, id: str) -> Refusal:
    if not jobs_named(cluster, id):
        return Refusal(RefusalKind.UNKNOWN, f"job {id} does not exist")
    return Refusal(RefusalKind.CONFLICT, f"--failed: no task of job {id} failed")


# --- the facts of a submit ---


def submission_events(
    cluster: Cluster,
    id: JobId,
    jobs: Iterable[Member],
    user: str,
    hold: bool,
    operation: tuple[str, str] = ("", ""),
    again: Sequence[Job] = (),
) -> Iterator[Event | None]:
    """Yield the facts of a submit of all ``jobs``. ``operation`` is its id, and a digest of the request.

    ``again`` has the job that each one repeats. Tasks of the array that an earlier master had already accepted are left
    as they are.
    """
    for number, (spec, task) in enumerate(jobs):
        if number:
            yield PAUSE
        if task is not None and JobId(f"{id}.{task.index}") in cluster.state.jobs:
            continue
        own = id
        if task is not None:
            own, task = JobId(f"{id}.{task.index}"), replace(task, array=id)
        old = again[number].id if again else None
        operation_id, digest = ("", "") if number else operation
        yield e.JobSubmitted(own, spec, user, hold, operation_id, task, old, digest)
        if (needs := gpu_memory.learned_request(cluster.state, cluster.state.jobs[own])) is not None:
            yield needs
        if old is not None:
            yield e.JobRequeued(old, own)


def is_whole(cluster: Cluster, id: JobId) -> bool:
    """Whether all tasks of the array were accepted; if a master was killed while it accepted them, some are missing."""
    array = cluster.state.gates.arrays.get(id)
    if array is None:
        return True
    if not array.tasks:  # all of them were removed since
        return True
    task = next(iter(array.tasks.values())).lineage.task
    return task is None or len(array.tasks) >= task.size
