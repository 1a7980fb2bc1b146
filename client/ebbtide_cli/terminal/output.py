"""Print what verbs print: JSON for programs, complaints, and a status line on a terminal during waits."""

import json
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ebbtide_cli.terminal.text import one_line

if TYPE_CHECKING:
    from ebbtide_cli.terminal.rich_drawing import LiveLine


def print_json(facts: Any) -> None:
    """Print one JSON document on a line of its own, at once (it may be part of a stream)."""
    print(json.dumps(facts), flush=True)


def complain(message: str) -> None:
    """Print one line on stderr that begins with ``ebb:``."""
    print(f"ebb: {one_line(message)}", file=sys.stderr, flush=True)


def print_attempt(number: int, prefix: str) -> None:
    """Mark on stderr that the output of another attempt begins."""
    print(f"{prefix}--- attempt {number} ---", file=sys.stderr, flush=True)


class StatusLine:
    """Show what a verb waits for, in a line that can be replaced; show nothing unless ``wanted`` and on a terminal."""

    def __init__(self, *, wanted: bool = True) -> None:
        self._wanted = wanted and sys.stderr.isatty()
        self._live: LiveLine | None = None
        self._shown: object = None

    def show(self, *words: str, done: float | None = None) -> None:
        """Replace the line; ``done`` (0 to 1) is drawn as a bar."""
        if not self._wanted or self._shown == (words, done):
            return
        if self._live is None:
            # Most waits end before a line has to be drawn.
            from ebbtide_cli.terminal.rich_drawing import LiveLine

            self._live = LiveLine()
        self._live.show(words, done)
        self._shown = (words, done)

    def clear(self) -> None:
        """Remove the line, so that lasting output can be printed."""
        if self._live:
            self._live.remove()
        self._live = self._shown = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()
