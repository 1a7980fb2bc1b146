"""The certificate authority of one cluster, which signs for its masters and agents. All keys are ECDSA P-256."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY_S: Final = 86_400.0
AUTHORITY_S: Final = 3650 * DAY_S
CERTIFICATE_S: Final = 365 * DAY_S
BACKDATED_S: Final = DAY_S
"""Seconds by which certificates begin before they are made, because the clocks of machines differ."""
AGENT_PREFIX: Final = "agent:"
_HOST: Final = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
MAX_NODE_NAME: Final = 64 - len(AGENT_PREFIX)
"""Characters of a node's name, because a certificate's common name has at most 64."""


class CertificateError(ValueError):
    """A certificate, a key or a request for a certificate is invalid; the message says why."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate; times are Unix seconds, and ``hosts`` the names and addresses that it is for."""

    pem: str
    name: str
    serial: str
    begins: float
    ends: float
    hosts: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The node whose agent the certificate proves; empty if it is no agent's."""
        return self.name.removeprefix(AGENT_PREFIX) if self.name.startswith(AGENT_PREFIX) else ""


class Authority:
    """Signs certificates for the servers and agents of its cluster."""

    def __init__(self, certificate_pem: str, key_pem: str) -> None:
        """Read the certificate and its key. Raises `CertificateError` if they are not a pair."""
        self._key, self._certificate = _key(key_pem), _x509(certificate_pem)
        if self._certificate.public_key() != self._key.public_key():
            raise CertificateError("the authority's key is not that of its certificate")
        self.certificate = read(certificate_pem)

    def server(self, hosts: Sequence[str], now: float) -> tuple[str, str]:
        """Return a new certificate and key, as PEM, for a master that is reached by ``hosts``, names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        return self._sign("ebbtide master", key.public_key(), now, purpose, names), _key_pem(key)

    def agent(self, node: str, request_pem: str, now: float) -> str:
        """Sign a certificate for the agent of ``node`` and the key of the request. Raises `CertificateError`."""
        if not 0 < len(node) <= MAX_NODE_NAME:
            raise CertificateError(f"a node that joins has a name of 1 to {MAX_NODE_NAME} characters, not {len(node)}")
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        return self._sign(AGENT_PREFIX + node, _requested_key(request_pem), now, purpose)

    def _sign(self, name: str, key: ec.EllipticCurvePublicKey, now: float, *extensions: x509.ExtensionType) -> str:
        ends = min(now + CERTIFICATE_S, self.certificate.ends)
        builder = _builder(name, key, now, ends).issuer_name(self._certificate.subject)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        for extension in (*extensions, identifier):
            builder = builder.add_extension(extension, critical=False)
        return _pem(builder.sign(self._key, hashes.SHA256()))


def create(now: float) -> tuple[str, str]:
    """Return the certificate and the key of a new authority, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = f"ebbtide authority {x509.random_serial_number():x}"[:40]
    builder = _builder(name, key.public_key(), now, now + AUTHORITY_S).issuer_name(_name(name))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_SIGNS, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _pem(builder.sign(key, hashes.SHA256())), _key_pem(key)


def read(pem: str | bytes) -> Certificate:
    """Read a certificate. Raises `CertificateError`."""
    found = _x509(pem)
    name = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return Certificate(
        pem=_pem(found),
        name=str(name[0].value) if name else "",
        serial=f"{found.serial_number:x}",
        begins=found.not_valid_before_utc.timestamp(),
        ends=found.not_valid_after_utc.timestamp(),
        hosts=_hosts(found),
    )


def _builder(name: str, key: ec.EllipticCurvePublicKey, now: float, ends: float) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(_name(name)).public_key(key)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_date(now - BACKDATED_S))
    return builder.not_valid_after(_date(ends))


def _date(seconds: float) -> datetime:
    # Not `fromtimestamp`: whole seconds, and no year is too far for the platform.
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=int(seconds))


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def is_host_name(text: str) -> bool:
    """Whether ``text`` can be the name of a host."""
    return _HOST.fullmatch(text) is not None


def _general_name(host: str) -> x509.GeneralName:
    if is_host_name(host) and not host.replace(".", "").isdigit():
        return x509.DNSName(host)
    try:
        # An address with a zone has a meaning on one machine only.
        address = ipaddress.ip_address("" if "%" in host else host)
    except ValueError:
        raise CertificateError(f"--host {host[:80]!r} is neither a name nor an address") from None
    return x509.IPAddress(address)


def _hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def _requested_key(pem: str) -> ec.EllipticCurvePublicKey:
    try:
        request = x509.load_pem_x509_csr(pem.encode())
        key = request.public_key()
        if not request.is_signature_valid:
            raise CertificateError("the request for a certificate is not signed with its key")
    except (ValueError, InvalidSignature, x509.InvalidVersion) as error:
        raise CertificateError(f"this is no request for a certificate: {error}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError("the key of a node must be ECDSA P-256")
    return key


def _x509(pem: str | bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.encode() if isinstance(pem, str) else pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise CertificateError(f"this is no certificate: {error}") from None


def _key(pem: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pem.encode(), None)
    except (ValueError, TypeError) as error:
        raise CertificateError(f"this is no private key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("the authority's key must be one of an elliptic curve")
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


_SIGNS: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
