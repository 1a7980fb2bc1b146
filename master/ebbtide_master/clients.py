"""The clients' side of the master: every verb of `ebb` ends in one of these methods."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core import limits, memory
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.explain import explain
from ebbtide_core.foreign import gpu_seconds
from ebbtide_core.gang import has_ended, has_started
from ebbtide_core.job import Attempt, Job
from ebbtide_core.model import JobId, NodeId
from ebbtide_core.spec import JobSpec, SpecError
from ebbtide_protos.spec import share_to_parts, spec_from_message
from ebbtide_protos.v1 import client_pb2, client_pb2_grpc

from ebbtide_master.agents import Agents, LogUnavailableError
from ebbtide_master.changes import Changes
from ebbtide_master.clock import Clock
from ebbtide_master.log_parts import node_of_part
from ebbtide_master.loop import MasterLoop, RefusedError
from ebbtide_master.notice_methods import NoticeMethods
from ebbtide_master.notify.notifier import Notifier
from ebbtide_master.snapshot_methods import SnapshotMethods
from ebbtide_master.snapshots import Snapshots
from ebbtide_master.store import Store
from ebbtide_master.views import event_message, explanation_message, job_message, node_message, submit_reply

LOG_WINDOW_BYTES: Final = 256 * limits.KIB
EVENTS_AT_ONCE: Final = 500
MAX_USER_LENGTH: Final = 64


class Clients(SnapshotMethods, NoticeMethods, client_pb2_grpc.ClientServiceServicer):
    """Turns wishes into facts through the loop, and shows what is."""

    def __init__(
        self,
        loop: MasterLoop,
        agents: Agents,
        store: Store,
        clock: Clock,
        changes: Changes,
        about: client_pb2.ClusterInfo,
        snapshots: Snapshots,
        notifier: Notifier,
    ) -> None:
        self._snapshots = snapshots
        self._notifier = notifier
        self._loop = loop
        self._agents = agents
        self._store = store
        self._clock = clock
        self._changes = changes
        self._about = about

    # --- wishes ---

    async def Submit(self, request: client_pb2.SubmitRequest, context: Any) -> client_pb2.SubmitReply:
        """Accept a job; the reply leaves once it is on disk."""
        spec = spec_from_message(request.spec)
        if len(request.operation_id) > limits.MAX_OPERATION_ID_LENGTH:
            raise SpecError("operation_id", f"is over the limit of {limits.MAX_OPERATION_ID_LENGTH} characters")
        _check_user(request.user)
        if not self._store.has_room():
            raise RefusedError(Refusal(RefusalKind.LIMIT, "the master's disk is full: no job is accepted for now"))
        self._check_snapshot(spec)
        self._check_notify(spec)
        chosen: list[JobId] = []

        def facts(cluster: Cluster) -> Iterable[Event]:
            if request.operation_id and (known := cluster.state.operations.get(request.operation_id)):
                chosen.append(known)
                return
            chosen.append(JobId(str(len(cluster.state.jobs) + 1)))
            yield e.JobSubmitted(chosen[0], spec, request.user, request.hold, request.operation_id)
            needs = memory.learned(cluster.state, cluster.state.jobs[chosen[0]])
            if needs is not None:
                yield needs

        if request.dry_run:
            return await self._loop.ask(lambda cluster: _try_out(cluster, spec, request.user))
        return await self._loop.tell(facts, lambda cluster: submit_reply(chosen[0], cluster.job(chosen[0])))

    async def Suspend(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Have a job step aside until it is resumed."""
        return await self._wish(request.job_id, e.SuspendRequested(JobId(request.job_id)))

    async def Resume(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Let a suspended job go on."""
        return await self._wish(request.job_id, e.ResumeRequested(JobId(request.job_id)))

    async def Hold(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Keep a job from starting (again)."""
        return await self._wish(request.job_id, e.HoldRequested(JobId(request.job_id)))

    async def Release(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """End a hold."""
        return await self._wish(request.job_id, e.ReleaseRequested(JobId(request.job_id)))

    async def Resize(self, request: client_pb2.ResizeRequest, context: Any) -> client_pb2.Job:
        """Give a job another range of GPUs."""
        low = share_to_parts("--gpus", request.gpus_min)
        high = share_to_parts("--gpus", request.gpus_max) if request.HasField("gpus_max") else low
        return await self._wish(request.job_id, e.ResizeRequested(JobId(request.job_id), low, high))

    async def Drill(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Have a running job step aside and come back at once."""
        return await self._wish(request.job_id, e.DrillRequested(JobId(request.job_id)))

    async def Change(self, request: client_pb2.ChangeRequest, context: Any) -> client_pb2.Job:
        """Give a job another priority or weight. One that has them already is what was wished for."""
        _check_user(request.user)
        id = JobId(request.job_id)

        def facts(cluster: Cluster) -> Iterable[Event]:
            job = cluster.job(id)
            if job is None:  # the cluster refuses it
                return [e.JobChanged(id, request.priority, request.weight, request.priority, request.weight)]
            priority = request.priority if request.HasField("priority") else job.priority
            weight = request.weight if request.HasField("weight") else job.weight
            return [e.JobChanged(id, priority, weight, job.priority, job.weight, request.user)]

        return await self._loop.tell(facts, lambda cluster: self._show(cluster, id))

    async def Cancel(self, request: client_pb2.CancelRequest, context: Any) -> client_pb2.Job:
        """Give a job up. One that was cancelled already is what was wished for."""

        def facts(cluster: Cluster) -> Iterable[Event]:
            job = cluster.job(JobId(request.job_id))
            if job is not None and job.state.name == "CANCELLED":
                return []
            return [e.CancelRequested(JobId(request.job_id), request.now)]

        return await self._loop.tell(facts, lambda cluster: self._show(cluster, request.job_id))

    async def _wish(self, id: str, event: Event) -> client_pb2.Job:
        return await self._loop.tell(lambda _: [event], lambda cluster: self._show(cluster, id))

    # --- jobs ---

    async def ListJobs(self, request: client_pb2.ListJobsRequest, context: Any) -> client_pb2.ListJobsReply:
        """All unfinished jobs in order of submission; with ``all``, the finished ones too."""

        def jobs(cluster: Cluster) -> list[client_pb2.Job]:
            now = self._clock.now()
            source = cluster.state.jobs if request.all else cluster.state.unfinished
            return [job_message(job, now) for job in source.values()]

        return client_pb2.ListJobsReply(jobs=await self._loop.ask(jobs))

    async def ShowJob(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Everything on one job."""
        return await self._loop.ask(lambda cluster: self._show(cluster, request.job_id))

    async def ShowStory(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.StoryReply:
        """Every event that one job went through."""
        await self._loop.ask(lambda cluster: _found(cluster, request.job_id))
        stored = await asyncio.to_thread(lambda: list(self._store.events(job=request.job_id)))
        return client_pb2.StoryReply(events=[event_message(line) for line in stored])

    async def Explain(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Explanation:
        """Why a job waits, and when it may start."""

        def explained(cluster: Cluster) -> client_pb2.Explanation:
            job, now = _found(cluster, request.job_id), self._clock.now()
            return explanation_message(job, explain(cluster.state, job, now))

        return await self._loop.ask(explained)

    async def WatchJobs(self, request: client_pb2.WatchJobsRequest, context: Any) -> AsyncIterator[client_pb2.Job]:
        """The jobs now, then each whenever it changes; ends when all that were named are finished."""
        wanted = list(dict.fromkeys(request.job_ids))
        with self._changes.watch() as watcher:
            shown, over = await self._loop.ask(lambda cluster: self._watched(cluster, wanted, None))
            while True:
                for message in shown:
                    yield message
                if over:
                    return
                changed = await watcher.wait_changed()
                shown, over = await self._loop.ask(lambda cluster: self._watched(cluster, wanted, changed))  # noqa: B023

    def _watched(
        self, cluster: Cluster, wanted: list[str], changed: set[JobId] | None
    ) -> tuple[list[client_pb2.Job], bool]:
        """The jobs to show: the wanted ones, or all unfinished ones at first, of which something changed.

        And whether nothing can follow, because those that were named are finished.
        """
        now = self._clock.now()
        if changed is None:
            jobs = [_found(cluster, id) for id in wanted] or list(cluster.state.unfinished.values())
        else:
            jobs = [cluster.state.jobs[id] for id in sorted(changed) if id in cluster.state.jobs]
        over = bool(wanted) and all(_found(cluster, id).state.finished for id in wanted)
        return [job_message(job, now) for job in jobs if not wanted or job.id in wanted], over

    def _show(self, cluster: Cluster, id: str) -> client_pb2.Job:
        return job_message(_found(cluster, id), self._clock.now())

    # --- events and logs ---

    async def WatchEvents(
        self, request: client_pb2.WatchEventsRequest, context: Any
    ) -> AsyncIterator[client_pb2.Event]:
        """The journal behind ``after_sequence``, then what is added to it."""
        last = request.after_sequence
        with self._changes.watch() as watcher:
            while True:
                lines = await asyncio.to_thread(lambda: list(self._store.events(last, limit=EVENTS_AT_ONCE)))  # noqa: B023
                for line in lines:
                    yield event_message(line)
                    last = line.sequence
                if not lines:
                    if not request.follow:
                        return
                    await watcher.wait_changed()

    async def ReadLogs(self, request: client_pb2.ReadLogsRequest, context: Any) -> AsyncIterator[client_pb2.LogChunk]:
        """The logs of one attempt, or of all in order; with ``follow``, until the job is finished.

        Of an attempt on several nodes it is what its part on one of them printed; with ``rank``, only that one.
        """
        number = request.attempt or 1
        with self._changes.watch() as watcher:
            while True:
                attempt, node, finished = await self._loop.ask(lambda c: _attempt(c, request, number))  # noqa: B023
                if attempt is not None and (node is None or has_started(attempt, node) or has_ended(attempt, node)):
                    if node is not None:
                        async for data in self._attempt_log(request, attempt, node):
                            yield client_pb2.LogChunk(attempt=number, data=data)
                    if request.attempt:
                        return
                    number += 1
                elif request.follow and not finished:
                    await watcher.wait_changed()
                elif request.attempt and attempt is None:
                    message = f"job {request.job_id} has no attempt {request.attempt}"
                    raise RefusedError(Refusal(RefusalKind.UNKNOWN, message))
                else:
                    return

    async def _attempt_log(
        self, request: client_pb2.ReadLogsRequest, attempt: Attempt, node: NodeId
    ) -> AsyncIterator[bytes]:
        offset, rank = 0, request.rank if request.HasField("rank") else None
        while True:
            window = await self._agents.read_log(
                node, request.job_id, attempt.number, offset, LOG_WINDOW_BYTES, request.follow, rank
            )
            if window.error:
                if not has_started(attempt, node):  # it never ran, and so wrote nothing
                    return
                raise LogUnavailableError(f"log of job {request.job_id}: {window.error}")
            if window.data:
                yield window.data
            offset += len(window.data)
            if window.end or not (window.data or request.follow):
                return

    # --- the cluster ---

    async def ListNodes(self, request: client_pb2.ListNodesRequest, context: Any) -> client_pb2.ListNodesReply:
        """Every node that ever registered."""

        def reply(cluster: Cluster) -> client_pb2.ListNodesReply:
            now = self._clock.now()
            known = cluster.state.books.nodes
            said = {id: (self._agents.readings(id), self._agents.hello(id)) for id in known}
            nodes = [node_message(node, cluster, now, *said[id]) for id, node in sorted(known.items())]
            return client_pb2.ListNodesReply(nodes=nodes, foreign_gpu_s=gpu_seconds(cluster.state, now))

        return await self._loop.ask(reply)

    async def ShowCluster(self, request: client_pb2.ShowClusterRequest, context: Any) -> client_pb2.ClusterInfo:
        """Which cluster this is, and how it is."""

        def info(cluster: Cluster) -> client_pb2.ClusterInfo:
            message = client_pb2.ClusterInfo()
            message.CopyFrom(self._about)
            message.recovering = bool(cluster.state.awaited)
            message.jobs_unfinished = len(cluster.state.unfinished)
            message.now = self._clock.now()
            return message

        return await self._loop.ask(info)

    async def Quiesce(
        self, request: client_pb2.QuiesceRequest, context: Any
    ) -> AsyncIterator[client_pb2.QuiesceProgress]:
        """Stop everything, and tell how many attempts are left until it is 0 or only silent nodes have some."""
        with self._changes.watch() as watcher:
            await self._loop.tell(lambda _: [e.Quiesced(request.kill)], lambda _: None)
            while True:
                left, reachable = await self._loop.ask(self._attempts_left)
                yield client_pb2.QuiesceProgress(attempts_left=left)
                if not reachable:
                    return
                await watcher.wait_changed()

    def _attempts_left(self, cluster: Cluster) -> tuple[int, int]:
        """Attempts whose GPUs are not free yet, and those of them on connected nodes."""
        jobs = cluster.state.jobs.values()
        held = [attempt for job in jobs if (attempt := job.holding or job.live) is not None]
        connected = [a for a in held if all(self._agents.connected(NodeId(node)) for node in a.allocation.node_ids)]
        return len(held), len(connected)


def about(store: Store, epoch: int, version: str, policy_name: str) -> client_pb2.ClusterInfo:
    """What stays the same about a cluster while its master runs."""
    return client_pb2.ClusterInfo(cluster_id=store.cluster_id, epoch=epoch, version=version, policy=policy_name)


def _check_user(user: str) -> None:
    if len(user) > MAX_USER_LENGTH or not user.isprintable():
        raise SpecError("user", f"is not a name of at most {MAX_USER_LENGTH} printable characters")


def _found(cluster: Cluster, id: str) -> Job:
    job = cluster.job(JobId(id))
    if job is None:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, f"job {id} does not exist"))
    return job


def _attempt(
    cluster: Cluster, request: client_pb2.ReadLogsRequest, number: int
) -> tuple[Attempt | None, NodeId | None, bool]:
    """The job's attempt of that number if there is one, the node to be asked, and whether the job is finished."""
    job = _found(cluster, request.job_id)
    attempt = job.attempts[number - 1] if number <= len(job.attempts) else None
    return attempt, node_of_part(request, job, attempt) if attempt is not None else None, job.state.finished


def _try_out(cluster: Cluster, spec: JobSpec, user: str) -> client_pb2.SubmitReply:
    """What a submit would be answered, and why it would be refused."""
    refusal = cluster.refusal(e.JobSubmitted(JobId(""), spec, user))
    if refusal is not None:
        raise RefusedError(refusal)
    job = Job(JobId(""), spec, user, 0.0, 0, spec.gpus_min, spec.gpus_max, gpu_mem_bytes=spec.gpu_mem_bytes)
    needs = memory.learned(cluster.state, job)
    return client_pb2.SubmitReply(
        gpu_mem_bytes=0 if needs is None else needs.mem_bytes, gpu_mem_from="" if needs is None else needs.reason
    )
