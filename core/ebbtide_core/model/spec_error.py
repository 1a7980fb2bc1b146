"""Defines the error for a job that is refused at submit, and the checks that many fields share."""

import math


class SpecError(ValueError):
    """A job cannot be accepted: ``field`` is the option at fault, and the message names the limit."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def check_text(field: str, text: str, limit: int | None) -> int:
    """Refuse text that no process, file name or terminal can carry, or over ``limit`` bytes; return its bytes."""
    if "\0" in text:
        raise SpecError(field, "contains a NUL character")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise SpecError(field, "is not valid Unicode") from None
    if limit is not None and size > limit:
        raise SpecError(field, f"{size} bytes are over the limit of {limit}")
    return size


def check_number(field: str, value: float, low: float, high: float, unit: str = "") -> None:
    """Refuse a number that is not from ``low`` to ``high``; ``unit`` is for the message."""
    if not math.isfinite(value) or not low <= value <= high:
        raise SpecError(field, f"{value}{unit} is not between {low:g}{unit} and {high:g}{unit}")
