"""Where the master is: ``--master``, else ``EBB_MASTER``, else the one of ``EBB_HOME``, else that of the last login.

The last login does not count while ``EBB_HOME`` is set.

The first two may name several masters that stand by for each other: ``HOST:PORT,HOST:PORT``; ``unix:HOME`` is the
socket of the master whose home that is.
"""

import ipaddress
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ebbtide_protos import door
from ebbtide_protos.place import NotTrusted

from ebbtide_cli.errors import USAGE, Failure, Unreachable
from ebbtide_cli.home import Home
from ebbtide_cli.logins import last_login

CONNECT_S = 1.5


@dataclass(frozen=True, slots=True)
class Address:
    """Where a master listens, who said so, and which other addresses were named with it, of masters that stand by."""

    host: str
    port: int
    source: str
    beside: tuple[str, ...] = ()
    home: Path | None = None  # of a master that is reached at the socket there, which has neither host nor port

    def __str__(self) -> str:
        if self.home is not None:
            return f"{door.SCHEME}{self.home}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the master is on this machine."""
        if self.home is not None:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @contextmanager
    def reached(self) -> Iterator[str]:
        """As gRPC names it, for as long as the block lasts; at a socket once its owner is proven.

        Raises `Unreachable` at once if nobody accepts connections there; gRPC alone would keep trying.
        """
        with ExitStack() as stack:
            try:
                if self.home is not None:
                    target = stack.enter_context(door.reached(self.home))
                else:
                    socket.create_connection((self.host, self.port), timeout=CONNECT_S).close()
                    target = str(self)
            except NotTrusted as error:
                raise self.absent(str(error)) from error
            except (OSError, UnicodeError) as error:
                raise self.absent(_words(error)) from error
            yield target

    def absent(self, why: str = "") -> Unreachable:
        """The error for a master that is not there."""
        reason = f"; {why}" if why else ""
        return Unreachable(f"no master at {self} ({self.source}{reason}): start one with 'ebb up'")


def find_master(option: "str | Address | None") -> Address:
    """Find the master's address; `Unreachable` if the local one does not run and there is no login.

    Whoever sets ``EBB_HOME`` means the cluster there: while its master is away, no other one is asked in its place.
    """
    if isinstance(option, Address):
        return option
    if option is not None:
        return _one_of(option, "--master")
    if named := os.environ.get("EBB_MASTER"):
        return _one_of(named, "EBB_MASTER")
    try:
        return local_master(Home.current())
    except Unreachable as error:
        if (last := last_login()) is None:
            raise
        if os.environ.get("EBB_HOME"):
            raise Unreachable(f"{error.message}, or unset EBB_HOME for {last}, where you logged in last") from None
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
    """Read ``HOST:PORT``, where an IPv6 host stands in brackets, or ``unix:HOME``."""
    if text.startswith(door.SCHEME) and text != door.SCHEME:
        return at_home(Path(text.removeprefix(door.SCHEME)).absolute(), source)
    host, separator, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not (separator and bare and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise Failure(f"{source}: {text[:80]!r} is not HOST:PORT with a port from 1 to 65535", USAGE)
    return Address(bare, int(port), source)


def at_home(home: Path, source: str) -> Address:
    """The socket of a home."""
    return Address("", 0, source, home=home)


def local_master(home: Home) -> Address:
    """Find the address of the master that runs in ``home``; `Unreachable` if none does."""
    if home.master() is None:
        raise Unreachable(f"no master in EBB_HOME {home.root}: start one with 'ebb up'")
    return at_home(home.root, f"EBB_HOME {home.root}")


def _words(error: OSError | UnicodeError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_S:g} s"
    if isinstance(error, ConnectionRefusedError | FileNotFoundError) or not isinstance(error, OSError):
        return ""
    return f"{error.strerror or error}"
