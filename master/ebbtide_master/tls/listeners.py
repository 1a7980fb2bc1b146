"""What a master with an authority serves with."""

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
    """Certificates and who has them, and where the ports are of clients and agents; 0 is any free one."""

    folder: TlsFolder
    enrolment: Enrolment
    host: str
    port: int
    agent_port: int

    @property
    def public_host(self) -> str:
        """By which other machines reach the master: where it listens, or the first name in its certificate."""
        if self.host not in ANY_HOSTS:
            return self.host
        certificate = self.folder.server()
        hosts = certificate.hosts if certificate is not None else ()
        return next((name for name in hosts if name not in LOCAL_HOSTS), self.host)

    def certificate_ends(self) -> float | None:
        """When the master's own certificate ends, in Unix seconds."""
        certificate = self.folder.server()
        return certificate.ends if certificate is not None else None


@dataclass(frozen=True, slots=True)
class Front:
    """Where this master is reached from other machines, and who may join there."""

    listeners: Listeners
    host: str
    port: int
    agent_port: int

    @property
    def enrolment(self) -> Enrolment:
        """Who has joined, and who may."""
        return self.listeners.enrolment

    @property
    def address(self) -> str:
        """Of clients, as HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def certificate_ends(self) -> float | None:
        """When the master's certificate ends, in Unix seconds."""
        return self.listeners.certificate_ends()


def open_listeners(
    home: Path, host: str, port: int | None, agent_port: int | None, vault: Vault, now: Callable[[], float]
) -> Listeners:
    """What the master of ``home`` serves with, and a certificate for ``host``. Raises `CertificateError`, OSError."""
    folder = TlsFolder.of(home)
    named = () if host in ANY_HOSTS else (host,)
    folder.cover((*named, *(own_hosts() if folder.server() is None else ())), now(), RENEWED_S)
    port = folder.port if port is None else port
    if agent_port is None:
        agent_port = port + 1 if port else 0
    return Listeners(folder, Enrolment(vault, folder.authority(), now), host, port, agent_port)
