"""The version of what master and agents say to each other: each speaks to its own version, and to the one before.

It is raised with a release in which one side needs the other to know something; who knows less is told in one line. A
master takes agents that are newer: whether they can work with it they know best.
"""

from typing import Final

PROTOCOL: Final = 2
UNNUMBERED: Final = 1
"""The version of those that name none."""


def refuse(other: int, who: str) -> str | None:
    """Why ``who``, who speaks version ``other`` (0: names none), is too old to be spoken to; None if it is not."""
    spoken = other or UNNUMBERED
    if spoken >= PROTOCOL - 1:
        return None
    return f"the {who} speaks version {spoken} of the protocol, and {PROTOCOL - 1} is needed: upgrade the {who}"
