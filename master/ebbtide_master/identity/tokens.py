"""Makes and checks tokens, by which users prove who they are. Only a digest is kept, which is no use as a token."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

_FORM: Final = re.compile(r"ebb_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of a token. Times are Unix seconds; ``expires`` None means never."""

    id: str
    user: str
    digest: str
    created: float
    expires: float | None = None
    label: str = ""

    def is_proven_by(self, secret: str) -> bool:
        """Whether ``secret`` is this token's; the comparison takes the same time for any wrong secret."""
        return hmac.compare_digest(self.digest, digest(secret))


def issue(user: str, now: float, expires: float | None = None, label: str = "") -> tuple[Token, str]:
    """Make a token of ``user``, and return it and the text that proves it, which is kept nowhere."""
    id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return Token(id, user, digest(secret), now, expires, label), f"ebb_{id}_{secret}"


def parse(text: str) -> tuple[str, str] | None:
    """Return id and secret of a token's text, or None if ``text`` is no token."""
    match = _FORM.fullmatch(text)
    return (match[1], match[2]) if match else None


def digest(secret: str) -> str:
    """Return the SHA-256 in hexadecimal; a secret of 256 random bits needs no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()
