"""Open pages in a browser, where there is a display to see it on."""

import os


def has_display() -> bool:
    """Whether somebody would see a browser that is started here."""
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def open_page(url: str) -> bool:
    """Open ``url`` in a browser; return whether that worked."""
    import webbrowser  # most links are opened by hand

    return webbrowser.open(url)
