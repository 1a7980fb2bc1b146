"""Define the interface of a topic of options."""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Protocol

import click

from ebbtide_cli.commands.verb import OneOf

Option = Callable[[Any], Any]
"""A decorator as ``click.option`` returns it."""

Given = Mapping[str, Any]
"""The given options by name, and the command as ``argv``."""


class Topic(Protocol):
    """A module with some of the options. An option that has the name of a field of `JobSpec` gives that field."""

    TITLE: str
    """The section of the help that shows the options; several topics may have one section."""
    OPTIONS: tuple[Option, ...]


class EnumChoice(OneOf):
    """Accept the value of a member of ``kind``."""

    def __init__(self, kind: type[Enum]) -> None:
        super().__init__([member.value for member in kind])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the member."""
        return value if isinstance(value, self._kind) else self._kind(super().convert(value, param, ctx))
