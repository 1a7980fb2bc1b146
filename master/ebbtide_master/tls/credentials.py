"""Makes the gRPC credentials of the master's two ports, which show its certificate and may ask for another."""

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from ebbtide_master.tls.folder import TlsFolder

log = logging.getLogger(__name__)


@dataclass
class _Pair:
    """The key and certificate in a file, which gRPC's threads read again after the file was replaced."""

    file: Path
    authority: bytes | None
    _seen: object = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Read the file. Raises OSError."""
        found = self.file.stat()
        pem = self.file.read_bytes()
        self._seen = (found.st_ino, found.st_mtime_ns)
        return grpc.ssl_server_certificate_configuration([(pem, pem)], root_certificates=self.authority)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what a new connection uses, or None if the file is unchanged, or cannot be read now."""
        with self._lock:
            try:
                found = self.file.stat()
                return None if (found.st_ino, found.st_mtime_ns) == self._seen else self.read()
            except OSError as error:
                log.error("certificate=unreadable %s", error)
                return None


def for_clients(folder: TlsFolder) -> grpc.ServerCredentials:
    """Return credentials that ask clients for no certificate; new connections get the master's renewed one."""
    return _dynamic(_Pair(folder.server_file, None), wants_certificate=False)


def for_agents(folder: TlsFolder) -> grpc.ServerCredentials:
    """Return credentials that accept no connection without a certificate of the cluster's authority. Raises OSError."""
    return _dynamic(_Pair(folder.server_file, folder.authority_file.read_bytes()), wants_certificate=True)


def _dynamic(pair: _Pair, *, wants_certificate: bool) -> grpc.ServerCredentials:
    # The type stubs do not know that `changed` may return None.
    return grpc.dynamic_ssl_server_credentials(pair.read(), pair.changed, wants_certificate)  # type: ignore[arg-type]
