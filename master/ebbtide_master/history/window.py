"""Says in SQL how the spans of a window are found, and where one ends that goes on."""

from typing import Final

from ebbtide_core.model.types import WHOLE

from ebbtide_master.history.file import DAY_S, GOES_ON

OVERLAPS: Final = (
    f"((h.long = 0 AND h.end > :since AND h.end < :until + {DAY_S}) OR (h.long = 1 AND h.end > :since))"
    " AND h.start < :until"
)
"""Whether a span ``h`` is in the window from ``:since`` to ``:until``; the indices by time find it so."""
END: Final = f"iif(h.end >= {GOES_ON}, :edge, h.end)"


def window_sql(text: str) -> str:
    """Return a query with ``{overlaps}``, ``{end}``, ``{goes_on}`` and ``{whole}`` filled in."""
    return text.format(overlaps=OVERLAPS, end=END, goes_on=GOES_ON, whole=WHOLE)
