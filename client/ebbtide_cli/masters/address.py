"""Parse and print the addresses of masters, and check whether a master listens at one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ebbtide_machine.place import NotTrusted
from ebbtide_protos import home_socket

from ebbtide_cli.errors import USAGE, Failure, Unreachable
from ebbtide_cli.home import Home

if TYPE_CHECKING:
    from _socket import socket

CONNECT_S = 1.5


class Address(NamedTuple):
    """Where a master listens, and which option, variable or record gave the address (``source``).

    ``beside`` has the other addresses that were given with this one; they belong to standby masters.
    """

    host: str
    port: int
    source: str
    beside: tuple[str, ...] = ()
    home: Path | None = None  # reach the master at the socket in this home; host and port are then empty
    as_owner: bool = False  # as the account of that home, whatever EBB_TOKEN says: it may be for another cluster

    def __str__(self) -> str:
        if self.home is not None:
            return f"{home_socket.SCHEME}{self.home}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the master is on this machine."""
        if self.home is not None:
            return True
        import ipaddress

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @contextmanager
    def reached(self) -> Iterator[str]:
        """Yield the address as gRPC names it, valid for the block; check first who owns a socket.

        Raises `Unreachable` at once if nothing accepts connections there; gRPC alone would keep trying.
        """
        with ExitStack() as stack:
            try:
                if self.home is not None:
                    target = stack.enter_context(home_socket.reached(self.home))
                else:
                    import socket

                    socket.create_connection((self.host, self.port), timeout=CONNECT_S).close()
                    target = str(self)
            except NotTrusted as error:
                raise self.absent(str(error)) from error
            except (OSError, UnicodeError) as error:
                raise self.absent(_words(error)) from error
            yield target

    @contextmanager
    def connecting(self) -> "Iterator[Callable[[], socket]]":
        """Yield a function that connects to the socket in the home, valid for the block; it checks who listens there.

        Raises `Unreachable` at once if nothing accepts connections there, so the first connection is made before it is
        asked for. Later the function raises OSError, or `Unreachable` if the listener is not to be trusted.
        """
        assert self.home is not None
        made: list[socket] = []
        home = self.home

        def connect() -> "socket":
            try:
                return made.pop() if made else home_socket.connected(home, target)
            except NotTrusted as error:
                raise self.absent(str(error)) from error

        try:
            with ExitStack() as stack:
                try:
                    target = stack.enter_context(home_socket.entered(home))
                    made.append(connect())
                except NotTrusted as error:
                    raise self.absent(str(error)) from error
                except OSError as error:
                    raise self.absent(_words(error)) from error
                yield connect
        finally:
            for unused in made:
                unused.close()

    def absent(self, why: str = "") -> Unreachable:
        """Build the error for a master that does not listen here."""
        reason = f"; {why}" if why else ""
        return Unreachable(f"no master at {self} ({self.source}{reason}): start one with 'ebb up'")


def parse_address(text: str, source: str) -> Address:
    """Read ``HOST:PORT``, where an IPv6 host stands in brackets, or ``unix:HOME``."""
    if text.startswith(home_socket.SCHEME) and text != home_socket.SCHEME:
        return at_home(Path(text.removeprefix(home_socket.SCHEME)).absolute(), source)
    host, separator, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not (separator and bare and port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise Failure(f"{source}: {text[:80]!r} is not HOST:PORT with a port from 1 to 65535", USAGE)
    return Address(bare, int(port), source)


def at_home(home: Path, source: str) -> Address:
    """Return the address of the socket in a home."""
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
