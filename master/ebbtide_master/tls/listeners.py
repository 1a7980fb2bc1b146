"""Holds the certificates and ports of a master with an authority."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_master.store.vault import Vault
from ebbtide_master.tls.enrolment import Enrolment
from ebbtide_master.tls.folder import LOCAL_HOSTS, RENEWED_S, TlsFolder, own_hosts

ANY_HOSTS: Final = frozenset({"0.0.0.0", "::"})


@dataclass(frozen=True, slots=True)
class Listeners:
    """The certificates, the nodes that have joined, and the ports for clients and agents; 0 means any free port."""

    folder: TlsFolder
    enrolment: Enrolment
    host: str
    port: int
    agent_port: int

    @property
    def public_host(self) -> str:
        """The host by which other machines reach the master: the one it listens on, or its certificate's first name."""
        if self.host not in ANY_HOSTS:
            return self.host
        return next((name for name in self.hosts() if name not in LOCAL_HOSTS), self.host)

    def hosts(self) -> tuple[str, ...]:
        """Return the names and addresses that the master's own certificate is for; none if there is none."""
        certificate = self.folder.server()
        return certificate.hosts if certificate is not None else ()

    def certificate_ends(self) -> float | None:
        """Return when the master's own certificate ends, in Unix seconds, or None if there is none."""
        certificate = self.folder.server()
        return certificate.ends if certificate is not None else None


@dataclass(frozen=True, slots=True)
class PublicEndpoint:
    """The address at which other machines reach this master, and the nodes that may join there."""

    listeners: Listeners
    port: int
    agent_port: int

    @property
    def enrolment(self) -> Enrolment:
        """The nodes that have joined, and the invitations."""
        return self.listeners.enrolment

    def address(self, host: str = "") -> str:
        """Return the address for clients, as HOST:PORT, by one of the certificate's hosts if one is given.

        Raises ValueError if the certificate is not for it.
        """
        if host and host not in (hosts := self.listeners.hosts()):
            raise ValueError(f"the master's certificate is for {', '.join(hosts)}, and not for {host[:80]!r}")
        host = host or self.listeners.public_host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def certificate_ends(self) -> float | None:
        """Return when the master's certificate ends, in Unix seconds, or None if there is none."""
        return self.listeners.certificate_ends()


def open_listeners(
    home: Path, host: str, port: int | None, agent_port: int | None, vault: Vault, now: Callable[[], float]
) -> Listeners:
    """Return the listeners of the master in ``home``, and make sure that its certificate covers ``host``.

    Raises `CertificateError`, OSError.
    """
    folder = TlsFolder.of(home)
    named = () if host in ANY_HOSTS else (host,)
    folder.ensure_covers((*named, *(own_hosts() if folder.server() is None else ())), now(), RENEWED_S)
    port = folder.port if port is None else port
    if agent_port is None:
        agent_port = port + 1 if port else 0
    return Listeners(folder, Enrolment(vault, folder.authority(), now), host, port, agent_port)
