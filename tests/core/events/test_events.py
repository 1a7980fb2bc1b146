"""Every event survives its way through JSON, and can be said in words."""

import dataclasses
import json
from typing import Any, get_type_hints

import pytest
from ebbtide_core import events as e
from ebbtide_core.events import EVENT_TYPES
from ebbtide_core.events.codec import UnknownEventError, decode_event, encode
from ebbtide_core.views.narrate import narrate
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import share_of

st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
kinds = pytest.mark.parametrize("kind", EVENT_TYPES.values(), ids=EVENT_TYPES)


def made(kind: type[e.Event]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{field.name: st.from_type(hint) for field, hint in fields_of(kind)})


def fields_of(kind: type[e.Event]) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(kind)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]


@kinds
@settings(max_examples=share_of(30), deadline=None)
@given(data=st.data())
def test_it_comes_back_from_json_as_it_was(kind: type[e.Event], data: st.DataObject) -> None:
    event = data.draw(made(kind))
    body = json.loads(json.dumps(encode(event), allow_nan=False))
    assert decode_event(kind.__name__, body) == event


@kinds
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_it_can_be_said_in_words(kind: type[e.Event], data: st.DataObject) -> None:
    event = data.draw(made(kind))
    assert narrate(event) or event.reason == ""


@kinds
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_an_older_one_without_what_has_a_default_can_be_read_and_so_can_one_with_more(
    kind: type[e.Event], data: st.DataObject
) -> None:
    event = data.draw(made(kind))
    optional = {field.name for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING}
    body = {name: value for name, value in encode(event).items() if name not in optional}
    again = decode_event(kind.__name__, body | {"colour": "grey"})
    assert again == dataclasses.replace(
        event, **{field.name: field.default for field in dataclasses.fields(kind) if field.name in optional}
    )


def test_an_event_of_a_newer_version_is_named() -> None:
    with pytest.raises(UnknownEventError, match="TeaBrewed"):
        decode_event("TeaBrewed", {})
