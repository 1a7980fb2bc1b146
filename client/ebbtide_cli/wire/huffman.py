"""Decodes HPACK's Huffman code (RFC 7541, appendix B), in which a peer may write a header."""

from typing import Final

END_OF_TEXT: Final = 256
_LENGTHS: Final = (
    "13 23 28*7 24 30 28 28 30 28*8 30 28*9 6 10 10 12 13 6 8 11 10 10 8 11 8 6*3 5*3 6*7 7 8 15 6 12 10 13 6 7*22 8 "
    "7 8 13 19 13 14 6 15 5 6 5 6 5 6*3 5 7 7 6*3 5 6 7 6 5 5 6 7*5 15 11 14 13 28 20 22 20 20 22*3 23 22 23*5 24 23 "
    "24 24 22 23 24 23*4 21 22 23 22 23 23 24 22 21 20 22 22 23 23 21 23 22 22 24 21 22 23 23 21 21 22 21 23 22 23 23 "
    "20 22*3 23 22 22 23 26 26 20 19 22 23 22 25 26*3 27 27 26 24 25 19 21 26 27 27 26 27 24 21 21 26 26 28 27*3 20 "
    "24 20 21 22 21 21 23 22 22 25 25 24 24 26 23 26 27 26 26 27*5 28 27*5 26 30"
)
"""The length in bits of the code of each byte, and of the end of a text; ``7*22`` stands for 22 times 7.

The code is canonical: among codes of one length, a larger byte has the next larger code.
"""


def _codes() -> dict[tuple[int, int], int]:
    """Return the byte of each code, by the code's length and bits."""
    runs = [word.partition("*") for word in _LENGTHS.split()]
    lengths = [int(length) for length, _, times in runs for _ in range(int(times or 1))]
    found: dict[tuple[int, int], int] = {}
    code = before = 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths)):
        code <<= length - before
        found[length, code] = symbol
        code, before = code + 1, length
    return found


CODES: Final = _codes()


def decoded(text: bytes) -> bytes:
    """Return what ``text`` stands for. Raises ValueError if it is no text of this code."""
    found = bytearray()
    code = length = 0
    for byte in text:
        for place in range(7, -1, -1):
            code, length = code << 1 | byte >> place & 1, length + 1
            symbol = CODES.get((length, code))
            if symbol == END_OF_TEXT:
                raise ValueError("a text ends before its end")
            if symbol is not None:
                found.append(symbol)
                code = length = 0
            elif length > 30:
                raise ValueError("a code has too many bits")
    if length > 7 or code != (1 << length) - 1:
        raise ValueError("a text is padded with something else than ones")
    return bytes(found)
