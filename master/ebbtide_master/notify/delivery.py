"""Tries once to deliver one notice, and blocks for a bounded time."""

import http.client
import smtplib
import socket
import ssl
from email.message import EmailMessage
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ebbtide_core.model.notice_rules import is_mail, shown

from ebbtide_master.config.notify import Mail, NotifySettings, Tls
from ebbtide_master.notify.notice import Notice

TIMEOUT_S: Final = 10.0
_AGAIN: Final = frozenset({408, 425, 429})


class UndeliveredError(Exception):
    """A notice was not taken; the message says why, without secrets. If ``permanent``, it will never be taken."""

    def __init__(self, reason: str, *, permanent: bool) -> None:
        super().__init__(reason)
        self.permanent = permanent


def deliver(address: str, notice: Notice, settings: NotifySettings) -> str:
    """Deliver ``notice`` to ``address``, which is allowed, and return the answer. Raises `UndeliveredError`."""
    if not is_mail(address):
        return _post(address, notice, settings)
    if settings.mail is None:
        raise UndeliveredError("there is no mail server any more", permanent=True)
    return _mail(address.removeprefix("mailto:"), notice, settings.mail)


def _post(address: str, notice: Notice, settings: NotifySettings) -> str:
    """Post ``notice`` without following redirections, which could lead to an address that is not allowed."""
    parts = urlsplit(address)
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    headers = {"Content-Type": "application/json", "Idempotency-Key": notice.key, "User-Agent": "ebbtide"}
    try:
        connection = _connected(address, settings)
        try:
            connection.request("POST", path, notice.body(), headers)
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UndeliveredError(f"{shown(address)}: {error or type(error).__name__}", permanent=False) from None
    if not 200 <= status < 300:
        raise UndeliveredError(f"{shown(address)} answered {status}", permanent=status < 500 and status not in _AGAIN)
    return f"answered {status}"


def _connected(address: str, settings: NotifySettings) -> http.client.HTTPConnection:
    """Connect to the address that was checked, because the host's name may stand for another one later."""
    parts = urlsplit(address)
    https, host = parts.scheme == "https", parts.hostname or ""
    port = parts.port or (443 if https else 80)
    ours = address in settings.targets.values()  # an administrator named this address
    for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        if ours or is_public(str(place[0])) or settings.may_reach(str(place[0])):
            break
    else:
        raise UndeliveredError(f"{shown(address)} is at no address that is allowed", permanent=True)
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    connection.sock = socket.create_connection((str(place[0]), port), timeout=TIMEOUT_S)
    if https:
        connection.sock = ssl.create_default_context().wrap_socket(connection.sock, server_hostname=host)
    return connection


def is_public(address: str) -> bool:
    """Whether ``address`` is a public one of the Internet, and not this machine's own."""
    found = ip_address(address.partition("%")[0])
    inner = (found.ipv4_mapped or found.sixtofour) if isinstance(found, IPv6Address) else None
    if inner is not None:
        return is_public(str(inner))
    if not found.is_global or found.is_multicast:
        return False
    with socket.socket(socket.AF_INET6 if found.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(found), 9))  # sends nothing; one of this machine's own is its own source address
        except OSError:
            return True
        return bool(ip_address(probe.getsockname()[0].partition("%")[0]) != found)


def _mail(to: str, notice: Notice, mail: Mail) -> str:
    message = EmailMessage()
    message["From"], message["To"] = mail.sender, to
    message["Subject"] = "".join(letter if letter.isprintable() else " " for letter in f"[ebb] {notice.text}")[:200]
    message["Message-ID"] = f"<{notice.key}@ebbtide>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(f"{notice.text}\n")
    try:
        with _server(mail) as server:
            if mail.user:
                server.login(mail.user, Path(mail.password_file).read_text().strip())
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        codes = [code for code, _ in error.recipients.values()]
        raise UndeliveredError(
            f"{to} was refused by {mail.host}", permanent=all(code >= 500 for code in codes)
        ) from None
    except (OSError, smtplib.SMTPException, ValueError) as error:
        # The server's message may repeat what it was sent.
        raise UndeliveredError(f"mail server {mail.host}: {type(error).__name__}", permanent=False) from None
    return f"taken by {mail.host}"


def _server(mail: Mail) -> smtplib.SMTP:
    if mail.tls is Tls.TLS:
        return smtplib.SMTP_SSL(mail.host, mail.port, timeout=TIMEOUT_S, context=ssl.create_default_context())
    server = smtplib.SMTP(mail.host, mail.port, timeout=TIMEOUT_S)
    if mail.tls is Tls.STARTTLS:
        server.starttls(context=ssl.create_default_context())
    return server
