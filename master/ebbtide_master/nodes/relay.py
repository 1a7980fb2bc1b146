"""Passes requests for checkpoints from the node that asks to the node that has them, and the answers back.

Nothing is stored on the way. The number of open requests of a node is limited, which also bounds the data on the way.
"""

import itertools
from typing import Final, NamedTuple, Protocol

from ebbtide_core.model import limits
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_core.resources.checkpoint_location import copy_source
from ebbtide_core.state import ClusterState
from ebbtide_protos.v1 import agent_pb2

MOST_OPEN: Final = limits.MAX_RELAYED
"""Open requests of one node, at most."""


class RelayStream(Protocol):
    """An agent's stream."""

    def send(self, message: agent_pb2.MasterMessage) -> None: ...


class _Question(NamedTuple):
    asker: RelayStream
    request_id: int
    asked: RelayStream


class Relay:
    """Holds the open requests, each with the streams of both nodes."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._open: dict[int, _Question] = {}

    def ask(
        self, asker: RelayStream, request: agent_pb2.ReadCheckpoint, source: RelayStream | None, why_not: str
    ) -> None:
        """Pass ``request`` on to ``source``; answer with an error if that is None, or if too many requests are open."""
        if sum(question.asker is asker for question in self._open.values()) >= MOST_OPEN:
            source, why_not = None, f"more than {MOST_OPEN} questions at once"
        if source is None:
            _refuse(asker, request.request_id, why_not)
            return
        id = next(self._ids)
        self._open[id] = _Question(asker, request.request_id, source)
        onward = agent_pb2.ReadCheckpoint()
        onward.CopyFrom(request)
        onward.request_id = id
        source.send(agent_pb2.MasterMessage(read_checkpoint=onward))

    def answer(self, source: RelayStream, data: agent_pb2.CheckpointData) -> None:
        """Send an answer to the asker. An answer without request, or from a node that was not asked, is dropped."""
        question = self._open.get(data.request_id)
        if question is not None and question.asked is source:
            del self._open[data.request_id]
            data.request_id = question.request_id
            question.asker.send(agent_pb2.MasterMessage(checkpoint_data=data))

    def closed(self, stream: RelayStream) -> None:
        """Forget the requests that came over ``stream``, and answer with an error those that were sent over it."""
        for id, question in list(self._open.items()):
            if stream in (question.asker, question.asked):
                del self._open[id]
                if question.asked is stream:
                    _refuse(question.asker, question.request_id, "the node that has it went away")


def _refuse(asker: RelayStream, request_id: int, reason: str) -> None:
    answer = agent_pb2.CheckpointData(request_id=request_id, error=reason, away=True)
    asker.send(agent_pb2.MasterMessage(checkpoint_data=answer))


def source_of_launch(state: ClusterState, id: JobId, attempt: int, node: NodeId) -> NodeId | None:
    """Return from which node ``node`` must get the checkpoint of an attempt that starts there; None if from none."""
    job = state.jobs.get(id)
    live = job.live if job is not None else None
    if job is None or live is None or live.number != attempt or live.started is not None:
        return None
    return copy_source(job, node, state.nodes) if live.allocation.node_ids[0] == node else None
