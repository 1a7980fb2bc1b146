"""Tokens: a user's proof. What is kept of one cannot be turned back into it."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Final

_FORM: Final = re.compile(r"ebb_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept: times are Unix seconds; ``expires`` None is never."""

    id: str
    user: str
    digest: str
    created: float
    expires: float | None = None
    label: str = ""

    def is_proven_by(self, secret: str) -> bool:
        """Whether it is this token's secret; takes as long whatever is wrong."""
        return hmac.compare_digest(self.digest, digest(secret))


def issue(user: str, now: float, expires: float | None = None, label: str = "") -> tuple[Token, str]:
    """A new token of ``user``, and the text that proves it, which exists nowhere else."""
    id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return Token(id, user, digest(secret), now, expires, label), f"ebb_{id}_{secret}"


def parse(text: str) -> tuple[str, str] | None:
    """Id and secret of a token's text; None if it is none."""
    match = _FORM.fullmatch(text)
    return (match[1], match[2]) if match else None


def digest(secret: str) -> str:
    """SHA-256 in hexadecimal: 256 random bits need no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()
