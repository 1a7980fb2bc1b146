"""The version of the protocol between master and agents: each accepts its own version, and the one before.

A release raises the version if one side needs the other to know something new. A side that is too old is refused in one
line. A master accepts newer agents, because these know best whether they can work with it.
"""

from typing import Final

PROTOCOL: Final = 2
UNNUMBERED: Final = 1
"""The version of programs that name none."""


def refuse(other: int, who: str) -> str | None:
    """Return why the program ``who``, with version ``other`` (0 if it names none), is too old, or None if it is not."""
    spoken = other or UNNUMBERED
    if spoken >= PROTOCOL - 1:
        return None
    return f"the {who} speaks version {spoken} of the protocol, and {PROTOCOL - 1} is needed: upgrade the {who}"
