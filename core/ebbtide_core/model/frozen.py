"""Makes dataclasses that are immutable and cheap to create.

A frozen dataclass sets each field through ``object.__setattr__``, which makes it three times as slow to create as a
plain one, and the core creates millions. These are frozen for type checkers, which see every line of this project, and
plain at run time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform, overload

T = TypeVar("T")


@overload
def frozen(cls: type[T], /) -> type[T]: ...
@overload
def frozen(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[T] | None = None, /, *, kw_only: bool = False) -> type[T] | Callable[[type[T]], type[T]]:
    """Make a dataclass with slots whose fields no code may assign; it compares and hashes by its fields."""

    def make(cls: type[T]) -> type[T]:
        made = dataclass(slots=True, unsafe_hash=True, kw_only=kw_only)(cls)
        made.__deepcopy__ = _itself  # type: ignore[attr-defined]  # an immutable object is its own copy
        return made

    return make if cls is None else make(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def part(cls: type[T]) -> type[T]:
    """Make a part of a record: a class with empty slots, whose fields classes made by `frozen` inherit.

    Only whole records are created. A part has no slots of its own, because Python lets a class inherit from one class
    with slots at most.
    """
    assert vars(cls).get("__slots__") == (), f"{cls.__name__} needs __slots__ = ()"
    return dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)


def _itself(record: T, memo: object) -> T:
    return record
