"""Shows nodes, takes them out of service and puts them back, and takes in what operators know of silent nodes."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from typing import Any, Final

from ebbtide_core import events as e
from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.events import Event
from ebbtide_core.lifecycle.removing import saved_there_alone
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_core.nodes.draining import drain_forecasts, forecast_drain
from ebbtide_core.nodes.foreign_use import gpu_seconds
from ebbtide_core.resources.books import Node
from ebbtide_core.supply.supply import MOST_NODES
from ebbtide_core.views.demand import copy_of, demand
from ebbtide_protos.v1 import client_pb2

from ebbtide_master.api.context import Context
from ebbtide_master.api.copies import LONGEST_S, ForkedCopies
from ebbtide_master.api.request_checks import MAX_USER_LENGTH, check_words
from ebbtide_master.api.views import node_job_message, node_message, pool_messages
from ebbtide_master.convert import registration_from_hello
from ebbtide_master.identity.caller import caller
from ebbtide_master.loop import Parts, RefusedError

MAX_SUPPLY_NAME_LENGTH: Final = 64
MAX_SUPPLY_WORDS_LENGTH: Final = 200
MAX_REASON_LENGTH: Final = 200
MOST_NAMED: Final = 100
"""Jobs that are named of those that would start there."""


class NodeService:
    """Shows nodes, and carries out what operators decide about them."""

    def __init__(self, master: Context) -> None:
        self._loop = master.loop
        self._clock = master.clock
        self._changes = master.changes
        self._sessions = master.sessions
        self._front = master.front
        self._copies = ForkedCopies()
        self._supplies = master.supplies

    async def ListNodes(self, request: client_pb2.ListNodesRequest, context: Any) -> client_pb2.ListNodesReply:
        """List all nodes that ever registered and were not removed."""

        def reply(cluster: Cluster) -> Parts[client_pb2.ListNodesReply]:
            now = self._clock.now()
            reply = client_pb2.ListNodesReply(foreign_gpu_s=gpu_seconds(cluster.state, now))
            for _, node in sorted(cluster.state.nodes.items()):
                reply.nodes.append(self._message(node, cluster, now))
                yield
            reply.pools.extend(pool_messages(cluster.state))
            reply.doubted.extend(sorted(cluster.state.silent.doubted))
            reply.unheard.extend(sorted(cluster.state.unheard))
            return reply

        return await self._loop.ask_in_parts(reply)

    # --- out of service, and into it ---

    async def DrainNode(self, request: client_pb2.DrainNodeRequest, context: Any) -> client_pb2.NodeReply:
        """Take a node out of service, and show what becomes of its jobs, and whose checkpoints it alone has."""
        drained = self._drained(request)
        return await self._loop.tell_in_parts(
            lambda _: [drained], lambda cluster: self._show_drained(cluster, drained.node)
        )

    async def ForecastDrain(self, request: client_pb2.DrainNodeRequest, context: Any) -> client_pb2.NodeReply:
        """Show what would become of a node's jobs, computed in a copy of this process in which it is drained."""
        drained = self._drained(request)
        async with self._copies.turn(caller().user):
            found = await (await self._loop.ask(lambda cluster: self._in_a_copy(cluster, drained)))
        if found is None:
            late = f"what would become of the jobs on node {drained.node} is not known after {LONGEST_S:g} s"
            raise RefusedError(Refusal(RefusalKind.LIMIT, late))
        return client_pb2.NodeReply.FromString(found)

    def _drained(self, request: client_pb2.DrainNodeRequest) -> e.NodeDrained:
        """Return the event that the request asks for. Raises `SpecError`."""
        check_words("--reason", request.reason, MAX_REASON_LENGTH)
        check_words("user", request.user, MAX_USER_LENGTH)
        deadline = self._deadline(request)
        if request.force and deadline is None:
            raise SpecError("--force", "needs a --deadline, or --now")
        return e.NodeDrained(
            node=NodeId(request.node), user=request.user, reason=request.reason, deadline=deadline, force=request.force
        )

    def _in_a_copy(self, cluster: Cluster, drained: e.NodeDrained) -> asyncio.Future[bytes | None]:
        if (refusal := cluster.refusal(drained)) is not None:
            raise RefusedError(refusal)
        now = self._clock.now()

        def work() -> bytes:
            reply = client_pb2.NodeReply(node=self._message(cluster.state.nodes[drained.node], cluster, now))
            reply.jobs.extend(map(node_job_message, forecast_drain(cluster.state, drained, now)))
            return reply.SerializeToString()

        return self._copies.compute(work)

    async def ResumeNode(self, request: client_pb2.NodeRequest, context: Any) -> client_pb2.NodeReply:
        """Put a node into service again; a node that is in service already is no error."""
        check_words("user", request.user, MAX_USER_LENGTH)
        return await self._tell_node(NodeId(request.node), e.NodeResumed(NodeId(request.node), request.user))

    async def EndNode(self, request: client_pb2.EndNodeRequest, context: Any) -> client_pb2.NodeReply:
        """Record when a node is gone, and show what becomes of its jobs."""
        check_words("user", request.user, MAX_USER_LENGTH)
        ends_in_s = request.ends_in_s if request.HasField("ends_in_s") else None
        if ends_in_s is not None and not 0 <= ends_in_s <= limits.MAX_TIME_LIMIT_S:
            raise SpecError("--ends-in", f"is not between 0 and {limits.MAX_TIME_LIMIT_S:g} s from now")
        node = NodeId(request.node)
        return await self._tell_node(node, e.LoanChanged(node, ends_in_s, request.user))

    async def CountDemand(self, request: client_pb2.DemandRequest, context: Any) -> client_pb2.DemandReply:
        """Count how many more nodes like one the waiting jobs have a use for, in a copy of this process."""
        if not 1 <= request.nodes <= MOST_NODES:
            raise SpecError("nodes", f"is not between 1 and {MOST_NODES}")
        if not 0 <= request.after_s <= limits.MAX_TIME_LIMIT_S:
            raise SpecError("after_s", f"is not between 0 and {limits.MAX_TIME_LIMIT_S:g}")
        like = registration_from_hello(request.like)
        _check_supply(request.supply)
        async with self._copies.turn(caller().user):
            found = await (await self._loop.ask(lambda cluster: self._count_in_a_copy(cluster, request, like)))
        reply, beside = client_pb2.DemandReply(why_not=f"not found out within {LONGEST_S:g} s"), list[str]()
        if found is not None:
            said, beside = json.loads(found)
            reply = client_pb2.DemandReply(**said)
        if request.supply.name:
            self._supplies.note(like.pool, request.supply, beside, self._clock.now())
        return reply

    def _count_in_a_copy(
        self, cluster: Cluster, request: client_pb2.DemandRequest, like: e.NodeRegistered
    ) -> asyncio.Future[bytes | None]:
        if like.pool not in cluster.state.pools:
            raise RefusedError(Refusal(RefusalKind.UNKNOWN, f"pool {like.pool!r} does not exist"))
        now = self._clock.now()

        def work() -> bytes:
            cluster.follow(None)
            found = demand(cluster, [copy_of(like, number) for number in range(request.nodes)], now, request.after_s)
            said = {"nodes": len(found.nodes), "job_ids": found.jobs[:MOST_NAMED], "at": now}
            return json.dumps([said, found.beside]).encode()

        return self._copies.compute(work)

    async def WatchNode(self, request: client_pb2.NodeRequest, context: Any) -> AsyncIterator[client_pb2.NodeReply]:
        """Send a node now, and whenever its jobs change, until it has none or is in service again."""
        node, sent = NodeId(request.node), None
        with self._changes.watch() as watcher:
            while True:
                reply = await self._loop.ask_in_parts(lambda cluster: self._show_node(cluster, node))
                here = [job.job_id for job in reply.jobs]
                if sent != here or not reply.node.HasField("drain"):
                    sent = here
                    yield reply
                if not reply.jobs or not reply.node.HasField("drain"):
                    return
                await watcher.wait_changed()

    # --- silent nodes, and what is left there ---

    async def ConfirmDead(self, request: client_pb2.NodeRequest, context: Any) -> client_pb2.NodeReply:
        """Record on an operator's word that nothing that was on a node runs any more."""
        check_words("user", request.user, MAX_USER_LENGTH)
        node = NodeId(request.node)
        return await self._tell_node(node, e.NodeConfirmedDead(node=node, user=request.user))

    async def RemoveNode(self, request: client_pb2.NodeRequest, context: Any) -> client_pb2.RemoveNodeReply:
        """Forget a node that is lost and has no attempts."""
        check_words("user", request.user, MAX_USER_LENGTH)
        removed = e.NodeRemoved(NodeId(request.node), request.user)
        return await self._loop.tell(lambda _: [removed], lambda _: client_pb2.RemoveNodeReply())

    async def EndStray(self, request: client_pb2.EndStrayRequest, context: Any) -> client_pb2.NodeReply:
        """End a stray: an attempt that a node has and the master does not know."""
        check_words("user", request.user, MAX_USER_LENGTH)
        if not 0.0 <= request.grace_s <= limits.MAX_GRACE_S or math.isnan(request.grace_s):
            raise SpecError("--grace", f"is not between 0 and {limits.MAX_GRACE_S:g} s")
        fact = e.StrayEndRequested(
            node=NodeId(request.node),
            job=JobId(request.job_id),
            attempt=request.attempt,
            grace_s=request.grace_s,
            user=request.user,
        )
        return await self._tell_node(fact.node, fact)

    async def BelieveSilence(
        self, request: client_pb2.BelieveSilenceRequest, context: Any
    ) -> client_pb2.BelieveSilenceReply:
        """Record on an operator's word that nodes that fell silent together are down, and the master is not cut off."""
        check_words("user", request.user, MAX_USER_LENGTH)
        doubted: list[NodeId] = []

        def facts(cluster: Cluster) -> list[Event]:
            doubted.extend(sorted(cluster.state.silent.doubted))
            return [e.SilenceBelieved(request.user)]

        return await self._loop.tell(facts, lambda _: client_pb2.BelieveSilenceReply(nodes=doubted))

    # --- shared parts ---

    async def _tell_node(self, node: NodeId, fact: Event) -> client_pb2.NodeReply:
        return await self._loop.tell_in_parts(lambda _: [fact], lambda cluster: self._show_node(cluster, node))

    def _deadline(self, request: client_pb2.DrainNodeRequest) -> float | None:
        """Return the deadline of a drain in Unix seconds, or None."""
        if not request.HasField("deadline_s"):
            return None
        if not 0 <= request.deadline_s <= limits.MAX_TIME_LIMIT_S:
            raise SpecError("--deadline", f"is not between 0 and {limits.MAX_TIME_LIMIT_S:g} s from now")
        return self._clock.now() + request.deadline_s

    def _show_node(self, cluster: Cluster, id: NodeId) -> Parts[client_pb2.NodeReply]:
        now, node = self._clock.now(), cluster.state.nodes.get(id)
        if node is None:
            raise RefusedError(Refusal(RefusalKind.UNKNOWN, f"node {id} does not exist"))
        reply = client_pb2.NodeReply(node=self._message(node, cluster, now))
        for found in drain_forecasts(cluster.state, node, now):
            reply.jobs.append(node_job_message(found))
            yield  # to find whether one job could run elsewhere may take some milliseconds
        return reply

    def _show_drained(self, cluster: Cluster, id: NodeId) -> Parts[client_pb2.NodeReply]:
        node = cluster.state.nodes.get(id)
        keeps = [] if node is None else [*saved_there_alone(cluster.state, node)]
        reply = yield from self._show_node(cluster, id)
        reply.keeps.extend(keeps)
        return reply

    def _message(self, node: Node, cluster: Cluster, now: float) -> client_pb2.Node:
        sessions, ends = self._sessions, None if self._front is None else self._front.enrolment.ends(node.id)
        return node_message(node, cluster, now, sessions.readings(node.id), sessions.hello(node.id), ends)


def _check_supply(status: client_pb2.SupplyStatus) -> None:
    """Raise `SpecError` if a supply has no name that it could have, or says too much of itself."""
    check_words("supply.name", status.name, MAX_SUPPLY_NAME_LENGTH)
    for name in ("reason", "not_asking"):
        check_words(f"supply.{name}", getattr(status, name), MAX_SUPPLY_WORDS_LENGTH)
