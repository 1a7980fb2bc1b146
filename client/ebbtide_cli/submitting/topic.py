"""What a topic of options is."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

import click

Option = Callable[[Any], Any]
"""What ``click.option`` returns."""

Given = Mapping[str, Any]
"""The options as given, by name, and the command as ``argv``."""


class Topic(Protocol):
    """A module with some of the options. One that has the name of a field of `JobSpec` gives that field."""

    OPTIONS: tuple[Option, ...]


class EnumChoice(click.Choice):  # type: ignore[type-arg]  # it takes none before click 8.2
    """One of the members of ``kind``, by its value."""

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__([member.value for member in kind])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The member."""
        return value if isinstance(value, self._kind) else self._kind(super().convert(value, param, ctx))
