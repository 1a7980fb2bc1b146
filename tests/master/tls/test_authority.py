"""The cluster's own authority."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from ebbtide_agent.link.joining import new_key
from ebbtide_master.tls.authority import (
    BACKDATED_S,
    CERTIFICATE_S,
    DAY_S,
    MAX_NODE_NAME,
    Authority,
    CertificateError,
    create,
    read,
)
from ebbtide_master.tls.folder import TlsFolder

from tests.certificates import an_authority

NOW = 1_800_000_000.0


def test_a_certificate_of_a_node_says_whose_agent_it_is_and_lasts_a_year():
    certificate = read(an_authority().agent("ws2", new_key().request, NOW))
    assert (certificate.name, certificate.node) == ("agent:ws2", "ws2")
    assert (certificate.begins, certificate.ends) == (NOW - BACKDATED_S, NOW + CERTIFICATE_S)


def test_nothing_of_a_request_but_its_key_is_taken():
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "agent:other")])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(name)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = an_authority().agent("ws2", request.public_bytes(Encoding.PEM).decode(), NOW)
    found = x509.load_pem_x509_certificate(pem.encode())
    assert read(pem).node == "ws2"
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert found.public_key() == key.public_key()


def test_no_certificate_outlives_the_authority():
    authority = Authority(*create(NOW))
    late = authority.certificate.ends - DAY_S
    assert read(authority.agent("ws2", new_key().request, late)).ends == authority.certificate.ends


@pytest.mark.parametrize("request_pem", ["", "no request", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n"])
def test_what_is_no_request_is_refused(request_pem):
    with pytest.raises(CertificateError, match="no request"):
        an_authority().agent("ws2", request_pem, NOW)


def test_a_key_of_another_kind_is_refused():
    key = ec.generate_private_key(ec.SECP384R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    with pytest.raises(CertificateError, match="P-256"):
        an_authority().agent("ws2", request.public_bytes(Encoding.PEM).decode(), NOW)


@pytest.mark.parametrize("length", [0, MAX_NODE_NAME + 1])
def test_a_name_that_does_not_fit_is_refused(length):
    with pytest.raises(CertificateError, match="1 to 58 characters"):
        an_authority().agent("n" * length, new_key().request, NOW)


def test_the_key_of_another_authority_is_noticed():
    with pytest.raises(CertificateError, match="not that of its certificate"):
        Authority(create(NOW)[0], create(NOW)[1])


@pytest.mark.parametrize("host", ["", "a b", "ä.lab", "-a", "a/b", "a" * 254, "*", "fe80::1%eth0", "300.1.1.1"])
def test_what_is_no_host_is_refused(host):
    with pytest.raises(CertificateError, match=r"--host .* is neither a name nor an address"):
        an_authority().server([host], NOW)


def test_what_was_made_is_kept_and_a_new_host_is_added(tmp_path):
    folder = TlsFolder.of(tmp_path)
    assert folder.create_authority(NOW)
    assert folder.ensure_covers(["lab", "192.0.2.1"], NOW)
    first, authority = folder.server(), folder.authority_file.read_text()
    assert not folder.create_authority(NOW)
    assert not folder.ensure_covers(["lab"], NOW)
    assert folder.server() == first
    assert folder.ensure_covers(["::1"], NOW)
    assert folder.server().hosts == ("lab", "192.0.2.1", "::1")
    assert folder.authority_file.read_text() == authority


def test_a_certificate_that_ends_soon_is_replaced(tmp_path):
    folder = TlsFolder.of(tmp_path)
    folder.create_authority(NOW)
    folder.ensure_covers(["lab"], NOW)
    ends = folder.server().ends
    assert not folder.ensure_covers((), ends - 31 * DAY_S, 30 * DAY_S)
    assert folder.ensure_covers((), ends - 29 * DAY_S, 30 * DAY_S)
    assert folder.server().ends > ends


def test_nobody_else_may_read_a_key(tmp_path):
    folder = TlsFolder.of(tmp_path)
    folder.create_authority(NOW)
    folder.ensure_covers(["lab"], NOW)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.path.iterdir()} == {0o600}
