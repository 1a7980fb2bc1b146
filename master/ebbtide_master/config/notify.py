"""Reads ``[notify]``: where notices about jobs may go, and where they go by default."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import urlsplit

from ebbtide_core.model.notice_rules import Moment, NoticeRule, check_target, is_hook, is_mail
from ebbtide_core.model.spelling import none_of

from ebbtide_master.config.table import Table

_LOCALHOST: Final = ("127.0.0.0/8", "::1/128")
"""The networks that ``localhost`` stands for."""
_PORTS: Final = {"none": 25, "starttls": 587, "tls": 465}


class Tls(Enum):
    """How the connection to the mail server is protected."""

    NONE = "none"
    STARTTLS = "starttls"
    TLS = "tls"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mail:
    """The mail server. If ``domains`` is not empty, jobs may name only addresses of these domains."""

    host: str
    port: int
    sender: str
    tls: Tls = Tls.STARTTLS
    user: str = ""
    password_file: str = ""
    domains: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifySettings:
    """``targets`` are addresses by name; ``users`` has the rule for a user's jobs that name no rule themselves.

    Jobs may name web hooks at the hosts of ``allow``: names, addresses, or networks. A host that is allowed by its name
    only is reached at a public address only.
    """

    allow: frozenset[str] = frozenset()
    targets: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, NoticeRule] = field(default_factory=dict)
    mail: Mail | None = None

    def address(self, target: str) -> str:
        """Return the address behind ``target``. Raises ``ValueError`` if there is none, or it is not allowed."""
        if is_hook(target):
            return self._allowed_hook(target)
        if is_mail(target):
            return self._allowed_mail(target)
        if target not in self.targets:
            known = ", ".join(self.targets) or "none"
            raise ValueError(f"there is no target {target!r} in the master's configuration: there are {known}")
        return self.targets[target]

    def may_reach(self, address: str) -> bool:
        """Whether ``address`` is allowed by number, alone or in a network, so that it need not be a public one."""
        found = ip_address(address)
        return any(found in network for network in self._networks())

    def _networks(self) -> Iterator[IPv4Network | IPv6Network]:
        for name in self.allow:
            for text in _LOCALHOST if name == "localhost" else (name,):
                with suppress(ValueError):
                    yield ip_network(text, strict=False)

    def _allowed_hook(self, target: str) -> str:
        host = urlsplit(target).hostname or ""
        if host not in self.allow and not (_is_number(host) and self.may_reach(host)):
            allowed = ", ".join(sorted(self.allow)) or "no hosts"
            raise ValueError(f"host {host!r} is not allowed by the master's configuration: allowed are {allowed}")
        return target

    def _allowed_mail(self, target: str) -> str:
        if self.mail is None:
            raise ValueError("the master's configuration names no mail server ([notify.smtp])")
        domain = target.rpartition("@")[2].lower()
        if self.mail.domains and domain not in self.mail.domains:
            raise ValueError(f"mail to {domain!r} is not allowed: allowed are {', '.join(sorted(self.mail.domains))}")
        return target


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def read_notify(file: Table) -> NotifySettings:
    """Return the settings of the section; without it, no notices are sent."""
    table = file.table("notify")
    allow = _texts(table, "allow")
    mail = _read_mail(table)
    targets = {name: _read_target(each, mail) for name, each in table.tables("targets")}
    settings = NotifySettings(allow=frozenset(allow), targets=targets, mail=mail)
    users = {name: _read_rule(each, settings) for name, each in table.tables("users")}
    table.finish()
    return NotifySettings(allow=settings.allow, targets=targets, mail=mail, users=users)


def _read_mail(table: Table) -> Mail | None:
    smtp = table.table("smtp")
    host, sender = smtp.take("host", str, ""), smtp.take("from", str, "")
    tls = smtp.take("tls", str, Tls.STARTTLS.value)
    if tls not in _PORTS:
        raise smtp.error("tls", none_of(tls, _PORTS))
    mail = Mail(
        host=host,
        port=smtp.take("port", int, _PORTS[tls]),
        sender=sender,
        tls=Tls(tls),
        user=smtp.take("user", str, ""),
        password_file=smtp.take("password_file", str, ""),
        domains=frozenset(domain.lower() for domain in _texts(smtp, "domains")),
    )
    smtp.finish()
    if bool(host) != bool(sender):
        raise smtp.error("from" if host else "host", "is missing")
    return mail if host else None


def _read_target(table: Table, mail: Mail | None) -> str:
    hook, address = table.take("webhook", str, ""), table.take("mail", str, "")
    table.finish()
    if bool(hook) == bool(address):
        raise table.error("webhook", "either this or mail is needed, and not both")
    target = hook or f"mailto:{address}"
    try:
        check_target(target)
    except ValueError as error:
        raise table.error("webhook" if hook else "mail", str(error)) from None
    if address and mail is None:
        raise table.error("mail", "needs a mail server: [notify.smtp]")
    return target


def _read_rule(table: Table, settings: NotifySettings) -> NoticeRule:
    names, target = _texts(table, "events"), table.take("target", str, "")
    table.finish()
    known = {moment.value: moment for moment in Moment}
    for name in names:
        if name not in known:
            raise table.error("events", none_of(name, known))
    try:
        settings.address(target)
    except ValueError as error:
        raise table.error("target", str(error)) from None
    return NoticeRule(tuple([known[name] for name in names]), target)


def _texts(table: Table, key: str) -> list[str]:
    values = table.take(key, list, [])
    for value in values:
        if not isinstance(value, str):
            raise table.error(key, f"{value!r} is not a text")
    return values
