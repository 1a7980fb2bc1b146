"""Checks parts of any request: names and texts that cannot be shown, and priorities above a user's limit."""

from typing import Final

from ebbtide_core.cluster import Refusal, RefusalKind
from ebbtide_core.model import limits
from ebbtide_core.model.spec import SpecError

from ebbtide_master.config.limits import UserBounds
from ebbtide_master.identity.caller import Role, caller
from ebbtide_master.loop import RefusedError

MAX_USER_LENGTH: Final = limits.MAX_USER_LENGTH


def check_user(user: str) -> None:
    """Raise `SpecError` if ``user`` cannot be the name of a user."""
    if len(user) > MAX_USER_LENGTH or not user.isprintable():
        raise SpecError("user", f"is not a name of at most {MAX_USER_LENGTH} printable characters")


def check_words(field: str, text: str, limit: int) -> None:
    """Raise `SpecError` unless ``text`` can be shown in one line of at most ``limit`` characters."""
    if len(text) > limit or not text.isprintable():
        raise SpecError(field, f"is not a text of at most {limit} printable characters")


def check_rank(bounds: UserBounds, priority: int | None, weight: float | None) -> None:
    """Raise `RefusedError` for a priority or weight beyond what a user may give to their own jobs."""
    if caller().role >= Role.OPERATOR:
        return
    if priority is not None and priority < bounds.priority:
        raise _beyond("--priority", f"{priority} is more urgent than {bounds.priority}, the limit for users")
    if weight is not None and weight > bounds.weight:
        raise _beyond("--weight", f"{weight:g} is more than {bounds.weight:g}, the limit for users")


def _beyond(option: str, why: str) -> RefusedError:
    return RefusedError(Refusal(RefusalKind.LIMIT, f"{option}: {why}: an operator can set it"))
