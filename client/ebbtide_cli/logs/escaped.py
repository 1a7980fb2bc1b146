"""Show a job's output on a terminal without obeying any control sequence in it except colours."""

import re
from codecs import getincrementaldecoder
from typing import Final
from unicodedata import category

_UNSAFE: Final = re.compile(r"\x1b\[[0-9;:]{0,32}m|[^\x20-\x7e\n\t\r]")
_BEGUN: Final = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")
_JOINERS: Final = "\u200c\u200d"
"""Invisible characters that some scripts and pictures need."""


class Escaped:
    """Take a job's output in pieces, and return what is safe to show on a terminal, colours included.

    All other control characters are written out as escapes, as are those that reverse the order of other characters.
    """

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")
        self._begun = ""

    def feed(self, data: bytes) -> str:
        """Return the text of these bytes; hold back the beginning of a colour code until its end arrives."""
        text = self._begun + self._decoder.decode(data)
        cut = found.start() if (found := _BEGUN.search(text)) else len(text)
        self._begun = text[cut:]
        return _UNSAFE.sub(_escaped, text[:cut])

    def end(self) -> str:
        """Return what was held back and has not been completed."""
        text, self._begun = self._begun + self._decoder.decode(b"", final=True), ""
        return _UNSAFE.sub(_escaped, text)


def _escaped(found: "re.Match[str]") -> str:
    text = found[0]
    if len(text) > 1 or text.isprintable() or category(text) == "Zs" or text in _JOINERS:
        return text
    return text.encode("unicode_escape").decode()
