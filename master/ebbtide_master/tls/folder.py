"""Reads and writes ``EBB_HOME/tls``: the authority, the master's certificate, and the options of `ebb master init`."""

import contextlib
import json
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_master.tls.authority import DAY_S, Authority, Certificate, CertificateError, create, is_host_name, read

LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
DEFAULT_PORT: Final = 7077
RENEWED_S: Final = 30 * DAY_S
"""Seconds before its end at which the master's certificate is replaced."""


@dataclass(frozen=True, slots=True)
class TlsFolder:
    """The files below ``path``. The authority exists if its certificate does; keys have mode 0600."""

    path: Path

    @classmethod
    def of(cls, home: Path) -> "TlsFolder":
        """Return the folder of a master's home; it need not exist."""
        return cls(home / "tls")

    @property
    def exists(self) -> bool:
        """Whether there is an authority, so that the master's ports use TLS only."""
        return self.authority_file.exists()

    @property
    def authority_file(self) -> Path:
        """The authority's certificate, which is no secret."""
        return self.path / "ca.pem"

    @property
    def key_file(self) -> Path:
        """The authority's key, with which anyone could pass as any master or agent."""
        return self.path / "ca.key"

    @property
    def server_file(self) -> Path:
        """The master's key and certificate in one file, so that a crash leaves a pair that belongs together."""
        return self.path / "server.pem"

    @property
    def invitation_file(self) -> Path:
        """The first admin's invitation."""
        return self.path / "admin.invitation"

    @property
    def port(self) -> int:
        """The default port for clients; agents are served on the next one."""
        try:
            return int(json.loads((self.path / "init.json").read_text())["port"])
        except (OSError, ValueError, KeyError, TypeError):
            return DEFAULT_PORT

    def remember_port(self, port: int | None) -> None:
        """Set the default port for clients; None leaves it as it is."""
        if port not in (None, self.port):
            write(self.path / "init.json", json.dumps({"port": port}))

    def create_authority(self, now: float) -> bool:
        """Make an authority if there is none, and return whether one was made."""
        if self.exists:
            return False
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate, key = create(now)
        write(self.key_file, key)
        write(self.authority_file, certificate)
        return True

    def authority(self) -> Authority:
        """Read the authority. Raises `CertificateError`, which names the file, or OSError."""
        with _named(self.authority_file):
            return Authority(self.authority_file.read_text(), self.key_file.read_text())

    def server(self) -> Certificate | None:
        """Return the master's certificate, or None if there is none yet. Raises `CertificateError`, OSError."""
        if not self.server_file.exists():
            return None
        with _named(self.server_file):
            return read(self.server_file.read_text())

    def ensure_covers(
        self, hosts: Iterable[str], now: float, left_s: float = 0.0, *, first: Iterable[str] = ()
    ) -> bool:
        """Make a new certificate of the master unless the present one covers ``hosts`` for longer than ``left_s``.

        Returns whether one was made; it also covers the old one's hosts, after those that are to be its ``first``.
        Raises `CertificateError`, OSError.
        """
        old = self.server()
        wanted = tuple(dict.fromkeys((*first, *(old.hosts if old is not None else ()), *hosts)))
        if old is not None and wanted == old.hosts and old.ends - now > left_s:
            return False
        certificate, key = self.authority().server(wanted, now)
        write(self.server_file, key + certificate)
        return True


def own_hosts() -> tuple[str, ...]:
    """Return the names and addresses by which other machines may reach this one, then those of loopback."""
    import psutil

    names = [name for name in (socket.getfqdn(), socket.gethostname()) if is_host_name(name)]
    names = [name for name in names if not name.startswith("localhost")]
    families = (socket.AF_INET, socket.AF_INET6)
    found = [
        address.address
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        # An address with a zone is useless to another machine.
        if address.family in families and "%" not in address.address
    ]
    return tuple(dict.fromkeys((*names, *(a for a in found if a not in LOCAL_HOSTS), *LOCAL_HOSTS)))


def write(path: Path, text: str) -> None:
    """Write a file in one step and durably, readable by its owner alone. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except CertificateError as error:
        raise CertificateError(f"{path}: {error}") from None
