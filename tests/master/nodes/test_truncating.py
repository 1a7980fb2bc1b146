"""Whatever an agent says, what is kept of it is bounded."""

import math
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from ebbtide_core.model import limits
from ebbtide_master.nodes.truncating import bounded
from ebbtide_protos.v1 import agent_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tests.faults.odd import Odd


def leaves(message: Message) -> Iterator[Any]:
    """Every value in it, and every list."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.message_type.GetOptions().map_entry:
                yield dict(value)
                continue
            for one in value if field.is_repeated else (value,):
                yield from leaves(one)
        if field.is_repeated and field.name != "attempts":
            yield list(value)
        elif not field.is_repeated:
            yield value


@pytest.mark.parametrize("seed", range(60))
def test_nothing_in_any_message_of_an_agent_is_too_long_or_no_number(seed: int) -> None:
    message = Odd(Random(seed)).message(agent_pb2.AgentMessage.DESCRIPTOR)
    message.status.dirty_gpus.extend(["g" * 5000] * 5000)
    bounded(message)
    for value in leaves(message):
        match value:
            case str():
                assert len(value) <= limits.MAX_AGENT_TEXT
            case list() | dict():
                assert len(value) <= limits.MAX_AGENT_LIST
            case float():
                assert math.isfinite(value)


def test_what_is_within_the_limits_is_left_as_it_is() -> None:
    status = agent_pb2.AttemptStatus(job_id="1", attempt=2, started_at=1.5, dirty_gpus=["g"] * 8, refusal="r" * 4096)
    message = agent_pb2.AgentMessage(status=status)
    bounded(message)
    assert message.status == status


def test_the_attempts_that_a_node_names_are_never_cut() -> None:
    """What it does not name counts as gone."""
    hello = agent_pb2.Hello(attempts=[agent_pb2.AttemptStatus(attempt=number) for number in range(6000)])
    bounded(hello)
    assert len(hello.attempts) == 6000
