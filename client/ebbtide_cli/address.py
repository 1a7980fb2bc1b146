"""Where the master is: ``--master``, else ``EBB_MASTER``, else the one of ``EBB_HOME``, else that of the last login.

The first two may name several masters that stand by for each other: ``HOST:PORT,HOST:PORT``.
"""

import ipaddress
import os
import socket
from dataclasses import dataclass, replace

from ebbtide_cli.errors import USAGE, Failure, Unreachable
from ebbtide_cli.home import Home, read_record
from ebbtide_cli.logins import last_login

CONNECT_S = 1.5


@dataclass(frozen=True, slots=True)
class Address:
    """Where a master listens, who said so, and which other addresses were named with it, of masters that stand by."""

    host: str
    port: int
    source: str
    beside: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the master is on this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def absent(self, why: str = "") -> Unreachable:
        """The error for a master that is not there."""
        reason = f"; {why}" if why else ""
        return Unreachable(f"no master at {self} ({self.source}{reason}): start one with 'ebb up'")


def find_master(option: "str | Address | None") -> Address:
    """Find the master's address; `Unreachable` if the local one does not run and there is no login."""
    if isinstance(option, Address):
        return option
    if option is not None:
        return _one_of(option, "--master")
    if named := os.environ.get("EBB_MASTER"):
        return _one_of(named, "EBB_MASTER")
    try:
        return local_master(Home.current())
    except Unreachable:
        if (last := last_login()) is None:
            raise
    return _one_of(last, "the last login")


def _one_of(text: str, source: str) -> Address:
    """The address in ``text``; of several, between commas, the first where a master serves now."""
    addresses = [parse_address(part.strip(), source) for part in text.split(",")]
    if len(addresses) == 1:
        return addresses[0]
    from ebbtide_cli.choosing import first_that_serves

    beside = tuple(map(str, addresses))
    return first_that_serves([replace(address, beside=beside) for address in addresses])


def parse_address(text: str, source: str) -> Address:
    """Read ``HOST:PORT``; an IPv6 host stands in brackets."""
    host, separator, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not (separator and bare and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise Failure(f"{source}: {text[:80]!r} is not HOST:PORT with a port from 1 to 65535", USAGE)
    return Address(bare, int(port), source)


def check_listening(address: Address) -> None:
    """Raise `Unreachable` at once if nobody accepts connections there; gRPC alone would keep trying."""
    try:
        socket.create_connection((address.host, address.port), timeout=CONNECT_S).close()
    except (OSError, UnicodeError) as error:
        raise address.absent(_words(error)) from error


def local_master(home: Home) -> Address:
    """Find the address of the master that runs in ``home``; `Unreachable` if none does."""
    record = read_record(home.master_record)
    if record is None:
        raise Unreachable(f"no master in EBB_HOME {home.root}: start one with 'ebb up'")
    try:
        address = Address(str(record["host"]), int(record["port"]), f"EBB_HOME {home.root}")
    except (KeyError, TypeError, ValueError):
        raise Unreachable(f"{home.master_record} is damaged: start a master with 'ebb up'") from None
    if home.master() is None:
        raise address.absent()
    return address


def _words(error: OSError | UnicodeError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_S:g} s"
    if isinstance(error, ConnectionRefusedError) or not isinstance(error, OSError):
        return ""
    return f"{error.strerror or error}"
