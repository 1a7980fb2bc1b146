"""The clients' side of the master: every verb of `ebb` ends in one of these methods."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import islice
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.job.gang import has_ended, has_started
from ebbtide_core.job.job import ITS_TURN, Attempt, Job
from ebbtide_core.job.wait_reason import waited
from ebbtide_core.lifecycle.pool_membership import with_pool
from ebbtide_core.measuring import gpu_memory
from ebbtide_core.model import limits
from ebbtide_core.model.spec import JobSpec, validate
from ebbtide_core.model.types import JobId, JobState, NodeId
from ebbtide_core.nodes.foreign_use import gpu_seconds
from ebbtide_core.views.change_effect import in_short, missing_effects
from ebbtide_protos.spec import share_to_parts, spec_from_message
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.arrays import (
    awaiting,
    is_whole,
    members,
    named,
    shown,
    submitted,
    told_apart,
    wishes,
)
from ebbtide_master.api.bookings import BookingsOfClients
from ebbtide_master.api.connecting import Connecting
from ebbtide_master.api.copies import Copies
from ebbtide_master.api.explaining import Explaining
from ebbtide_master.api.fencing_methods import FencingMethods
from ebbtide_master.api.identity_methods import IdentityMethods
from ebbtide_master.api.idle_limit import with_idle_limit
from ebbtide_master.api.joining import Joining
from ebbtide_master.api.journal_tail import begin_of_events
from ebbtide_master.api.limiting import Limits
from ebbtide_master.api.log_parts import LogBegins, attempt_of, window_of
from ebbtide_master.api.notice_methods import NoticeMethods
from ebbtide_master.api.pages import PAGE_OF_STREAM, check_ids, names_of, pages, shown_of, to_be_shown, watched
from ebbtide_master.api.reloading import ReloadMethod
from ebbtide_master.api.removing import Removing
from ebbtide_master.api.request_checks import check_rank, check_submission, check_user, digest_of, known_job
from ebbtide_master.api.requeue import Requeues
from ebbtide_master.api.snapshot_methods import SnapshotMethods
from ebbtide_master.api.unfinished_jobs import Queued
from ebbtide_master.api.usage import LEDGERS, UsageOfClients
from ebbtide_master.api.views import event_message, node_message, pool_messages, submit_reply
from ebbtide_master.changes import Changes
from ebbtide_master.clock import Clock
from ebbtide_master.config.limits import Bounds
from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import PAUSE, Facts, MasterLoop, Parts, RefusedError
from ebbtide_master.nodes.agents import Agents, LogUnavailableError
from ebbtide_master.nodes.snapshots import Snapshots
from ebbtide_master.notify.notifier import Notifier
from ebbtide_master.store.environments import Environments
from ebbtide_master.store.journal import Store
from ebbtide_master.throttle.open_calls import OneEach
from ebbtide_master.throttle.rates import Meter, Rates
from ebbtide_master.throttle.stream_turns import Telling

CHANGES_OF_A_PART: Final = 200
"""Are looked at a time, in less than a millisecond."""


class Clients(
    LogBegins,
    Removing,
    UsageOfClients,
    BookingsOfClients,
    SnapshotMethods,
    NoticeMethods,
    Connecting,
    Explaining,
    Requeues,
    Limits,
    Joining,
    FencingMethods,
    IdentityMethods,
    ReloadMethod,
):
    """Turns wishes into facts through the loop, and shows what is."""

    bounds = Bounds()

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
        environments: Environments,
    ) -> None:
        self.queued, self.telling = Queued(limits.MAX_UNFINISHED_JOBS_PER_USER), Telling(Meter(Rates()))
        self._copies, self._ledgers = Copies(), OneEach(LEDGERS)
        self._environments = environments
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
        spec = with_pool(spec_from_message(request.spec), self._loop.settings)
        spec = with_idle_limit(spec, request.spec, self._loop.settings)
        check_submission(request, self._store)
        check_rank(self.bounds, spec.priority, spec.weight)
        self._check_snapshot(spec)
        spec, warnings = self._with_notices(spec)
        validate(spec)  # all of it: the core does not see its environment
        chosen, operation = list[JobId](), (request.operation_id, digest_of(request))

        def facts(cluster: Cluster) -> Facts:
            jobs = yield from members(request, awaiting(cluster, spec, request.user))
            if known := known_job(cluster, *operation):
                chosen.append(known)
                if not is_whole(cluster, known):  # the master ended before it had accepted all
                    yield from submitted(cluster, known, jobs, request.user, request.hold)
                return
            self.queued.add(cluster, request.user, len(jobs))
            chosen.append(cluster.state.gates.next_id(cluster.state.submissions))
            self._environments.note(chosen[0], spec.env)
            yield from submitted(cluster, chosen[0], jobs, request.user, request.hold, operation)

        if request.dry_run:
            reply = await self._loop.ask_in_parts(lambda cluster: _try_out(cluster, request, spec))
        else:
            reply = await self._loop.tell(facts, lambda cluster: submit_reply(chosen[0], cluster.job(chosen[0])))
        reply.warnings.extend(warnings)
        return reply

    async def Suspend(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Have a job step aside until it is resumed."""
        return await self._pause(request.job_id, e.SuspendRequested)

    async def Resume(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Let a suspended job go on."""
        return await self._wish(request.job_id, e.ResumeRequested)

    async def Hold(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Keep a job from starting (again)."""
        return await self._pause(request.job_id, e.HoldRequested)

    async def Release(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """End a hold."""
        return await self._wish(request.job_id, e.ReleaseRequested)

    async def Resize(self, request: client_pb2.ResizeRequest, context: Any) -> client_pb2.Job:
        """Give a job another range of GPUs."""
        low = share_to_parts("--gpus", request.gpus_min)
        high = share_to_parts("--gpus", request.gpus_max) if request.HasField("gpus_max") else low
        return await self._wish(request.job_id, lambda id: e.ResizeRequested(id, low, high))

    async def Drill(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Have a running job step aside and come back at once."""
        return await self._wish(request.job_id, e.DrillRequested)

    async def Change(self, request: client_pb2.ChangeRequest, context: Any) -> client_pb2.Job:
        """Give a job another priority, weight or pool. One that has them already is what was wished for."""
        check_user(request.user)
        check_rank(
            self.bounds,
            request.priority if request.HasField("priority") else None,
            request.weight if request.HasField("weight") else None,
        )
        if request.HasField("max_concurrent") or request.HasField("max_slots"):
            return await self.change_limits(request)
        changes: list[e.JobChanged] = []

        def facts(cluster: Cluster) -> Facts:
            def changed(id: JobId) -> e.JobChanged:
                return _changed(cluster.job(id), id, request)

            # All of it, or nothing: what is refused comes first.
            refused = False
            for job in named(cluster, request.job_id) if request.HasField("pool") else ():
                refused = refused or cluster.refusal(changed(job.id)) is not None
                yield PAUSE
            if request.HasField("pool") and not refused:
                yield from wishes(cluster, request.job_id, lambda id: _moved(cluster.job(id), id, request))
            for change in wishes(cluster, request.job_id, changed):
                if isinstance(change, e.JobChanged):
                    changes.append(change)
                yield change

        def answer(cluster: Cluster) -> Parts[client_pb2.Job]:
            message = yield from self._show(cluster, request.job_id)
            message.effect = yield from _effect(cluster, changes)
            return message

        return await self._loop.tell_in_parts(facts, answer)

    async def Cancel(self, request: client_pb2.CancelRequest, context: Any) -> client_pb2.Job:
        """Give a job up. One that was cancelled already is what was wished for."""

        def facts(cluster: Cluster) -> Facts:
            if (jobs := named(cluster, request.job_id)) and all(job.state is JobState.CANCELLED for job in jobs):
                return []
            return wishes(cluster, request.job_id, lambda id: _cancelled(cluster.job(id), id, request))

        return await self._loop.tell_in_parts(facts, lambda cluster: self._show(cluster, request.job_id))

    async def _pause(self, id: str, kind: type[e.HoldRequested | e.SuspendRequested]) -> client_pb2.Job:
        """With what the job waited for until then."""

        def facts(cluster: Cluster) -> Facts:
            return wishes(cluster, id, lambda one: kind(one, _waited(cluster.job(one))))

        return await self._loop.tell_in_parts(facts, lambda cluster: self._show(cluster, id))

    async def _wish(self, id: str, wish: Callable[[JobId], Event]) -> client_pb2.Job:
        return await self._loop.tell_in_parts(lambda c: wishes(c, id, wish), lambda c: self._show(c, id))

    # --- jobs ---

    async def ListJobs(self, request: client_pb2.ListJobsRequest, context: Any) -> client_pb2.ListJobsReply:
        """All unfinished jobs in order of submission; with ``all``, the finished ones too."""

        check_ids(request.job_ids)
        who = caller().user if request.mine else request.of_user
        names = await self._loop.ask_in_parts(lambda cluster: names_of(cluster, request, who))
        reply = client_pb2.ListJobsReply()
        for page in pages(names):
            async with self.telling.page(caller(), limits.LISTED_COST * len(page)):
                reply.jobs.extend(await self._loop.ask_in_parts(partial(shown_of, names=page, now=self._clock.now())))
        return reply

    async def ShowJob(self, request: client_pb2.JobRequest, context: Any) -> client_pb2.Job:
        """Everything on one job; of its environment, which may hold secrets, the names."""
        id, user = request.job_id, caller().user
        if id.startswith("@"):
            id = await self._loop.ask(lambda cluster: told_apart(cluster, request.job_id, user))
        message = await self._loop.ask_in_parts(lambda cluster: self._show(cluster, id))
        message.spec.env.update(dict.fromkeys(self._environments.of(JobId(id)), ""))
        return message

    async def WatchJobs(self, request: client_pb2.WatchJobsRequest, context: Any) -> AsyncIterator[client_pb2.Job]:
        """The jobs now, then each whenever it changes; ends when all that were named are finished."""
        check_ids(request.job_ids)
        wanted, ends = list(dict.fromkeys(request.job_ids)), set[str]()
        with self._changes.watch() as watcher:
            due, over = await self._loop.ask_in_parts(lambda cluster: to_be_shown(cluster, wanted, None, ends))
            while True:
                for page in pages(due, PAGE_OF_STREAM):
                    async with self.telling.page(caller(), len(page)):
                        ask = partial(watched, names=page, by_name=bool(wanted), now=self._clock.now())
                        for message in await self._loop.ask_in_parts(ask):
                            yield message
                if over:
                    return
                changed = await watcher.wait_changed()
                ask_on = partial(to_be_shown, wanted=wanted, changed=changed, ends=ends)
                due, over = await self._loop.ask_in_parts(ask_on)

    def _show(self, cluster: Cluster, id: str) -> Parts[client_pb2.Job]:
        return shown(cluster, id, self._clock.now())

    # --- events and logs ---

    async def WatchEvents(
        self, request: client_pb2.WatchEventsRequest, context: Any
    ) -> AsyncIterator[client_pb2.Event]:
        """The journal behind ``after_sequence``, then what is added to it."""
        last = await asyncio.to_thread(begin_of_events, self._store, request)
        with self._changes.watch() as watcher:
            while True:
                lines = await asyncio.to_thread(lambda: list(self._store.events(last, limit=limits.EVENTS_AT_ONCE)))  # noqa: B023
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
        number, offset = await self._log_begin(request)
        with self._changes.watch() as watcher:
            while True:
                attempt, node, finished = await self._loop.ask(lambda c: attempt_of(c, request, number))  # noqa: B023
                if attempt is not None and (node is None or has_started(attempt, node) or has_ended(attempt, node)):
                    if node is not None:
                        async for chunk in self._attempt_log(request, attempt, node, offset):
                            yield chunk
                    if request.attempt:
                        return
                    number, offset = number + 1, 0
                elif request.follow and not finished:
                    await watcher.wait_changed()
                elif request.attempt and attempt is None:
                    message = f"job {request.job_id} has no attempt {request.attempt}"
                    raise RefusedError(Refusal(RefusalKind.UNKNOWN, message))
                else:
                    return

    async def _attempt_log(
        self, request: client_pb2.ReadLogsRequest, attempt: Attempt, node: NodeId, offset: int
    ) -> AsyncIterator[client_pb2.LogChunk]:
        while True:
            order = window_of(request, attempt, offset=offset, max_bytes=limits.LOG_WINDOW_BYTES, wait=request.follow)
            window = await self._agents.read_log(node, order)
            if window.error:
                if not has_started(attempt, node):  # it never ran, and so wrote nothing
                    return
                raise LogUnavailableError(f"log of job {request.job_id}: {window.error}")
            after = max(window.next, offset + len(window.data))
            if window.data:
                yield client_pb2.LogChunk(attempt=attempt.number, data=window.data, offset=offset, next=after)
            offset = after
            if window.end or not (window.data or request.follow):
                return

    # --- the cluster ---

    async def ListNodes(self, request: client_pb2.ListNodesRequest, context: Any) -> client_pb2.ListNodesReply:
        """Every node that ever registered."""

        def reply(cluster: Cluster) -> Parts[client_pb2.ListNodesReply]:
            now = self._clock.now()
            agents = self._agents
            reply = client_pb2.ListNodesReply(foreign_gpu_s=gpu_seconds(cluster.state, now))
            for id, node in sorted(cluster.state.nodes.items()):
                said = agents.readings(id), agents.hello(id), agents.certificate_ends(id)
                reply.nodes.append(node_message(node, cluster, now, *said))
                yield
            reply.pools.extend(pool_messages(cluster.state))
            reply.doubted.extend(sorted(cluster.state.doubted))
            reply.unheard.extend(sorted(cluster.state.unheard))
            return reply

        return await self._loop.ask_in_parts(reply)

    async def ShowCluster(self, request: client_pb2.ShowClusterRequest, context: Any) -> client_pb2.ClusterInfo:
        """Which cluster this is, and how it is."""

        def info(cluster: Cluster) -> client_pb2.ClusterInfo:
            message = client_pb2.ClusterInfo()
            message.CopyFrom(self._about)
            message.recovering = bool(cluster.state.awaited or cluster.state.unheard)
            message.jobs_unfinished = len(cluster.state.unfinished)
            message.now = self._clock.now()
            message.pools.extend(pool_messages(cluster.state))
            if self.front is not None and (ends := self.front.certificate_ends()) is not None:
                message.certificate_ends = ends
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
        held, silent = set[JobId](), set[JobId]()
        for node in cluster.state.nodes.values():
            held |= node.attempts
            silent |= set() if self._agents.connected(node.id) else node.attempts
        return len(held), len(held - silent)


def about(store: Store, epoch: int, version: str, policy_name: str) -> client_pb2.ClusterInfo:
    """What stays the same about a cluster while its master runs."""
    return client_pb2.ClusterInfo(cluster_id=store.cluster_id, epoch=epoch, version=version, policy=policy_name)


def _changed(job: Job | None, id: JobId, request: client_pb2.ChangeRequest) -> e.JobChanged:
    """Its other priority or weight; if there is no such job, the cluster refuses it."""
    old_priority, old_weight = (0, 0.0) if job is None else (job.priority, job.weight)
    priority = request.priority if request.HasField("priority") else old_priority
    weight = request.weight if request.HasField("weight") else old_weight
    return e.JobChanged(id, priority, weight, old_priority, old_weight, request.user)


def _effect(cluster: Cluster, changes: list[e.JobChanged]) -> Parts[str]:
    """What these changes do not do, in words."""
    jobs, found, pages = cluster.state.jobs, list[str](), range(0, len(changes), CHANGES_OF_A_PART)
    for start in pages:
        found += missing_effects(cluster.policies, jobs, changes[start : start + CHANGES_OF_A_PART])
        yield
    return in_short(found)


def _moved(job: Job | None, id: JobId, request: client_pb2.ChangeRequest) -> e.JobMoved:
    return e.JobMoved(id, request.pool, "" if job is None else job.pool, request.user)


def _cancelled(job: Job | None, id: JobId, request: client_pb2.CancelRequest) -> e.CancelRequested:
    """With what it waited for until then."""
    return e.CancelRequested(id, request.now, _waited(job))


def _waited(job: Job | None) -> str:
    """For what it waits, if it does."""
    return waited(job) or ITS_TURN if job is not None and job.waiting else ""


def _try_out(cluster: Cluster, request: client_pb2.SubmitRequest, spec: JobSpec) -> Parts[client_pb2.SubmitReply]:
    """What a submit would be answered, and why it would be refused."""
    jobs = yield from members(request, awaiting(cluster, spec, request.user))
    [first] = islice(submitted(cluster, JobId(""), jobs, request.user, False), 1)
    assert first is not PAUSE
    refusal, spec = cluster.refusal(first), jobs[0][0]
    if refusal is not None:
        raise RefusedError(refusal)
    job = Job(JobId(""), spec, request.user, 0.0, 0, spec.gpus_min, spec.gpus_max, gpu_mem_bytes=spec.gpu_mem_bytes)
    job.pool = spec.pool
    needs = gpu_memory.learned(cluster.state, job)
    return client_pb2.SubmitReply(
        gpu_mem_bytes=0 if needs is None else needs.mem_bytes, gpu_mem_from="" if needs is None else needs.reason
    )
