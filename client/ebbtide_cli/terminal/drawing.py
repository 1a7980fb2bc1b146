"""Draw what a person reads: tables and fields.

Output that is not a terminal is plain and complete: no colours, no bars, nothing cut or folded. rich, which draws on a
terminal, takes as long to load as everything else together, so nothing else loads it.
"""

import sys
from collections.abc import Collection, Iterable, Sequence

from ebbtide_cli.terminal.text import GAP, Cell, printable


def print_list(
    titles: Sequence[str], rows: Iterable[Sequence[Cell]], *, elastic: Collection[str] = (), spare: Sequence[str] = ()
) -> None:
    """Print a table with one line for each row, however many rows there are.

    On a terminal that is too narrow, ``spare`` columns are left out, the first one first, and ``elastic`` ones are cut.
    """
    if sys.stdout.isatty():
        from ebbtide_cli.terminal import rich_drawing

        rich_drawing.print_list(titles, rows, elastic, spare)
    else:
        _print_aligned([titles, *rows])


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose cells are folded to fit the terminal."""
    if sys.stdout.isatty():
        from ebbtide_cli.terminal import rich_drawing

        rich_drawing.print_table(titles, rows)
    else:
        _print_aligned([titles, *rows])


def print_columns(rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns without titles; the last column is folded to fit the terminal."""
    if sys.stdout.isatty():
        from ebbtide_cli.terminal import rich_drawing

        rich_drawing.print_columns(rows)
    else:
        _print_aligned(list(rows))


def print_words(words: Iterable[str]) -> None:
    """Print a line of words; names of states are coloured."""
    if sys.stdout.isatty():
        from ebbtide_cli.terminal import rich_drawing

        rich_drawing.print_words(words)
    else:
        print(GAP.join(map(printable, words)).rstrip())


def _print_aligned(rows: Sequence[Sequence[Cell]]) -> None:
    """Print rows of cells below each other; an empty line if there are none."""
    words = [[printable(cell if isinstance(cell, str) else cell[0]) for cell in row] for row in rows]
    columns = zip(*words, strict=True)
    widths = [max(map(_width, column)) for column in columns]
    for row in words:
        padded = (text + " " * (width - _width(text)) for text, width in zip(row, widths, strict=True))
        print(GAP.join(padded).rstrip())
    if not words:
        print()


def _width(text: str) -> int:
    """Return how many columns of a screen the text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # some letters take two columns, and some none

    return cell_len(text)
