"""Turns records into what JSON knows, without the copies that `dataclasses.asdict` makes of everything in them."""

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any


def as_json(value: Any, *, sparse: bool = False) -> Any:
    """Return a value with its records as dictionaries, and its tuples as lists.

    If ``sparse``, a field that is None is left out, and one that is empty or zero if that is its default.
    """
    kind: Any = type(value)
    if kind is list or kind is tuple:
        return [as_json(item, sparse=sparse) for item in value]
    if (known := _fields(kind)) is None:
        return value
    content = {}
    for name, empty_by_default in known:
        part = getattr(value, name)
        if not (sparse and (part is None or (empty_by_default and not part))):
            content[name] = as_json(part, sparse=sparse)
    return content


@cache
def _fields(kind: Any) -> tuple[tuple[str, bool], ...] | None:
    """Return a record's fields, and whether each is empty, but not None, by default; None for any other type."""
    if not is_dataclass(kind):
        return None
    found = []
    for field in fields(kind):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        found.append((field.name, default is not None and default is not MISSING and not default))
    return tuple(found)
