"""Finds why a TLS connection to a master fails, because gRPC says only "Socket closed" for all possible reasons."""

import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

TIMEOUT_S: Final = 3.0
_EXPIRED: Final = 10
_NOT_YET: Final = 9
_WRONG_HOST: Final = frozenset({62, 64})
"""OpenSSL's X509_V_ERR codes."""


@dataclass(frozen=True, slots=True)
class TlsProbe:
    """Where to connect, and which authority to trust; ``own`` is a key and a certificate as PEM, empty for clients."""

    host: str
    port: int
    authority: str
    own: str = ""


class AnotherError(Exception):
    """The other side is not the master that is meant: its certificate is of another authority, or for another name."""


def trouble(probe: TlsProbe, now: float | None = None) -> str:
    """Return what is wrong with the connection or a certificate; empty if nothing is. Waits up to twice `TIMEOUT_S`."""
    try:
        return passing_trouble(probe, now)
    except AnotherError as error:
        return str(error)


def passing_trouble(probe: TlsProbe, now: float | None = None) -> str:
    """Return what `trouble` does, if that may pass. Raises AnotherError if it does not."""
    now = time.time() if now is None else now
    if probe.own and (words := own_trouble(probe.own, now)):
        return words
    try:
        if not _is_welcome(probe):
            return _refusal(probe)
    except ssl.SSLCertVerificationError as error:
        words = _their_trouble(probe, error, now)
        if error.verify_code not in (_EXPIRED, _NOT_YET):
            raise AnotherError(words) from None
        return words
    except ssl.SSLError as error:
        return _failure(probe, error)
    except ConnectionResetError:
        return f"{_where(probe)} hangs up on TLS: is it a master, and this its right port?"
    except OSError:
        return ""  # no connection at all; the caller knows the reason better
    return ""


def speaks_tls(host: str, port: int) -> bool:
    """Whether a server that speaks TLS listens there."""
    return _shown(TlsProbe(host, port, "")) is not None


def own_trouble(own: str, now: float) -> str:
    """Return what is wrong with the dates of a node's own certificate; empty if nothing is."""
    begins, ends = validity(own)
    if now >= ends:
        return f"the node's certificate expired on {day(ends)}: join again ('ebb node invite', 'ebb agent join')"
    if now < begins:
        return f"the node's certificate begins on {day(begins)}, and here it is {day(now)}: set the clock"
    return ""


def validity(pem: str) -> tuple[float, float]:
    """Return when the first certificate in the text begins and ends, in Unix seconds. Raises ValueError."""
    certificate = _parsed(pem)
    return certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()


def day(seconds: float) -> str:
    """Return the date of a Unix time, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _is_welcome(probe: TlsProbe) -> bool:
    """Whether the other side goes on after the handshake: with TLS 1.3 it checks our certificate only then.

    Raises an error if the handshake fails.
    """
    context = ssl.create_default_context(cadata=probe.authority)
    context.set_alpn_protocols(["h2"])
    if probe.own:
        with _as_file(probe.own) as file:
            context.load_cert_chain(file)
    with (
        socket.create_connection((probe.host, probe.port), TIMEOUT_S) as connection,
        context.wrap_socket(connection, server_hostname=probe.host) as wrapped,
    ):
        try:
            return bool(wrapped.recv(1))
        except TimeoutError:
            return True  # the other side sends nothing, but has not hung up
        except OSError:  # a TLS alert, or a reset connection
            return False


def _their_trouble(probe: TlsProbe, error: ssl.SSLCertVerificationError, now: float) -> str:
    shown = _shown(probe)
    if shown is None:
        return f"the certificate of {_where(probe)} is refused: {error.verify_message}"
    begins, ends = shown.not_valid_before_utc.timestamp(), shown.not_valid_after_utc.timestamp()
    if error.verify_code == _EXPIRED:
        return f"the certificate of {_where(probe)} expired on {day(ends)}: start that master, it makes a new one"
    if error.verify_code == _NOT_YET:
        return f"the certificate of {_where(probe)} begins on {day(begins)}, and here it is {day(now)}: set the clock"
    if error.verify_code in _WRONG_HOST:
        names = f"it is for {', '.join(_names(shown)) or 'nobody'}"
        return (
            f"the certificate of {_where(probe)} is for another name ({names}): 'ebb master init --host {probe.host}'"
        )
    return f"{_where(probe)} is not of the cluster that was joined: its certificate is of another authority"


def _refusal(probe: TlsProbe) -> str:
    if not probe.own:
        return f"{_where(probe)} wants a certificate: that is its port for agents"
    return f"{_where(probe)} refuses the node's certificate, as one of another authority: join again ('ebb agent join')"


def _failure(probe: TlsProbe, error: ssl.SSLError) -> str:
    reason = (error.reason or str(error)).lower().replace("_", " ")
    if "wrong version" in reason or "record layer" in reason or "unexpected eof" in reason:
        return f"{_where(probe)} does not speak TLS: is it a master, and this its right port?"
    return f"no TLS with {_where(probe)}: {reason}"


def _shown(probe: TlsProbe) -> "Certificate | None":
    """Return the certificate that the other side shows, without trusting it, or None."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((probe.host, probe.port), TIMEOUT_S) as connection,
            context.wrap_socket(connection) as wrapped,
        ):
            found = wrapped.getpeercert(binary_form=True)
    except OSError:
        return None
    return _parsed(ssl.DER_cert_to_PEM_cert(found)) if found else None


def _names(certificate: "Certificate") -> list[str]:
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def _parsed(pem: str) -> "Certificate":
    from cryptography import x509

    return x509.load_pem_x509_certificates(pem.encode())[0]


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Give the path of an unnamed temporary file with ``text``, because OpenSSL reads keys from files only."""
    descriptor = os.memfd_create("certificate")
    try:
        os.write(descriptor, text.encode())
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _where(probe: TlsProbe) -> str:
    host = f"[{probe.host}]" if ":" in probe.host else probe.host
    return f"the master at {host}:{probe.port}"
