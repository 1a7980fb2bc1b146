"""Defines the interface and the ports that a node offers for the rendezvous of a job's ranks."""

import re
import socket
from dataclasses import dataclass

# Below the range from which the kernel takes ports for outgoing connections.
_FIRST_PORT, _LAST_PORT = 20000, 31999
_LOWEST_PORT, _HIGHEST_PORT = 1024, 65535


@dataclass(frozen=True, slots=True)
class Network:
    """A node's network for ranks. `interface` is a name like eth0; empty: the one that leads to the master."""

    interface: str = ""
    first_port: int = _FIRST_PORT
    last_port: int = _LAST_PORT

    @classmethod
    def parse(cls, interface: str, ports: str) -> "Network":
        """Parse an admin's settings; empty means the default. Raises ValueError."""
        if interface:
            address_of(interface)
        if not ports:
            return cls(interface)
        found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", ports)
        first, last = (int(found[1]), int(found[2])) if found else (0, 0)
        if not _LOWEST_PORT <= first <= last <= _HIGHEST_PORT:
            limits = f"{_LOWEST_PORT}-{_HIGHEST_PORT}"
            raise ValueError(f"--ports: {ports!r} is not a range like 20000-31999 within {limits}")
        return cls(interface, first, last)

    @property
    def ports(self) -> range:
        """All ports that ranks may use."""
        return range(self.first_port, self.last_port + 1)


def address_of(interface: str) -> str:
    """Return the interface's address, IPv4 if it has one. Raises ValueError if it has none or does not exist."""
    import psutil  # not at the top, because supervisors import this file and have only the standard library

    found = psutil.net_if_addrs()
    if interface not in found:
        raise ValueError(f"--interface: there is no {interface!r}; there are {', '.join(sorted(found))}")
    for family in (socket.AF_INET, socket.AF_INET6):
        for address in found[interface]:
            if address.family == family:
                return address.address
    raise ValueError(f"--interface: {interface} has no address")


ANY = Network()
"""The network when the admin sets nothing."""
