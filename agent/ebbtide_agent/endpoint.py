"""Where the master is."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from ebbtide_agent.jsonfile import read_json


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Host and port of a master. ``front``: where clients reach the master of the agent's own home, with TLS only."""

    host: str
    port: int
    tls: bool = False
    front: "Endpoint | None" = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the master is on this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


class NoMaster(Exception):
    """There is no master to be found; the message says why."""


def parse_endpoint(text: str, *, tls: bool = False) -> Endpoint:
    """`HOST:PORT` or `[IPV6]:PORT`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"master {text!r} is not HOST:PORT")
    return Endpoint(host.removeprefix("[").removesuffix("]"), int(port), tls)


def local_master(home: Path) -> Endpoint:
    """Where the master of this home says that it serves. Raises NoMaster."""
    path = home / "master.json"
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise NoMaster(str(error)) from None
    match content:
        case None:
            raise NoMaster(f"{path} does not exist: no master runs here")
        case {"host": str(host), "port": int(port), "tls": True, "agent_port": int(agent_port)}:
            return Endpoint(host, agent_port, tls=True, front=Endpoint(host, port, tls=True))
        case {"host": str(host), "port": int(port)}:
            return Endpoint(host, port)
        case _:
            raise NoMaster(f"{path} names no host and port")
