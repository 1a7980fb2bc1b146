"""What must be as durable as the journal, but neither stand in it nor stay for ever: secrets, and who is who."""

from collections.abc import Mapping
from concurrent.futures import Future
from enum import Enum
from typing import Protocol


class EntryKind(Enum):
    """What an entry is about; the key says whose it is."""

    ENVIRONMENT = "environment"  # of a job, as JSON; by job id
    USER = "user"  # as JSON; by name
    TOKEN = "token"  # as JSON, hashed; by the token's id
    NODE = "node"  # that joined, as JSON; by name
    JOIN = "join"  # an invitation to join that nobody has used, as JSON, hashed; by its id


class Vault(Protocol):
    """Entries by kind and key. Nothing of it is ever shown, logged, or part of the journal."""

    def put(self, kind: EntryKind, entries: Mapping[str, str | None]) -> Future[None]:
        """Make these entries durable, in one transaction; None removes one."""

    def read(self, kind: EntryKind) -> dict[str, str]:
        """All entries of the kind."""
