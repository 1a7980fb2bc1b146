"""Print users and tokens."""

from typing import Any, Final

from ebbtide_protos.v1 import user_pb2

from ebbtide_cli.terminal.text import format_time

ROLES: Final = ("user", "operator", "admin")
DAY_S: Final = 86_400.0
WARNED_S: Final = 14 * DAY_S
"""Seconds before a token's end from which on verbs warn of it."""


def user_facts(user: user_pb2.User) -> dict[str, Any]:
    """Return all facts on one user; ``account`` is the account of the same name unless another one was set."""
    return {
        "name": user.name,
        "role": user.role,
        "account": user.account or user.name,
        "uid": user.uid if user.HasField("uid") else None,
        "tokens": user.tokens,
    }


def token_facts(token: user_pb2.Token) -> dict[str, Any]:
    """Return all facts on one token, without its text, of which the master keeps only a digest."""
    return {
        "id": token.id,
        "user": token.user,
        "label": token.label or None,
        "created": token.created,
        "expires": token.expires if token.HasField("expires") else None,
    }


def expiry_words(token: user_pb2.Token, now: float) -> str:
    """Say when a token ends: ``never``, ``expired`` and the date, or a date and how many days are left."""
    if not token.HasField("expires"):
        return "never"
    left_s = token.expires - now
    if left_s <= 0:
        return f"expired {format_time(token.expires)}"
    return f"{format_time(token.expires)}, in {left_s / DAY_S:.0f} days"


def expiry_warning(token: user_pb2.Token, now: float) -> str:
    """Say what to do about a token that expires soon; empty for others."""
    if not token.HasField("expires") or token.expires - now > WARNED_S:
        return ""
    return f"the token expires {expiry_words(token, now)}: 'ebb token create' makes another, for 'ebb login'"
