"""Turns events into JSON and back, by their type hints; this is the journal's format.

Old journals must keep loading, so a new field needs a default, and the decoder skips fields that no longer exist.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any

from ebbtide_core.events import EVENT_TYPES, Event

Json = Any
"""A value that ``json.dumps`` takes."""


class UnknownEventError(ValueError):
    """The journal holds an event that this version does not know; a newer version wrote it."""


def encode(value: object) -> Json:
    """Turn an event, or any part of one, into a value that ``json.dumps`` takes."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Enum():
            return value.value
        case tuple() | list():
            return [encode(item) for item in value]
        case Mapping():
            return {key: encode(item) for key, item in value.items()}
        case _:
            kind: object = type(value)
            return {name: encode(getattr(value, name)) for name in _field_names(kind)}


def decode_event(kind: str, body: Json) -> Event:
    """Rebuild the event of class name ``kind`` from the value that `encode` made of it.

    Raises `UnknownEventError` if no event has that name.
    """
    if kind not in EVENT_TYPES:
        raise UnknownEventError(kind)
    event_type: object = EVENT_TYPES[kind]
    event = _decoder(event_type)(body)
    assert isinstance(event, Event)
    return event


@cache
def _field_names(kind: object) -> tuple[str, ...]:
    assert dataclasses.is_dataclass(kind)
    return tuple(field.name for field in dataclasses.fields(kind) if field.init)


@cache
def _decoder(kind: object) -> Callable[[Json], object]:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if isinstance(kind, typing.NewType):
        return _decoder(kind.__supertype__)
    if origin in (types.UnionType, typing.Union):
        inner = _decoder(next(argument for argument in arguments if argument is not type(None)))
        return _itself if inner is _itself else lambda value: None if value is None else inner(value)
    if origin is tuple:
        item = _decoder(arguments[0])
        return tuple if item is _itself else lambda value: tuple(map(item, value))
    if origin is not None and issubclass(origin, Mapping):
        return dict
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _Members(kind).__getitem__
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    if kind is float:
        return float
    return _itself


def _itself(value: Json) -> object:
    """Return the value, because JSON has it as it is."""
    return value


class _Members(dict[Json, Enum]):
    """The members of an enum by value; a start looks up a few for each line of the journal."""

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__((member.value, member) for member in kind)
        self._kind = kind

    def __missing__(self, value: Json) -> Enum:
        return self._kind(value)


def _dataclass_decoder(kind: Callable[..., object]) -> Callable[[Json], object]:
    hints = typing.get_type_hints(kind)
    decoders = {name: _decoder(hints[name]) for name in _field_names(kind)}
    plain = [name for name, decoder in decoders.items() if decoder is _itself]
    converted = [(name, decoder) for name, decoder in decoders.items() if decoder is not _itself]

    def decode(body: Json) -> object:
        # The names are those of the parameters, not the equal ones in the body, which Python would compare by letters.
        given = body.keys()
        values = {name: body[name] for name in plain if name in given}
        for name, decoder in converted:
            if name in given:
                values[name] = decoder(body[name])
        return kind(**values)

    return decode
