"""What a topic of options is."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

Option = Callable[[Any], Any]
"""What ``click.option`` returns."""

Given = Mapping[str, Any]
"""The options as given, by name, and the command as ``argv``."""


class Topic(Protocol):
    """A module with some of the options."""

    OPTIONS: tuple[Option, ...]

    def fields(self, given: Given) -> dict[str, Any]:
        """The fields of a `JobSpec` that its options give; raises `Failure` for what has no meaning."""
        ...
