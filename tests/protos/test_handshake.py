"""What is said of a TLS connection that is not made."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from ebbtide_protos import handshake
from ebbtide_protos.handshake import TlsProbe, own_trouble, speaks_tls, trouble, validity

from tests.certificates import LONG_AGO_S, a_certificate, an_authority

DAY_S = 86_400.0


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A server's thread may be late on a busy machine."""
    monkeypatch.setattr(handshake, "TIMEOUT_S", 60.0)


@contextmanager
def a_server(tmp_path, authority, hosts=("localhost",), age_s=0.0, wants: str = "") -> Iterator[int]:
    """Listens with a certificate of ``authority``, and wants one of the authority ``wants``; its port."""
    certificate, key = authority.server(hosts, time.time() - age_s)
    file = tmp_path / "server.pem"
    file.write_text(key + certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=wants or None)
    context.load_cert_chain(file)
    context.verify_mode = ssl.CERT_REQUIRED if wants else ssl.CERT_NONE
    with serving(lambda connection: greet(context, connection)) as port:
        yield port


def greet(context, connection):
    with context.wrap_socket(connection, server_side=True) as wrapped:
        wrapped.sendall(b"settings")


@contextmanager
def serving(talk) -> Iterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                talk(connection)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def joined(pair):
    return pair[0] + pair[1]


def test_nothing_is_said_of_what_is_right(tmp_path):
    authority = an_authority()
    ca = authority.certificate.pem
    own = joined(a_certificate(authority, "ws2"))
    with a_server(tmp_path, authority, wants=ca) as port:
        assert trouble(TlsProbe("localhost", port, ca, own)) == ""
    with a_server(tmp_path, authority) as port:
        assert trouble(TlsProbe("localhost", port, ca)) == ""
        assert speaks_tls("localhost", port)


def test_the_day_on_which_the_node_s_certificate_expired_is_said_without_asking_anybody():
    own = joined(a_certificate(an_authority(), "ws2", age_s=LONG_AGO_S))
    ends = time.strftime("%Y-%m-%d", time.gmtime(validity(own)[1]))
    words = trouble(TlsProbe("localhost", 1, "", own))
    assert words.startswith(f"the node's certificate expired on {ends}: join again")


def test_a_clock_that_is_behind_is_named():
    own = joined(a_certificate(an_authority(), "ws2"))
    assert own_trouble(own, time.time()) == ""
    assert "set the clock" in own_trouble(own, time.time() - 10 * DAY_S)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"age_s": LONG_AGO_S}, "expired on "),
        ({"age_s": -10 * DAY_S}, "set the clock"),
        ({"hosts": ("lab", "192.0.2.1")}, "is for another name (it is for lab, 192.0.2.1): 'ebb master init --host"),
    ],
)
def test_what_is_wrong_with_the_master_s_certificate_is_said(tmp_path, what, words):
    authority = an_authority()
    with a_server(tmp_path, authority, **what) as port:
        assert words in trouble(TlsProbe("localhost", port, authority.certificate.pem))


def test_another_authority_is_named(tmp_path):
    with a_server(tmp_path, an_authority()) as port:
        assert "of another authority" in trouble(TlsProbe("localhost", port, an_authority().certificate.pem))


def test_a_master_that_does_not_take_the_node_s_certificate_is_told_from_one_that_is_away(tmp_path):
    authority, foreign = an_authority(), an_authority()
    ca = authority.certificate.pem
    own = joined(a_certificate(foreign, "ws2"))
    with a_server(tmp_path, authority, wants=ca) as port:
        assert "refuses the node's certificate" in trouble(TlsProbe("localhost", port, ca, own))
        assert "its port for agents" in trouble(TlsProbe("localhost", port, ca))
    assert trouble(TlsProbe("localhost", port, ca)) == ""  # it is gone
    assert not speaks_tls("localhost", port)


def test_who_does_not_speak_tls_is_named():
    ca = an_authority().certificate.pem
    with serving(lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        assert "does not speak TLS" in trouble(TlsProbe("localhost", port, ca))
        assert not speaks_tls("localhost", port)
    with serving(lambda connection: connection.recv(1)) as port:
        assert "is it a master" in trouble(TlsProbe("localhost", port, ca))
