"""Finds the master: at the socket in a home of this account, or at a port, where it proves itself with TLS."""

import ipaddress
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_machine.place import NotTrusted, check_file
from ebbtide_machine.process import Identity
from ebbtide_protos import home_socket

from ebbtide_agent.jsonfile import read_json

LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a master: host and port, or the home whose socket it listens on.

    ``front`` is where clients reach the master of the agent's own home, if that master listens on ports.
    """

    host: str
    port: int
    front: "Endpoint | None" = None
    home: Path | None = None

    @classmethod
    def of(cls, home: Path) -> "Endpoint":
        """Return the endpoint of a home's socket."""
        return cls(LOOPBACK, 0, home=home)

    def __str__(self) -> str:
        if self.home is not None:
            return f"{home_socket.SCHEME}{self.home}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the master is on this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @contextmanager
    def reached(self) -> Iterator[str]:
        """Yield the gRPC target, valid during the block; a socket's owner is checked first. Raises NoMaster."""
        if self.home is None:
            yield str(self)
            return
        with ExitStack() as stack:
            try:
                target = stack.enter_context(home_socket.reached(self.home))
            except (NotTrusted, OSError) as error:
                raise NoMaster(f"no master at {self}: {error}") from None
            yield target


class NoMaster(Exception):
    """No master was found; the message says why."""


def parse_endpoint(text: str) -> Endpoint:
    """Parse `HOST:PORT`, `[IPV6]:PORT` or `unix:HOME`. Raises ValueError."""
    if text.startswith(home_socket.SCHEME) and text != home_socket.SCHEME:
        return Endpoint.of(Path(text.removeprefix(home_socket.SCHEME)).absolute())
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"master {text!r} is not HOST:PORT")
    return Endpoint(host.removeprefix("[").removesuffix("]"), int(port))


def local_master(home: Path) -> Endpoint:
    """Return the endpoint that the running master of this home has published. Raises NoMaster."""
    path = home / "master.json"
    try:
        check_file(path)
        content = read_json(path)
        if content is None or not Identity.from_json(content).is_alive():
            raise NoMaster(f"{path} is of a master that has ended: none runs here")
    except FileNotFoundError:
        raise NoMaster(f"{path} does not exist: no master runs here") from None
    except (KeyError, TypeError):
        raise NoMaster(f"{path} does not say which process the master is") from None
    except (NotTrusted, OSError, ValueError) as error:
        raise NoMaster(str(error)) from None
    match content:
        case {"host": str(host), "port": int(port), "agent_port": int(agent_port)}:
            return Endpoint(host, agent_port, front=Endpoint(host, port))
        case {"host": _} | {"port": _} | {"agent_port": _}:
            raise NoMaster(f"{path} names only half of where the master is")
        case _:
            return Endpoint.of(home)
