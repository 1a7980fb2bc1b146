"""``ebb requeue``: back to the queue, or once more."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.job.job import Job
from ebbtide_core.model.types import JobId, JobState, Task
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.arrays import Member, is_whole, named, shown, submitted, wishes
from ebbtide_master.api.request_checks import check_submission, digest_of, known_job
from ebbtide_master.api.unfinished_jobs import Queued
from ebbtide_master.clock import Clock
from ebbtide_master.loop import Facts, MasterLoop, Parts, RefusedError
from ebbtide_master.store.environments import Environments
from ebbtide_master.store.journal import Store


class Requeues:
    """The part of the clients' side that puts jobs back into the queue."""

    _loop: MasterLoop
    _clock: Clock
    _store: Store
    queued: Queued
    _environments: Environments

    async def Requeue(self, request: client_pb2.RequeueRequest, context: Any) -> client_pb2.Job:
        """Have what runs step aside; submit again what is over. Of an array, the latter only if nothing of it is left.

        ``failed`` wants the tasks that failed once more, whatever the others do.
        """
        check_submission(request, self._store)
        chosen, operation = list[JobId](), (request.operation_id, digest_of(request))

        def facts(cluster: Cluster) -> Facts:
            jobs = named(cluster, request.job_id)
            if known := known_job(cluster, *operation):
                chosen.append(known)
                if not is_whole(cluster, known):  # the master ended before it had accepted all
                    yield from _the_rest(cluster, known, jobs, request.failed)
                return
            if not request.failed and not (jobs and all(job.state.finished for job in jobs)):
                chosen.append(JobId(request.job_id))
                yield from wishes(cluster, request.job_id, e.RequeueRequested)
                return
            jobs = [job for job in jobs if job.state is JobState.FAILED] if request.failed else jobs
            if jobs:
                self.queued.add(cluster, request.user, len(jobs))
                chosen.append(cluster.state.gates.next_id(cluster.state.submissions))
                self._environments.note_again(chosen[0], jobs[0].id)
                owner = jobs[0].user or request.user  # whoever asks: an operator does not make it theirs
                yield from submitted(cluster, chosen[0], _again(cluster, jobs), owner, False, operation, jobs)

        def answer(cluster: Cluster) -> Parts[client_pb2.Job]:
            if not chosen:
                raise RefusedError(_nothing_failed(cluster, request.job_id))
            return shown(cluster, chosen[0], self._clock.now())

        return await self._loop.tell_in_parts(facts, answer)


def _the_rest(cluster: Cluster, id: JobId, jobs: list[Job], failed: bool) -> Facts:
    """The facts of the tasks that ``id`` lacks, of those that were over when its first was submitted."""
    first = next(iter(cluster.state.gates.arrays[id].tasks.values()))
    over = [job for job in jobs if job.ended is not None and job.ended <= first.submitted]
    over = [job for job in over if job.state is JobState.FAILED] if failed else over
    return submitted(cluster, id, _again(cluster, over), first.user, False, again=over)


def _again(cluster: Cluster, jobs: list[Job]) -> Iterator[Member]:
    """The same jobs once more, with all that they waited for behind them; tasks as an array with the same limits.

    Their scripts are those of now, of which nobody has read the digests.
    """
    for job in jobs:
        yield replace(job.spec, after=(), begin_at=0.0, scripts={}), _task_again(cluster, job, len(jobs))


def _task_again(cluster: Cluster, job: Job, size: int) -> Task | None:
    if job.task is None:
        return None
    array = cluster.state.gates.arrays[job.task.array]
    return replace(job.task, size=size, max_concurrent=array.max_concurrent, max_slots=array.max_slots)


def _nothing_failed(cluster: Cluster, id: str) -> Refusal:
    if not named(cluster, id):
        return Refusal(RefusalKind.UNKNOWN, f"job {id} does not exist")
    return Refusal(RefusalKind.CONFLICT, f"--failed: nothing of job {id} failed")
