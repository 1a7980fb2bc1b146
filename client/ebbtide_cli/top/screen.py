"""Draw frames on the terminal, and restore it at the end."""

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console, Group
from rich.live import Live

from ebbtide_cli import interrupts
from ebbtide_cli.top.feed import Picture
from ebbtide_cli.top.frame import frame

PLAIN_WIDTH = 120
"""Columns of output that is not a terminal."""


class Screen:
    """The alternate screen of a terminal. It is not cleared between frames, so it does not flicker."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def show(self, picture: Picture) -> None:
        """Draw the picture over the last one."""
        self._live.update(Group(*frame(picture, self._console.width, self._console.height)), refresh=True)

    @contextmanager
    def opened(self) -> Iterator["Screen"]:
        """Switch to the alternate screen, and back at the end."""
        with _unechoed() if sys.stdin.isatty() else nullcontext(), self._live:
            yield self


def print_frame(picture: Picture) -> None:
    """Print one frame as wide as the terminal."""
    terminal = sys.stdout.isatty()
    console = Console(force_terminal=terminal, width=None if terminal else PLAIN_WIDTH, highlight=False)
    for line in frame(picture, console.width):
        with console.capture() as captured:
            console.print(line)
        print(captured.get().rstrip(), flush=True)


def wait_for_quit(stop: int, seconds: float, *, keys: bool = False) -> bool:
    """Wait for ``seconds``; return True once the descriptor can be read or, with ``keys``, ``q`` is pressed."""
    sources = [stop, sys.stdin.fileno()] if keys else [stop]
    ready = select.select(sources, [], [], seconds)[0]
    if stop in ready or not ready:
        return stop in ready
    pressed = os.read(sys.stdin.fileno(), 64)
    return not pressed or b"q" in pressed.lower()  # nothing: the terminal is gone


@contextmanager
def _unechoed() -> Iterator[None]:
    """Read keys at once, without echo, and without Ctrl-Z, which would stop this process on the alternate screen."""
    with interrupts.kept_terminal(sys.stdin.fileno()):
        tty.setcbreak(sys.stdin)
        changed = termios.tcgetattr(sys.stdin)
        changed[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, changed)
        yield
