"""Draw what a person reads on a terminal with rich: tables, fields, and a line that keeps changing.

rich takes as long to load as everything else together: only what has a terminal imports this module.
"""

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TextIO

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from ebbtide_cli.terminal.text import GAP, Cell, printable

STYLES = {
    "PENDING": "cyan",
    "STARTING": "blue",
    "RUNNING": "green",
    "SUSPENDING": "yellow",
    "SUSPENDED": "yellow",
    "STOPPING": "magenta",
    "UNREACHABLE": "red",
    "COMPLETED": "green",
    "FAILED": "red",
    "CANCELLED": "bright_black",
    "up": "green",
    "down": "red",
    "draining": "yellow",
    "drained": "yellow",
    "ok": "green",
    "note": "cyan",
    "warning": "yellow",
    "problem": "red",
}
"""The colour of a word, in rich's terms."""
ELASTIC = 12
"""Columns at which words that may be cut are counted."""
BAR = 8
ROOM_FOR_BARS = 100
"""Columns of a terminal below which bars are left out, because they would take the words' place."""


def print_list(
    titles: Sequence[str], rows: Iterable[Sequence[Cell]], elastic: Collection[str], spare: Sequence[str]
) -> None:
    """Print a list that fits the terminal; it leaves out ``spare`` columns, and cuts ``elastic`` ones."""
    console = _console(sys.stdout)
    drawn = [[_cell(console, cell) for cell in row] for row in rows]
    # One tall cell for each column: rich lays these out several times as fast as a cell for each row.
    columns = {
        title: _one_line(Text("\n").join([Text(title, "bold"), *column]))
        for title, column in zip(titles, zip(*drawn, strict=True), strict=True)
    }
    widths = {title: console.measure(column).maximum for title, column in columns.items()}
    widths |= {title: min(widths[title], ELASTIC) for title in elastic}
    for title in spare:
        if sum(widths.values()) + len(GAP) * len(widths) > console.width:
            del columns[title], widths[title]
    table = Table.grid(*(Column(no_wrap=title not in elastic) for title in columns), padding=(0, len(GAP)))
    table.add_row(*columns.values())
    _print(console, table)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose cells are folded to fit the terminal."""
    console = _console(sys.stdout)
    table = Table(*(Column(title, overflow="fold") for title in titles), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(_cell(console, cell) for cell in row))
    _print(console, table)


def print_columns(rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns without titles; the last column is folded to fit the terminal."""
    console = _console(sys.stdout)
    table = Table.grid(padding=(0, len(GAP)))
    for row in rows:
        table.add_row(*(_cell(console, cell) for cell in row))
    for column in table.columns:
        column.no_wrap, column.overflow = True, "fold"
    if table.columns:
        table.columns[-1].no_wrap = False
    _print(console, table)


def print_words(words: Iterable[str]) -> None:
    """Print a line of words; names of states are coloured."""
    console = _console(sys.stdout)
    _print(console, Text(GAP).join(_cell(console, word) for word in words))


class LiveLine:
    """The last line of the terminal's output on stderr, which can be replaced."""

    def __init__(self) -> None:
        self._console = _console(sys.stderr)
        # stdout may go elsewhere; other output on stderr scrolls by above the line.
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()
        # If the process is killed while it waits, it cannot show the cursor again.
        self._console.show_cursor(True)

    def show(self, words: Iterable[str], done: float | None) -> None:
        """Replace the line's words; ``done`` (0 to 1) is drawn as a bar."""
        self._live.update(self._line(words, done), refresh=True)

    def remove(self) -> None:
        """Erase the line; it cannot be shown again."""
        self._live.stop()

    def _line(self, words: Iterable[str], done: float | None) -> RenderableType:
        line = _one_line(Text(" ").join(_cell(self._console, word) for word in words))
        if done is None:
            return line
        table = Table.grid(padding=(0, 1))
        table.add_row(_bar(done), line)
        return table


def _console(stream: TextIO) -> Console:
    """Return a console that honours NO_COLOR."""
    return Console(file=stream, force_terminal=True, highlight=False)


def _cell(console: Console, cell: Cell) -> Text:
    # Always Text, because rich would look for markup in a plain string, and users choose the names.
    words, done = (cell, None) if isinstance(cell, str) else cell
    text = Text(printable(words), STYLES.get(words, ""))
    if done is None or console.width < ROOM_FOR_BARS:
        return text
    bar = Text.assemble(*((part.text, part.style or "") for part in console.render(_bar(done))))
    bar.truncate(BAR, pad=True)
    return Text(" ").join((bar, text))


def _bar(done: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=done, width=BAR)


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _print(console: Console, drawing: RenderableType) -> None:
    """Print through print(): rich pads each line to the last column, and ends the process when a pipe is closed."""
    with console.capture() as captured:
        console.print(drawing)
    for line in captured.get().splitlines():
        print(line.rstrip())
