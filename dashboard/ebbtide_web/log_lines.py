"""Turns what a job printed into lines of plain text with a few allowed styles. Pure.

Of terminal codes only colours and weight are understood; everything else of them is dropped. A carriage return begins
the line anew, as a progress bar means it.
"""

import codecs
import re
from dataclasses import dataclass, field
from typing import Final

from ebbtide_protos.quantities import printable

LONGEST_LINE: Final = 4000
"""Characters of a line that are shown."""
MOST_STYLES: Final = 200
"""Changes of style in one line that are shown."""

_CODES: Final = re.compile(
    r"\x1b\[([0-9;]*)m"  # colours and weight
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles, links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"
    r"|\x1b[ -/]*[0-~]?"
)
_WEIGHTS: Final = {1: "b", 2: "d", 3: "i", 4: "u"}

Line = list[list[str]]
"""Pieces of a line: the text, and the names of its styles."""


@dataclass(slots=True)
class Lines:
    """Reads bytes as they come; a line that has no end yet is told again when more of it comes."""

    _decode: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")(errors="replace")
    )
    _rest: str = ""
    _style: tuple[str, str] = ("", "")

    def take(self, data: bytes) -> tuple[list[Line], Line | None]:
        """Return the lines that are complete now, and the one that is not; None if there is none."""
        *whole, rest = (self._rest + self._decode.decode(data)).split("\n")
        self._rest = rest[-2 * LONGEST_LINE :]
        lines = [self._line(text) for text in whole]
        before = self._style
        open_line = self._line(self._rest) if self._rest else None
        self._style = before  # it is read again with what follows
        return lines, open_line

    def _line(self, text: str) -> Line:
        text = text.removesuffix("\r").rpartition("\r")[2]
        pieces: Line = []
        start, room = 0, LONGEST_LINE
        for found in _CODES.finditer(text):
            room -= self._add(pieces, text[start : found.start()], room)
            start = found.end()
            if found[1] is not None:
                self._change(found[1])
        self._add(pieces, text[start:], room)
        return pieces

    def _add(self, pieces: Line, text: str, room: int) -> int:
        shown = printable(text.replace("\t", "    "))[: max(0, room)]
        if shown and len(pieces) < MOST_STYLES:
            style = " ".join(filter(None, self._style))
            if pieces and pieces[-1][1] == style:
                pieces[-1][0] += shown
            else:
                pieces.append([shown, style])
        return len(shown)

    def _change(self, codes: str) -> None:
        colour, weight = self._style
        for text in codes.split(";")[:16]:
            code = int(text[:4]) if text else 0
            if code == 0:
                colour, weight = "", ""
            elif code in _WEIGHTS:
                weight = _WEIGHTS[code]
            elif code == 22:
                weight = ""
            elif 30 <= code <= 37 or 90 <= code <= 97:
                colour = f"c{code % 10}"
            elif code == 39:
                colour = ""
            elif code in (38, 48):
                break  # colours of a palette: what follows is no code
        self._style = (colour, weight)
