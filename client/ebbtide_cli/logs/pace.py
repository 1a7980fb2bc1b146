"""Say how often jobs may be listed, so that most of what the master grants a user is left for other streams."""

from typing import Final

from ebbtide_core.model import limits

LOOK_S: Final = 0.5
"""Seconds between two listings, at least."""
LISTED_SHARE: Final = 0.1
"""The share of a user's budget for reports on jobs that listings may take; the rest is for other streams."""


def pause_s(listed: int) -> float:
    """Return the seconds to wait after a listing of so many jobs."""
    return max(LOOK_S, listed * limits.LISTED_COST / limits.WATCHED_PER_S / LISTED_SHARE)
