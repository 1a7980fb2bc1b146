"""Defer modules that libraries load and that most verbs never use, unless somebody has loaded them before."""

import os

from ebbtide_protos.deferring import defer


def defer_what_verbs_hardly_use() -> None:
    """Call this before the libraries are loaded."""
    # click cleans the help of each option with it; it takes a tenth of the time of a short verb to load.
    defer("inspect", cleandoc=_cleandoc)
    # uuid, which click imports, asks it for the system.
    defer("platform", system=lambda: os.uname().sysname)
    # click looks in vain for a translation of each of its texts.
    defer("gettext", gettext=lambda text: text, ngettext=lambda one, many, count: one if count == 1 else many)
    # pathlib imports it for paths as URIs.
    defer("urllib.parse", "quote_from_bytes")
    # protobuf loads its implementation in Python beside the one in C, which is the one that is used.
    defer("google.protobuf.internal.python_message")
    # The one in C asks it what to add to Google's own messages, such as times; none of ours is or has one of these.
    defer("google.protobuf.internal.well_known_types", WKTBASES={})


def _cleandoc(text: str) -> str:
    """Do what `inspect.cleandoc` does; that is not loaded for a text of one line."""
    if "\n" not in text and "\t" not in text:
        return text.lstrip(" ")
    import inspect

    inspect.signature  # noqa: B018 - loads it
    return inspect.cleandoc(text)
