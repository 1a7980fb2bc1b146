"""Explains why a job waits, when it starts, and when a changed job would (``ebb explain``)."""

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.job.job import Job
from ebbtide_core.model.settings import DEFAULT_POOL
from ebbtide_core.model.types import JobId
from ebbtide_core.views.change_effect import in_short, missing_effects
from ebbtide_core.views.explain import Explanation, explain
from ebbtide_core.views.forecast import MOST_JOBS, Forecast, forecast, forecast_all, fork
from ebbtide_protos.spec import share_to_parts
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.copies import LONGEST_S, ForkedCopies
from ebbtide_master.api.named_jobs import job_named
from ebbtide_master.api.views import STATES, reason_of
from ebbtide_master.identity.caller import caller
from ebbtide_master.identity.visibility import has_own_reason, is_own, public_words
from ebbtide_master.loop import RefusedError
from ebbtide_master.throttle.fair_queue import use_queue

SHARED_S: Final = 10.0
"""Seconds for which a forecast of a queue is shared by all who ask."""
MOST_FORESEEN: Final = 200
"""Waiting jobs of a pool whose starts are foreseen together."""
FORECASTS: Final = "forecasts of queues"

Changes = Callable[[Cluster], list[Event]]
"""Returns for a cluster the events of a change that a user asks about."""


class ExplanationService:
    """Explains jobs; it computes forecasts in a copy of this process."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._clock = master.clock
        self._copies = ForkedCopies()
        self._supplies = master.supplies
        self._looks: dict[str, tuple[float, asyncio.Task[client_pb2.ForecastQueueReply]]] = {}

    async def Explain(self, request: client_pb2.ExplainRequest, context: Any) -> client_pb2.Explanation:
        """Explain why a job waits, and when it may start."""
        now = self._clock.now()
        async with self._copies.turn(caller().user):
            message, seen = await self._loop.ask(lambda cluster: _explained(cluster, request, now, self._copies))
            if message.HasField("ahead"):
                message.supplies.extend(self._supplies.of_pool(message.pool or DEFAULT_POOL, now))
            if seen is None:
                return message
            found = await seen
        if found is None:
            message.forecast.basis = f"not foreseen: that took longer than {LONGEST_S:g} s"
        else:
            message.MergeFrom(client_pb2.Explanation.FromString(found))
        return message

    async def ForecastQueue(
        self, request: client_pb2.ForecastQueueRequest, context: Any
    ) -> client_pb2.ForecastQueueReply:
        """Foresee when the first jobs of a queue start. All who ask within `SHARED_S` get the result of one look."""
        pool = await self._loop.ask(lambda cluster: _pool_named(cluster, request.pool))
        now = asyncio.get_running_loop().time()
        begun, look = self._looks.get(pool, (-SHARED_S, None))
        if look is None or (look.done() and (now - begun >= SHARED_S or look.exception() is not None)):
            look = asyncio.create_task(self._look(pool), name=f"forecast of {pool}")
            self._looks[pool] = now, look
        return await asyncio.shield(look)

    async def _look(self, pool: str) -> client_pb2.ForecastQueueReply:
        use_queue(FORECASTS)
        now = self._clock.now()
        async with self._copies.turn(FORECASTS):
            why_not, seen = await self._loop.ask(lambda cluster: _foreseen_queue(cluster, pool, now, self._copies))
            found = None if seen is None else await seen
        if found is None:
            late = f"not foreseen: that took longer than {LONGEST_S:g} s"
            return client_pb2.ForecastQueueReply(at=now, why_not=why_not or late)
        return client_pb2.ForecastQueueReply.FromString(found)


def _pool_named(cluster: Cluster, name: str) -> str:
    """Return the pool with that name, or the one where jobs go that name none. Raises `RefusedError`."""
    found = name or cluster.state.settings.gpu_pool
    if found not in cluster.state.pools:
        raise RefusedError(Refusal(RefusalKind.UNKNOWN, f"pool {name!r} does not exist"))
    return found


def _foreseen_queue(
    cluster: Cluster, pool: str, now: float, copies: ForkedCopies
) -> tuple[str, asyncio.Future[bytes | None] | None]:
    """Return why nothing can be foreseen, or a future for the forecast of a copy."""
    if (count := len(cluster.state.unfinished)) > MOST_JOBS:
        return f"not foreseen: {count} unfinished jobs are over the limit of {MOST_JOBS}", None
    head = [job.id for job in islice(cluster.state.pools[pool].queue, MOST_FORESEEN)]

    def work() -> bytes:
        ahead = fork(cluster)
        found = forecast_all(ahead, head, now)
        reply = client_pb2.ForecastQueueReply(at=now)
        for id in head:
            seen = found[id]
            reply.jobs.add(
                job_id=id,
                start_at=seen.start,
                basis=_public_basis(seen, ahead.state.jobs[id]),
                after=seen.after,
                preempts=seen.preempted,
            )
        return reply.SerializeToString()

    return "", copies.compute(work)


def _public_basis(seen: Forecast, job: Job) -> str:
    """Return how a forecast is known, as far as everybody may read it; ``job`` is as it was at the forecast's end."""
    held_by = job.held_by.value if job.held_by is not None else ""
    quotes = seen.start is None and job.reason and seen.basis.endswith(job.reason)
    if quotes and is_own(held_by, len(job.attempts), STATES[job.state], has_own_reason(job)):
        return ""
    return public_words(seen.basis)


def _explained(
    cluster: Cluster, request: client_pb2.ExplainRequest, now: float, copies: ForkedCopies
) -> tuple[client_pb2.Explanation, asyncio.Future[bytes | None] | None]:
    """Return what is known at once, and a future for the forecast of a copy, or None if none is possible."""
    job = job_named(cluster, request.job_id)
    changes, explanation = _changes(request), explain(cluster.state, job, now, cluster.policies.get(job.pool))
    message = explanation_message(job, explanation)
    waits = not job.state.finished and job.planned is None and job.live is None
    if changes is not None:
        asked = changes(cluster)
        _check(cluster, job, waits, asked)
        changed = [change for change in asked if isinstance(change, e.JobChanged)]
        policy = cluster.policies.get(request.pool or job.pool)
        policies = {} if policy is None else {job.pool: policy}
        message.no_effect = in_short(missing_effects(policies, cluster.state.jobs, changed))
    if not waits:
        return message, None
    if (count := len(cluster.state.unfinished)) > MOST_JOBS:
        message.forecast.basis = f"not foreseen: {count} unfinished jobs are over the limit of {MOST_JOBS}"
        return message, None
    return message, copies.compute(lambda: _foreseen(cluster, job.id, now, changes))


def _check(cluster: Cluster, job: Job, waits: bool, changes: list[Event]) -> None:
    """Raise `RefusedError` for a change that the cluster would refuse."""
    if not waits:
        what = f"job {job.id} is {job.state.value}: --what-if is about when a waiting job starts"
        raise RefusedError(Refusal(RefusalKind.CONFLICT, what))
    for change in changes:
        if (refusal := cluster.refusal(change)) is not None:
            raise RefusedError(refusal)


def _changes(request: client_pb2.ExplainRequest) -> Changes | None:
    """Return a function that gives the requested changes for a cluster, or None if none are requested."""
    standing = request.HasField("priority") or request.HasField("weight")
    size, pool = request.HasField("gpus_min"), request.HasField("pool")
    if not (standing or size or pool):
        return None

    def changes(cluster: Cluster) -> list[Event]:
        job, found = cluster.state.jobs[JobId(request.job_id)], list[Event]()
        if standing:
            priority = request.priority if request.HasField("priority") else job.priority
            weight = request.weight if request.HasField("weight") else job.weight
            found.append(e.JobChanged(job.id, priority, weight, job.priority, job.weight))
        if size:
            low = share_to_parts("--what-if gpus", request.gpus_min)
            high = share_to_parts("--what-if gpus", request.gpus_max) if request.HasField("gpus_max") else low
            found.append(e.ResizeRequested(job.id, low, high))
        if pool:
            found.append(e.JobMoved(job.id, request.pool, job.pool))
        return found

    return changes


def _foreseen(cluster: Cluster, job: JobId, now: float, changes: Changes | None) -> bytes:
    """Return a serialised explanation with the forecast of the job's start, and of its start after the changes."""
    ahead = fork(cluster)
    message = client_pb2.Explanation(forecast=forecast_message(forecast(ahead, job, now)))
    if changes is not None:
        ahead = fork(cluster)
        message.what_if.CopyFrom(forecast_message(forecast(ahead, job, now, changes(ahead))))
    return message.SerializeToString()


def forecast_message(seen: Forecast) -> client_pb2.Forecast:
    """Return the message for a forecast."""
    return client_pb2.Forecast(
        start_at=seen.start,
        basis=seen.basis,
        after=seen.after,
        preempts=seen.preempted,
        nodes=seen.allocation.node_ids if seen.allocation is not None else (),
    )


def explanation_message(job: Job, explanation: Explanation) -> client_pb2.Explanation:
    """Return the message for an explanation, without a forecast."""
    source = explanation.remaining_from
    return client_pb2.Explanation(
        job_id=job.id,
        state=job.state.value,
        reason=reason_of(job),
        held_by=job.held_by.value if job.held_by is not None else "",
        attempt=len(job.attempts),
        own_reason=has_own_reason(job),
        needs=explanation.needs,
        ahead=explanation.ahead,
        nodes=[
            client_pb2.NodeView(node=view.node, idle_gpus=view.idle, gpus=view.gpus, obstacle=view.obstacle)
            for view in explanation.nodes
        ],
        room_at=explanation.room_at,
        basis=explanation.basis,
        remaining_s=explanation.remaining_s,
        remaining_from=source.value if source is not None else "",
        pool=job.pool,
        stays=[
            client_pb2.Stays(reason=stays.why.reason, until=stays.why.until, job_ids=stays.jobs, jobs=stays.many)
            for stays in explanation.stays
        ],
    )
