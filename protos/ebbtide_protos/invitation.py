"""What an admin hands to somebody who may join: one line of text, which says where, whom to trust and a secret."""

import base64
import binascii
import json
import re
from dataclasses import asdict, dataclass
from typing import Final

PREFIX: Final = "ebbi_"
MAX_CHARACTERS: Final = 16_384
"""Of an invitation's text; a certificate of an authority is below 1,000."""

_FORM: Final = re.compile(r"[A-Za-z0-9_-]+")
_NAMES: Final = frozenset(("address", "secret", "ca"))


@dataclass(frozen=True, slots=True)
class Invitation:
    """``address``: host:port of clients; ``secret``: a token or a join secret; ``ca``: PEM, empty without TLS."""

    address: str
    secret: str
    ca: str


def encode(invitation: Invitation) -> str:
    """The line of text. Whoever reads it may use it: it is as secret as what is in it."""
    text = json.dumps(asdict(invitation), separators=(",", ":"))
    return PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode(text: str) -> Invitation:
    """What the line says, with white space around it. Raises `ValueError`, whose words never hold the secret."""
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
