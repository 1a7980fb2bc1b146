"""Parse points in time that a user writes, and split a span into days."""

import re
from datetime import datetime, time, timedelta
from typing import Final

from ebbtide_protos.quantities import abbreviated, parse_duration

FORMATS: Final = ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M")
EARLIEST_S: Final = -62_104_060_800.0
LATEST_S: Final = 253_370_764_800.0
"""The beginnings of the years 2 and 9999, beyond which dates cannot be written in every time zone."""


def parse_time(text: str, now: float, *, ago: bool = False) -> float:
    """Read ``2026-11-23 09:00``, ``2026-11-23``, ``09:00`` (the next), ``now``, or a duration from now: ``+2h``.

    The sign may be left out. ``@1795510800`` is a moment in Unix seconds. With ``ago``, a duration is in the past and
    has no sign, and ``09:00`` is today's. Times are local; the result is in Unix seconds. Raises ``ValueError``.
    """
    text = text.strip()
    if text == "now":
        return now
    if re.fullmatch(r"[0-9]{1,2}(:[0-9]{2}){1,2}", text):
        return _at_time_of_day(text, now, ago)
    if re.fullmatch(r"@[0-9]{1,11}", text):
        return float(text[1:])
    for form in FORMATS:
        try:
            return datetime.strptime(text, form).timestamp()
        except (ValueError, OverflowError):
            pass
    try:
        seconds = parse_duration(text if ago else text.removeprefix("+"))
    except ValueError:
        known = f"write '2026-11-23 09:00', 2026-11-23, 09:00, now, or {'' if ago else '+'}2h"
        raise ValueError(f"{abbreviated(text)!r} is not a time: {known}") from None
    moment = now - seconds if ago else now + seconds
    if not EARLIEST_S < moment < LATEST_S:
        raise ValueError(f"{abbreviated(text)!r} is too far from now: times are from the year 2 to 9998")
    return moment


def _at_time_of_day(text: str, now: float, ago: bool) -> float:
    today = datetime.fromtimestamp(now)
    try:
        moment = datetime.combine(today, time.fromisoformat(text if text[1] != ":" else f"0{text}"))
    except ValueError:
        raise ValueError(f"{text!r} is not a time of day") from None
    return (moment if ago or moment > today else moment + timedelta(days=1)).timestamp()


def days_between(start: float, end: float) -> list[float]:
    """Return ``start``, every local midnight between, and ``end``, in Unix seconds."""
    first, last = datetime.fromtimestamp(start).date(), datetime.fromtimestamp(end).date()
    days = (first + timedelta(days=number) for number in range(1, (last - first).days + 1))
    midnights = (datetime.combine(day, time()).timestamp() for day in days)
    return [start, *(midnight for midnight in midnights if midnight < end), end]
