"""What is refused of any request that adds jobs, or names who asks."""

from typing import Final, Protocol

from ebbtide_core import limits
from ebbtide_core.cluster import Refusal, RefusalKind
from ebbtide_core.spec import SpecError

from ebbtide_master.loop import RefusedError
from ebbtide_master.store import Store

MAX_USER_LENGTH: Final = 64


class Submission(Protocol):
    """A request that adds jobs."""

    operation_id: str
    user: str


def check_user(user: str) -> None:
    """Raise `SpecError` for what is no name of a user."""
    if len(user) > MAX_USER_LENGTH or not user.isprintable():
        raise SpecError("user", f"is not a name of at most {MAX_USER_LENGTH} printable characters")


def check_submission(request: Submission, store: Store) -> None:
    """Raise `SpecError` for what is wrong with it, or `RefusedError` if nothing can be recorded for now."""
    if len(request.operation_id) > limits.MAX_OPERATION_ID_LENGTH:
        raise SpecError("operation_id", f"is over the limit of {limits.MAX_OPERATION_ID_LENGTH} characters")
    check_user(request.user)
    if not store.has_room():
        raise RefusedError(Refusal(RefusalKind.LIMIT, "the master's disk is full: no job is accepted for now"))
