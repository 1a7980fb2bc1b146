"""The gate before every method proves the caller, checks what it may do, and hides what it may not see."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from ebbtide_core.cluster import Cluster, Refusal, RefusalKind
from ebbtide_core.lifecycle.forgetting import unknown_job
from ebbtide_core.model.types import JobId

from ebbtide_master.api.named_jobs import array_of
from ebbtide_master.api.reservations import unknown_reservation
from ebbtide_master.identity.access import ACCESS, Access, in_words
from ebbtide_master.identity.caller import Caller, NotAllowedError, NotKnownError, Role
from ebbtide_master.identity.identities import WHAT_TO_DO, Identities
from ebbtide_master.identity.standing import Standing
from ebbtide_master.identity.visibility import redact
from ebbtide_master.loop import RefusedError

_AT_LEAST: Final = {
    Access.USER: Role.USER,
    Access.SEEN: Role.USER,
    Access.OWNER: Role.USER,
    Access.BOOKER: Role.USER,
    Access.HOLDER: Role.USER,
    Access.OPERATOR: Role.OPERATOR,
    Access.ADMIN: Role.ADMIN,
}

_USAGE: Final = "/ebbtide.v1.ClientService/Usage"
_RESERVE: Final = "/ebbtide.v1.ClientService/ReserveGpus"
_BY: Final = (_RESERVE, "/ebbtide.v1.ClientService/CancelReservation")


class Gate(Protocol):
    """Checks every call before its method runs."""

    identities: Identities
    """The users and tokens that the gate knows."""
    now: Callable[[], float]
    """The clock by which tokens expire, in Unix seconds."""

    def admit(self, method: str, context: Any) -> Caller:
        """Return the caller. Raises `NotKnownError`, or `NotAllowedError` if the caller may never use the method."""

    def allow(self, method: str, message: Any, caller: Caller) -> None:
        """Raise `NotAllowedError` if ``caller`` may not send ``message``; set the message's field for the caller."""

    def show(self, method: str, reply: Any, caller: Caller) -> Any:
        """Return what ``caller`` may see of ``reply``."""

    def standing(self, caller: Caller) -> AbstractContextManager[Standing]:
        """Give the standing of a stream that ``caller`` opened, for as long as the stream is open."""


class TokenGate:
    """Proves callers by their tokens, and finds the owners of jobs in ``cluster``."""

    def __init__(self, identities: Identities, cluster: Cluster, now: Callable[[], float]) -> None:
        self.identities = identities
        self._cluster = cluster
        self.now = now

    def admit(self, method: str, context: Any) -> Caller:
        """Return the caller that the call's token proves. Raises `NotKnownError`, `NotAllowedError`."""
        caller = self.identities.caller(_bearer(context), self.now())
        access = ACCESS.get(method)
        if access in (Access.AGENT, Access.INVITED):
            # Without certificates, agents and the master have the same account, and so the role of an admin.
            needed = Role.ADMIN
        elif access is not None:
            needed = _AT_LEAST[access]
        else:
            raise NotAllowedError(f"{method} may be called by nobody")
        if caller.role < needed:
            whose, is_one = f"{needed.name.lower()}s", caller.role.name.lower()
            raise NotAllowedError(f"{in_words(method)} is for {whose}: {caller.user} is {is_one}")
        return caller

    def allow(self, method: str, message: Any, caller: Caller) -> None:
        """Raise `NotAllowedError` if the message concerns another user's jobs, reservations or tokens.

        Raises `RefusedError` for a job or reservation that does not exist: before the call has its turn, it may be made
        for another user.
        """
        _say_who_asks(method, message, caller.user)
        match ACCESS[method]:
            case Access.OWNER if caller.role < Role.OPERATOR:
                for id in _jobs_of(message):
                    self._check_owner(id, caller)
            case Access.BOOKER if caller.role < Role.OPERATOR:
                self._check_booker(message, caller)
            case Access.HOLDER if caller.role < Role.ADMIN:
                self._check_holder(message, caller)
            case _:
                pass

    def show(self, method: str, reply: Any, caller: Caller) -> Any:
        """Return what ``caller`` may see of ``reply``; operators may see all."""
        if ACCESS[method] is Access.SEEN and caller.role < Role.OPERATOR:
            return redact(reply, caller.user, self._owner)
        return reply

    def standing(self, caller: Caller) -> AbstractContextManager[Standing]:
        """Give the standing of the caller's stream."""
        return self.identities.standing(caller, self.now())

    def _owner(self, id: str) -> str | None:
        """Return the user of the job, the array, or the tasks ``id``; None if it is unknown."""
        job = self._cluster.job(JobId(id))
        if job is not None:
            return job.user
        array = array_of(self._cluster, id)
        return None if array is None else array.user

    def _check_owner(self, id: str, caller: Caller) -> None:
        owner = self._owner(id)
        if owner is None:
            raise RefusedError(Refusal(RefusalKind.UNKNOWN, unknown_job(self._cluster.state, id)))
        if owner != caller.user:
            raise NotAllowedError(f"job {id} is {owner}'s, not {caller.user}'s")

    def _check_booker(self, message: Any, caller: Caller) -> None:
        if "reservation_id" in message.DESCRIPTOR.fields_by_name:
            booking = self._cluster.state.bookings.by_id.get(message.reservation_id)
            if booking is None:
                raise RefusedError(unknown_reservation(message.reservation_id))
            if caller.user not in (booking.user, booking.by):
                raise NotAllowedError(f"reservation {booking.booking} is {booking.user}'s, not {caller.user}'s")
        elif message.user != caller.user:
            raise NotAllowedError(f"--user: GPUs for {message.user[:64]!r} are an operator's to reserve")

    def _check_holder(self, message: Any, caller: Caller) -> None:
        for name in _holders(message, self.identities):
            if name != caller.user:
                raise NotAllowedError(f"tokens of others are an admin's: {caller.user} is {caller.role.name.lower()}")


def _holders(message: Any, identities: Identities) -> Iterator[str]:
    """Yield the users whose tokens a request concerns, an empty name for all; an unknown token has no user."""
    fields = message.DESCRIPTOR.fields_by_name
    if "for_user" in fields and message.for_user:
        yield message.for_user
    if "all" in fields and message.all:
        yield ""
    if "id" in fields and (token := identities.token(message.id)) is not None:
        yield token.user


def _say_who_asks(method: str, message: Any, user: str) -> None:
    """Set the caller in ``message``, whatever it claimed: in ``by`` if ``user`` is the user that it concerns."""
    fields = message.DESCRIPTOR.fields_by_name
    if "open" in fields:
        if message.WhichOneof("body") == "open":
            message.open.user = user
    elif method in _BY:
        message.by = user
    elif "user" in fields and fields["user"].message_type is None and method != _USAGE:
        message.user = user
    if method == _RESERVE:
        message.user = message.user or user


def _jobs_of(message: Any) -> list[str]:
    """Return the job ids in a request, or in the message that opens a channel."""
    if "open" in message.DESCRIPTOR.fields_by_name:
        return [message.open.job_id] if message.WhichOneof("body") == "open" else []
    return [message.job_id]


def _bearer(context: Any) -> str:
    """Return the token in the call's metadata. Raises `NotKnownError`."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            words = str(value).split(" ", 1)
            if len(words) == 2 and words[0] == "Bearer":
                return words[1]
    raise NotKnownError(f"no token was given: {WHAT_TO_DO}")
