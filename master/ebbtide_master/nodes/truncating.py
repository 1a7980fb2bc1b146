"""Cuts every field of an agent's message to the limits, because the master keeps, journals and shows these fields.

A field that would make no sense when cut, such as the name of a node, is refused where it is read.
"""

import math
from typing import Any

from ebbtide_core.model import limits
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_WHOLE = frozenset(("attempts",))
"""Lists that are never cut, because an attempt that is missing there counts as gone."""
_FLOATS = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)


def bounded(message: Message) -> None:
    """Cut texts and lists that are too long, and clear numbers that are not finite, in all that ``message`` holds."""
    for field, value in message.ListFields():
        if field.is_repeated:
            _bound_list(field, value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            bounded(value)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if len(value) > limits.MAX_AGENT_TEXT:
                setattr(message, field.name, value[: limits.MAX_AGENT_TEXT])
        elif field.type in _FLOATS and not math.isfinite(value):
            message.ClearField(field.name)


def _bound_list(field: FieldDescriptor, values: Any) -> None:
    if _is_map(field):
        for key in list(values)[limits.MAX_AGENT_LIST :]:
            del values[key]
        return
    if field.name not in _WHOLE and len(values) > limits.MAX_AGENT_LIST:
        del values[limits.MAX_AGENT_LIST :]
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        for value in values:
            bounded(value)
    elif field.type == FieldDescriptor.TYPE_STRING:
        for number, value in enumerate(values):
            if len(value) > limits.MAX_AGENT_TEXT:
                values[number] = value[: limits.MAX_AGENT_TEXT]


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
