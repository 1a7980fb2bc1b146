"""Reads ``[fencing]``: the hook that makes sure that a silent node is dead."""

from dataclasses import dataclass
from typing import Final

from ebbtide_master.config.table import Table

SHORTEST_SILENCE_S: Final = 20.0
"""Seconds: a node that is silent for less may be back in a moment."""
LONGEST_S: Final = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FencingSettings:
    """The ``hook`` is a command, run without a shell for each node with jobs that is silent for ``after_s`` seconds.

    If it ends with 0 within ``timeout_s``, the node is proven dead. If ``hook`` is empty, nodes are not fenced.
    """

    hook: tuple[str, ...] = ()
    after_s: float = 60.0
    timeout_s: float = 60.0


def read_fencing(file: Table) -> FencingSettings:
    """Return the settings for fencing."""
    table, defaults = file.table("fencing"), FencingSettings()
    hook = _read_hook(table)
    after_s = table.take_duration("after", defaults.after_s)
    timeout_s = table.take_duration("timeout", defaults.timeout_s)
    table.finish()
    if not SHORTEST_SILENCE_S <= after_s <= LONGEST_S:
        raise table.error("after", f"is not between {SHORTEST_SILENCE_S:g} s and {LONGEST_S:g} s")
    if not 0.0 < timeout_s <= LONGEST_S:
        raise table.error("timeout", f"is not between 0 and {LONGEST_S:g} s")
    return FencingSettings(hook=hook, after_s=after_s, timeout_s=timeout_s)


def _read_hook(table: Table) -> tuple[str, ...]:
    words = table.take("hook", list, [])
    if not all(type(word) is str and "\0" not in word for word in words):
        raise table.error("hook", "is not a list of texts: the program and its arguments")
    if words and not words[0].startswith("/"):
        raise table.error("hook", f"{words[0]!r} is not an absolute path")
    return tuple(words)
