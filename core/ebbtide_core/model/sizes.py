"""Writes sizes of memory in GiB."""

from typing import Final

_GIB: Final = 2**30


def size_text(count: int) -> str:
    """Write ``count`` bytes in GiB, with four digits at most."""
    return f"{count / _GIB:.4g} GiB"


def compared(asked: int, most: int) -> tuple[str, str]:
    """Write two different sizes in GiB, with as many digits as it takes to tell them apart."""
    for digits in (4, 7, 16):
        texts = f"{asked / _GIB:.{digits}g} GiB", f"{most / _GIB:.{digits}g} GiB"
        if texts[0] != texts[1]:
            break
    return texts
