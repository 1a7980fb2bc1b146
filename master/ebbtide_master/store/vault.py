"""Defines the vault for secrets and users, which must be as durable as the journal, but not in it or kept for ever."""

from collections.abc import Mapping
from concurrent.futures import Future
from enum import Enum
from typing import Protocol


class EntryKind(Enum):
    """Kind of an entry, with the meaning of its key."""

    ENVIRONMENT = "environment"  # of a job, as JSON; by job id
    USER = "user"  # as JSON; by name
    TOKEN = "token"  # as JSON, hashed; by the token's id
    NODE = "node"  # that joined, as JSON; by name
    TOKEN_USE = "token-use"  # when a token was last used, in Unix seconds; by the token's id
    USER_USE = "user-use"  # when a user was last there, in Unix seconds; by name
    JOIN = "join"  # an unused invitation for a node to join, as JSON, hashed; by its id


class Vault(Protocol):
    """Entries by kind and key. No entry is ever shown, logged, or part of the journal."""

    def put(self, kind: EntryKind, entries: Mapping[str, str | None]) -> Future[None]:
        """Make ``entries`` durable in one transaction; the value None removes an entry."""

    def read(self, kind: EntryKind) -> dict[str, str]:
        """Return all entries of ``kind``, by key."""
