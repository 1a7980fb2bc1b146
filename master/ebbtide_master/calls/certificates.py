"""The gate of a master with an authority: agents authenticate with certificates, all other callers with tokens."""

from contextlib import AbstractContextManager
from typing import Any, Final

from ebbtide_master.calls.gate import Gate
from ebbtide_master.identity.access import ACCESS, Access, in_words
from ebbtide_master.identity.caller import Caller, NotAllowedError, Role
from ebbtide_master.identity.standing import Standing
from ebbtide_master.tls.enrolment import Enrolment

INVITED: Final = Caller("", Role.AGENT)
"""The caller of a node that joins: the secret in the request is the proof, which the method checks."""


class CertificateGate:
    """Lets an agent speak for its node, and passes all other callers to ``tokens``.

    The agents' port accepts no connection without a certificate of the authority; the clients' port asks for none.
    """

    def __init__(self, tokens: Gate, enrolment: Enrolment) -> None:
        self.identities = tokens.identities
        self.now = tokens.now
        self._tokens = tokens
        self._enrolment = enrolment

    def admit(self, method: str, context: Any) -> Caller:
        """Return the caller that its certificate or its token proves."""
        access, certificate = ACCESS.get(method), _presented(context)
        if certificate is None:
            if access is Access.AGENT:
                raise NotAllowedError("this is the port of clients: an agent joins first ('ebb agent join')")
            return INVITED if access is Access.INVITED else self._tokens.admit(method, context)
        caller = self._enrolment.caller(certificate)
        if access is not Access.AGENT:
            raise NotAllowedError(f"{in_words(method)} is not for agents, and this is their port: {caller.user} is one")
        return caller

    def allow(self, method: str, message: Any, caller: Caller) -> None:
        """Raise `NotAllowedError` if an agent speaks for another node, or its certificate was revoked."""
        if ACCESS.get(method) is Access.INVITED:
            return
        if caller.role is not Role.AGENT:
            self._tokens.allow(method, message, caller)
            return
        self._enrolment.check(caller.node)
        hello = method.endswith("/Attach") and message.WhichOneof("body") == "hello"
        if hello and message.hello.node != caller.node:
            named = message.hello.node[:80]
            raise NotAllowedError(f"the certificate is of node {caller.node}: it may not speak for node {named!r}")

    def show(self, method: str, reply: Any, caller: Caller) -> Any:
        """Return what ``caller`` may see of ``reply``; agents may see all."""
        return self._tokens.show(method, reply, caller)

    def standing(self, caller: Caller) -> AbstractContextManager[Standing]:
        """Give the standing of a caller's stream; revoking an agent's certificate ends its stream elsewhere."""
        return self._tokens.standing(caller)


def _presented(context: Any) -> bytes | None:
    """Return the certificate whose key the other side has proven to have; None on the clients' port."""
    found = context.auth_context().get("x509_pem_cert")
    return bytes(found[0]) if found else None
