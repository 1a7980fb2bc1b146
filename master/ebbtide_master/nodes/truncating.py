"""Cuts every field of an agent's message to the limits, because the master keeps, journals and shows these fields.

A field that would make no sense when cut, such as the name of a node, is refused where it is read.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from ebbtide_core.model import limits
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_WHOLE = frozenset(("attempts",))
"""Lists that are never cut, because an attempt that is missing there counts as gone."""
_FLOATS = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)
_SMALL: Final = min(limits.MAX_AGENT_TEXT, limits.MAX_AGENT_LIST)
"""Bytes. In a message of this size no text and no list is too long, as a character or an entry takes a byte or more."""


def bounded(message: Message) -> None:
    """Cut texts and lists that are too long, and clear numbers that are not finite, in all that ``message`` holds."""
    if message.ByteSize() <= _SMALL:
        _clear_infinite(message)
    else:
        _bound(message)


def _bound(message: Message) -> None:
    for field, value in message.ListFields():
        if field.is_repeated:
            _bound_list(field, value)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            _bound(value)
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
            _bound(value)
    elif field.type == FieldDescriptor.TYPE_STRING:
        for number, value in enumerate(values):
            if len(value) > limits.MAX_AGENT_TEXT:
                values[number] = value[: limits.MAX_AGENT_TEXT]


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


# --- numbers only ---


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The names of a message's fields that are such numbers, and of those in which there are messages with some."""

    own: tuple[str, ...]
    single: tuple[str, ...]
    repeated: tuple[str, ...]


def _clear_infinite(message: Message) -> None:
    numbers = _numbers_in(message.DESCRIPTOR)
    for name in numbers.own:
        if not math.isfinite(getattr(message, name)):
            message.ClearField(name)
    for name in numbers.single:
        if message.HasField(name):
            _clear_infinite(getattr(message, name))
    for name in numbers.repeated:
        for one in getattr(message, name):
            _clear_infinite(one)


@cache
def _numbers_in(kind: Descriptor) -> _Numbers:
    with_some = [field for field in kind.fields if not _is_map(field) and _has_numbers(field, frozenset())]
    own = [field for field in with_some if field.message_type is None]
    inside = [field for field in with_some if field.message_type is not None]
    return _Numbers(
        tuple(field.name for field in own),
        tuple(field.name for field in inside if not field.is_repeated),
        tuple(field.name for field in inside if field.is_repeated),
    )


def _has_numbers(field: FieldDescriptor, above: frozenset[str]) -> bool:
    """Return whether the field is a single such number, or a message that has one; not those ``above`` it."""
    kind = field.message_type
    if kind is None:
        return field.type in _FLOATS and not field.is_repeated
    if kind.full_name in above or _is_map(field):
        return False
    return any(_has_numbers(each, above | {kind.full_name}) for each in kind.fields)
