"""Finished jobs that their users remove: a part of the clients' side.

What counts is in the journal before anything is removed on any node: a node asks which of the jobs that it has
something of were removed, at once if it is told to, and else when it next tidies up.
"""

from collections.abc import Collection
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.job.job import Job
from ebbtide_core.lifecycle.forgetting import unknown_job
from ebbtide_core.model.types import JobId
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.arrays import array_of, named
from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import PAUSE, Facts, MasterLoop, Parts, RefusedError
from ebbtide_master.nodes.agents import Agents
from ebbtide_master.store.environments import Environments

JOBS_OF_A_PART: Final = 200
"""Are looked at a time, in less than a millisecond."""


class Removing:
    """`Clients` are this, too."""

    _loop: MasterLoop
    _agents: Agents
    _environments: Environments

    async def Remove(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.RemoveReply:
        """Forget a finished job, or a whole array."""
        gone, user = list[JobId](), caller().user

        def facts(cluster: Cluster) -> Facts:
            jobs = _whole(cluster, request.job_id)
            yield from _refuse_if_needed(cluster, {JobId(request.job_id), *(job.id for job in jobs)})
            for job in jobs:  # all of them, or nothing
                if refusal := cluster.refusal(e.JobRemoved(job.id, user)):
                    raise RefusedError(refusal)
                yield PAUSE
            for job in jobs:
                gone.append(job.id)
                yield e.JobRemoved(job.id, user)

        reply = await self._loop.tell_in_parts(facts, lambda _: _reply(gone))
        await self._environments.forget([JobId(request.job_id)])
        self._agents.tell_of_removed()
        return reply


def _reply(gone: list[JobId]) -> Parts[client_pb2.RemoveReply]:
    yield
    return client_pb2.RemoveReply(job_ids=gone)


def _whole(cluster: Cluster, id: str) -> list[Job]:
    """The job of that id, or all tasks of the array."""
    job, array = cluster.job(JobId(id)), array_of(cluster, id)
    if array is not None and (array.id != id or (job is not None and job.task is not None)):
        raise RefusedError(Refusal(RefusalKind.CONFLICT, f"tasks go with their array: remove job {array.id}"))
    if not (jobs := named(cluster, id)):
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, unknown_job(cluster.state, id)))
    return jobs


def _refuse_if_needed(cluster: Cluster, ids: Collection[JobId]) -> Facts:
    """Raise `RefusedError` if an unfinished job was to wait for one of these."""
    for number, id in enumerate(list(cluster.state.unfinished)):
        if not number % JOBS_OF_A_PART:
            yield PAUSE
        job = cluster.job(id)
        if job is not None and any(one.job in ids for one in job.spec.after):
            needed = next(one.job for one in job.spec.after if one.job in ids)
            why = f"job {id}, which is not finished, was submitted with --after {needed}"
            raise RefusedError(Refusal(RefusalKind.CONFLICT, why))
