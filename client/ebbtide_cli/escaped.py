"""Shows on a terminal what a job has printed, and no more than that."""

import re
from codecs import getincrementaldecoder
from typing import Final
from unicodedata import category

_UNSAFE: Final = re.compile(r"\x1b\[[0-9;:]{0,32}m|[^\x20-\x7e\n\t\r]")
_BEGUN: Final = re.compile(r"\x1b(\[[0-9;:]{0,32})?\Z")
_JOINERS: Final = "\u200c\u200d"
"""Of scripts and pictures that need them."""


class Escaped:
    """Takes a job's output in pieces, and gives back what a terminal may be shown of it, in colours and all.

    Whatever else a terminal obeys is written out, as are the characters that turn the order of others around.
    """

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("backslashreplace")
        self._begun = ""

    def feed(self, data: bytes) -> str:
        """The same text, but for the beginning of a colour whose end has not come yet."""
        text = self._begun + self._decoder.decode(data)
        cut = found.start() if (found := _BEGUN.search(text)) else len(text)
        self._begun = text[cut:]
        return _UNSAFE.sub(_escaped, text[:cut])

    def end(self) -> str:
        """What has no end and never will."""
        text, self._begun = self._begun + self._decoder.decode(b"", final=True), ""
        return _UNSAFE.sub(_escaped, text)


def _escaped(found: "re.Match[str]") -> str:
    text = found[0]
    if len(text) > 1 or text.isprintable() or category(text) == "Zs" or text in _JOINERS:
        return text
    return text.encode("unicode_escape").decode()
