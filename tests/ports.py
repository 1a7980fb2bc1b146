"""Ports that nobody else gets before a test uses them."""

import random
import socket
from contextlib import ExitStack

_RANGE = range(10000, 20000)
"""They lie below those that ranks meet on (20000) and those that the kernel hands out (32768)."""
_CHANCE = random.SystemRandom()
"""It differs from process to process also where hypothesis has seeded `random`."""


def free_port() -> int:
    """Return a port on which nobody listens."""
    return free_ports(1)[0]


def free_ports(count: int) -> range:
    """Return `count` ports in a row on which nobody listens."""
    while True:
        first = _CHANCE.choice(_RANGE[:-count])
        found = range(first, first + count)
        with ExitStack() as held:
            try:
                for port in found:
                    held.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return found
