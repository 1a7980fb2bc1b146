"""Keeps in the vault which nodes have joined with which certificates, and the invitations for others to join."""

import asyncio
import hmac
import json
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Final

from ebbtide_master.identity.caller import Caller, NotAllowedError, NotKnownError, Role
from ebbtide_master.identity.tokens import digest
from ebbtide_master.store.vault import EntryKind, Vault
from ebbtide_master.tls.authority import Authority, Certificate, read

MAX_INVITATIONS: Final = 1000
MIN_EXPIRES_S: Final = 60.0
MAX_EXPIRES_S: Final = 30 * 86_400.0
ASK_AGAIN: Final = "ask an admin for another: 'ebb node invite'"

_FORM: Final = re.compile(r"ebbj_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class _Invited:
    """An unused invitation. An empty ``node`` means any name that has no certificate."""

    digest: str
    node: str
    expires: float


@dataclass(frozen=True, slots=True)
class _Member:
    """A node's certificate, and the previous one, which stays valid because the new one may not have arrived."""

    serial: str
    ends: float
    previous: str = ""


class Enrolment:
    """Members and invitations, kept in memory; a change is durable before it takes effect. Times are Unix seconds."""

    def __init__(self, vault: Vault, authority: Authority, now: Callable[[], float]) -> None:
        self._vault = vault
        self._authority = authority
        self._now = now
        self._invited = {id: _Invited(**json.loads(text)) for id, text in vault.read(EntryKind.JOIN).items()}
        self._members = {node: _Member(**json.loads(text)) for node, text in vault.read(EntryKind.NODE).items()}
        self._changing = asyncio.Lock()  # a node that renews while it is revoked stays revoked

    @property
    def authority(self) -> Certificate:
        """The authority's own certificate."""
        return self._authority.certificate

    def ends(self, node: str) -> float | None:
        """Return when the node's certificate ends, or None if it has none."""
        member = self._members.get(node)
        return member.ends if member is not None else None

    def members(self) -> dict[str, float]:
        """Return when the certificate of each node ends."""
        return {node: member.ends for node, member in sorted(self._members.items())}

    def caller(self, certificate_pem: bytes) -> Caller:
        """Return the agent that a certificate of the authority proves. Raises `NotKnownError` if it was revoked."""
        certificate = read(certificate_pem)
        node, member = certificate.node, self._members.get(certificate.node)
        if not node:
            raise NotKnownError(f"the certificate of {certificate.name!r} is of no node")
        if member is None or certificate.serial not in (member.serial, member.previous):
            raise NotKnownError(f"the certificate of node {node} was revoked or replaced: {ASK_AGAIN}, and join again")
        return Caller(f"agent:{node}", Role.AGENT, node, certificate.serial)

    def check(self, node: str) -> None:
        """Raise `NotAllowedError` if the node's certificate was revoked since its stream was opened."""
        if node not in self._members:
            raise NotAllowedError(f"the certificate of node {node} was revoked: {ASK_AGAIN}, and join again")

    async def invite(self, node: str, expires_s: float) -> tuple[str, float]:
        """Make a secret that lets one node join, and return it and its end.

        Raises ValueError for a bad name or time, and `NotAllowedError` if there are too many invitations.
        """
        if node:
            check_name(node)
        if not MIN_EXPIRES_S <= expires_s <= MAX_EXPIRES_S:
            raise ValueError(f"--expires: {expires_s:g} s is not between {MIN_EXPIRES_S:g} and {MAX_EXPIRES_S:g} s")
        now = self._now()
        over = [id for id, invited in self._invited.items() if invited.expires <= now]
        if len(self._invited) - len(over) >= MAX_INVITATIONS:
            raise NotAllowedError(f"{MAX_INVITATIONS} invitations wait to be used: wait until some have expired")
        id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
        invited = _Invited(digest(secret), node, now + expires_s)
        await self._put(EntryKind.JOIN, {id: json.dumps(asdict(invited)), **dict.fromkeys(over)})
        self._invited[id] = invited
        for gone in over:
            self._invited.pop(gone, None)
        return f"ebbj_{id}_{secret}", invited.expires

    async def join(self, secret: str, node: str, request_pem: str) -> str:
        """Sign the node's first certificate, or one that replaces its old one, and use up the secret.

        Raises `NotKnownError` for a wrong secret, `NotAllowedError` for another node's name, else ValueError.
        """
        check_name(node)
        match = _FORM.fullmatch(secret)
        invited = self._invited.get(match[1]) if match else None
        if match is None or invited is None or not hmac.compare_digest(invited.digest, digest(match[2])):
            raise NotKnownError(f"the invitation is not one of this cluster, or was used already: {ASK_AGAIN}")
        if invited.expires <= self._now():
            raise NotKnownError(f"the invitation has expired: {ASK_AGAIN}")
        if invited.node and invited.node != node:
            raise NotAllowedError(f"the invitation is for node {invited.node}, not for {node}")
        if not invited.node and node in self._members:
            what = f"node {node} has a certificate already"
            raise NotAllowedError(
                f"{what}: 'ebb node invite {node}' lets it be replaced, another --name joins beside it"
            )
        pem = self._authority.agent(node, request_pem, self._now())
        del self._invited[match[1]]  # before the first await, so that only one node can use the invitation
        async with self._changing:
            await self._put(EntryKind.JOIN, {match[1]: None})
            await self._keep(node, pem, "")
        return pem

    async def renew(self, node: str, serial: str, request_pem: str) -> str:
        """Sign a new certificate for a node that is proven by the one with the number ``serial``.

        Raises ValueError, or `NotAllowedError` if the node's certificate was revoked meanwhile.
        """
        pem = self._authority.agent(node, request_pem, self._now())
        async with self._changing:
            self.check(node)
            await self._keep(node, pem, serial)
        return pem

    async def revoke(self, node: str) -> bool:
        """Revoke the node's certificates and the invitations for its name, and return whether there were any."""
        async with self._changing:
            invited = [id for id, each in self._invited.items() if each.node == node]
            had = self._members.pop(node, None) is not None  # takes effect at once; the lines below make it durable
            for id in invited:
                del self._invited[id]
            await self._put(EntryKind.NODE, {node: None})
            if invited:
                await self._put(EntryKind.JOIN, dict.fromkeys(invited))
        return had or bool(invited)

    async def forget(self, nodes: Iterable[str]) -> None:
        """Forget the certificates of ``nodes``, which prove nothing from now on. Invitations for their names stay."""
        async with self._changing:
            gone = [node for node in nodes if self._members.pop(node, None) is not None]
            if gone:
                await self._put(EntryKind.NODE, dict.fromkeys(gone))

    async def _keep(self, node: str, pem: str, previous: str) -> None:
        certificate = read(pem)
        member = _Member(certificate.serial, certificate.ends, previous)
        await self._put(EntryKind.NODE, {node: json.dumps(asdict(member))})
        self._members[node] = member

    async def _put(self, kind: EntryKind, entries: dict[str, str | None]) -> None:
        await asyncio.wrap_future(self._vault.put(kind, entries))


def check_name(node: str) -> None:
    """Raise ValueError if ``node`` cannot be the name of a node."""
    if _NAME.fullmatch(node) is None:
        raise ValueError(f"node {node[:80]!r}: up to 58 letters, digits, '.', '_' and '-', not starting with a mark")
