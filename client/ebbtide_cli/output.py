"""What verbs print: JSON for programs, aligned tables for people, and one line on a terminal that keeps changing."""

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from ebbtide_cli.text import one_line, printable

GAP = "  "
NARROWEST = 6
"""Characters that a column keeps however narrow the terminal is."""

COLOURS = {
    "PENDING": 33,
    "STARTING": 36,
    "RUNNING": 32,
    "SUSPENDING": 36,
    "SUSPENDED": 35,
    "STOPPING": 36,
    "UNREACHABLE": 31,
    "COMPLETED": 32,
    "FAILED": 31,
    "CANCELLED": 90,
    "up": 32,
    "down": 31,
}


def print_json(facts: Any) -> None:
    """Print one JSON document on a line of its own, at once (it may be part of a stream)."""
    print(json.dumps(facts), flush=True)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns, made safe for a terminal; cut to its width if stdout is one, complete if not."""
    width = _terminal_width(sys.stdout) if sys.stdout.isatty() else None
    for line in table_lines(titles, rows, width, colour=uses_colour()):
        print(line)


def table_lines(
    titles: Sequence[str], rows: Iterable[Sequence[str]], width: int | None, *, colour: bool
) -> Iterable[str]:
    """Lay out a table in lines of at most ``width`` columns (None: as wide as it takes)."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(_cell_width, column)) for column in zip(titles, *cells, strict=True)]
    while width is not None and sum(widths) + len(GAP) * (len(widths) - 1) > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    yield _styled(_row_line(titles, widths), 1 if colour else None)
    for row in cells:
        yield _row_line(row, widths, colour=colour)


def uses_colour() -> bool:
    """Whether stdout is a terminal on which colours are welcome (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def complain(message: str) -> None:
    """Print one line on stderr, marked as ours."""
    print(f"ebb: {one_line(message)}", file=sys.stderr, flush=True)


class StatusLine:
    """A line on the terminal that says what is being waited for; nothing where stderr is not a terminal."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._shown = ""

    def show(self, text: str) -> None:
        """Replace the line."""
        line = _cut(one_line(text), _terminal_width(sys.stderr) - 1)
        if self._live and line != self._shown:
            self._write(line)

    def clear(self) -> None:
        """Remove the line, so that something lasting can be printed."""
        if self._shown:
            self._write("")

    def _write(self, line: str) -> None:
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
        self._shown = line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()


def _terminal_width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def _row_line(row: Sequence[str], widths: Sequence[int], *, colour: bool = False) -> str:
    cells = []
    for text, width in zip(row, widths, strict=True):
        cut = _cut(text, width)
        padding = " " * (width - _cell_width(cut))
        cells.append(_styled(cut, COLOURS.get(text) if colour else None) + padding)
    return GAP.join(cells).rstrip()


def _styled(text: str, code: int | None) -> str:
    return text if code is None else f"\x1b[{code}m{text}\x1b[0m"


def _cut(text: str, width: int) -> str:
    """Shorten ``text`` to ``width`` columns, the last of them an ellipsis."""
    if _cell_width(text) <= width:
        return text
    kept, used = "", 1
    for letter in text:
        used += _letter_width(letter)
        if used > width:
            break
        kept += letter
    return kept + "…"


def _cell_width(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_letter_width, text))


def _letter_width(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
