"""Reads and writes an invitation to join: one line of text with an address, the authority to trust, and a secret."""

import base64
import binascii
import json
import re
from dataclasses import asdict, dataclass
from typing import Final

PREFIX: Final = "ebbi_"
MAX_CHARACTERS: Final = 16_384
"""Longest text of an invitation; the certificate of an authority has fewer than 1,000 characters."""

_FORM: Final = re.compile(r"[A-Za-z0-9_-]+")
_NAMES: Final = frozenset(("address", "secret", "ca"))


@dataclass(frozen=True, slots=True)
class Invitation:
    """``address`` is host:port for clients, ``secret`` a token or a join secret, ``ca`` PEM, empty without TLS."""

    address: str
    secret: str
    ca: str


def encode(invitation: Invitation) -> str:
    """Return the invitation as one line of text, which is secret, because anyone who reads it may use it."""
    text = json.dumps(asdict(invitation), separators=(",", ":"))
    return PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(text: str) -> Invitation:
    """Read an invitation, ignoring white space around it. Raises `ValueError`, whose message never has the secret."""
    body = text.strip().removeprefix(PREFIX)
    if not text.strip().startswith(PREFIX) or len(body) > MAX_CHARACTERS or not _FORM.fullmatch(body):
        raise ValueError(f"this is no invitation: one is a line that begins with {PREFIX}")
    try:
        said = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError("the invitation is damaged: copy the whole line") from None
    if not isinstance(said, dict) or set(said) != _NAMES or not all(isinstance(value, str) for value in said.values()):
        raise ValueError("the invitation is of another version: it must say " + ", ".join(sorted(_NAMES)))
    return Invitation(**said)
