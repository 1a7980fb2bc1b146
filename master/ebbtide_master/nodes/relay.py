"""Passes questions about checkpoints on from the node that asks to the node that has them, and brings answers back.

Nothing is stored on the way. A node has only so many questions open at once, so what is on its way is bounded, too.
"""

import itertools
from typing import Final, NamedTuple, Protocol

from ebbtide_core.model import limits
from ebbtide_core.model.types import JobId, NodeId
from ebbtide_core.resources.checkpoint_location import source
from ebbtide_core.state import ClusterState
from ebbtide_protos.v1 import agent_pb2

MOST_OPEN: Final = limits.MAX_RELAYED
"""Questions of one node that are not answered yet."""


class RelayStream(Protocol):
    """An agent's stream."""

    def send(self, message: agent_pb2.MasterMessage) -> None: ...


class _Question(NamedTuple):
    asker: RelayStream
    request_id: int
    asked: RelayStream


class Relay:
    """The questions that are not answered yet."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._open: dict[int, _Question] = {}

    def ask(
        self, asker: RelayStream, request: agent_pb2.ReadCheckpoint, source: RelayStream | None, why_not: str
    ) -> None:
        """Pass a question on to ``source``; if there is none, or too much is asked at once, say so."""
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
        """Bring an answer back to who asked; one to no question, or of another node than was asked, is dropped."""
        question = self._open.get(data.request_id)
        if question is not None and question.asked is source:
            del self._open[data.request_id]
            data.request_id = question.request_id
            question.asker.send(agent_pb2.MasterMessage(checkpoint_data=data))

    def closed(self, stream: RelayStream) -> None:
        """Forget what was asked over it, and tell those who asked the node at its other end."""
        for id, question in list(self._open.items()):
            if stream in (question.asker, question.asked):
                del self._open[id]
                if question.asked is stream:
                    _refuse(question.asker, question.request_id, "the node that has it went away")


def _refuse(asker: RelayStream, request_id: int, reason: str) -> None:
    answer = agent_pb2.CheckpointData(request_id=request_id, error=reason, away=True)
    asker.send(agent_pb2.MasterMessage(checkpoint_data=answer))


def source_of_launch(state: ClusterState, id: JobId, attempt: int, node: NodeId) -> NodeId | None:
    """From which node ``node`` has to get the checkpoint for an attempt that is to start there; None if for none."""
    job = state.jobs.get(id)
    live = job.live if job is not None else None
    if job is None or live is None or live.number != attempt or live.started is not None:
        return None
    return source(job, node, state.nodes) if live.allocation.node_ids[0] == node else None
