"""Identifies the caller of a method, and its role."""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum


class Role(IntEnum):
    """What a caller may do; each role includes the roles before it."""

    AGENT = 0  # speak for its own node, and nothing else
    USER = 1  # submit jobs, and do anything to their own jobs
    OPERATOR = 2  # do anything to all users' jobs, and take nodes out of service
    ADMIN = 3  # also change users and tokens, and stop the cluster


@dataclass(frozen=True, slots=True)
class Caller:
    """A proven identity, and the id of the ``token`` that proves it, or the serial number of an agent's certificate.

    ``node`` is the only node that an agent may speak for; empty means any.
    """

    user: str
    role: Role
    node: str = ""
    token: str = ""


class NotKnownError(Exception):
    """The caller is unknown; the message says what is wrong with the proof."""


class NotAllowedError(Exception):
    """The caller is known, but may not do this."""


_CALLER: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """Return the caller that this task works for; it is set before any method is called."""
    return _CALLER.get()


def set_caller(who: Caller) -> None:
    """Set the caller for the task that serves its call."""
    _CALLER.set(who)
