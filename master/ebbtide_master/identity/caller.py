"""Who asks."""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum


class Role(IntEnum):
    """What somebody may do; each may do what those before it may."""

    AGENT = 0  # speak for its own node, and nothing else
    USER = 1  # submit, and do anything to one's own jobs
    OPERATOR = 2  # do anything to everybody's jobs, and take nodes out of service
    ADMIN = 3  # also say who is who, and stop the cluster


@dataclass(frozen=True, slots=True)
class Caller:
    """A proven identity, and the id of the ``token`` that proves it, or the serial number of an agent's certificate.

    ``node`` is the only one that an agent may speak for; empty: any.
    """

    user: str
    role: Role
    node: str = ""
    token: str = ""


class NotKnownError(Exception):
    """Nobody knows who asks; the message says what is wrong with the proof."""


class NotAllowedError(Exception):
    """It is known who asks, and they may not."""


_CALLER: ContextVar[Caller] = ContextVar("caller")


def caller() -> Caller:
    """Who asks for what this task does; the edge has said it before any method is called."""
    return _CALLER.get()


def set_caller(who: Caller) -> None:
    """Say it, for the task that serves the call."""
    _CALLER.set(who)
