"""What the master asks of whatever keeps its journal, be it a file or a server."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ebbtide_core.events import Event
from ebbtide_core.events.codec import UnknownEventError, decode_event, encode

from ebbtide_master.store.vault import Vault


class StoreError(RuntimeError):
    """The journal cannot be trusted any more: the master has to stop."""


class StoreInUseError(RuntimeError):
    """Another master has the journal open."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One line of the journal; ``sequence`` counts from 1."""

    sequence: int
    time: float
    event: Event


@dataclass(frozen=True, slots=True)
class DamagedLine:
    """A line that cannot be read, and why; ``job`` is the one that it is about, empty if it is about none."""

    sequence: int
    kind: str
    job: str
    reason: str

    def __str__(self) -> str:
        return f"line {self.sequence} of the journal, {self.kind}, is damaged: {self.reason}"


class DamagedLineError(StoreError):
    """A line that cannot be read, and was not set aside yet."""

    def __init__(self, line: DamagedLine) -> None:
        super().__init__(str(line))
        self.line = line


class Journal(Protocol):
    """What a journal says. Whatever goes wrong with it is `StoreError`."""

    @property
    def damage(self) -> Mapping[int, DamagedLine]:
        """The lines that were set aside, by number."""

    def events(
        self, after: int = 0, job: str | None = None, limit: int = -1, kinds: Collection[str] = ()
    ) -> Iterator[StoredEvent]:
        """The journal in order, from the line behind ``after``; of one job if named, of those ``kinds`` if any are.

        A negative limit is none. Lines that were set aside are left out; another damaged one is `DamagedLineError`.
        """


class Store(Journal, Protocol):
    """The journal of one cluster, which one master at a time writes."""

    cluster_id: str
    last_sequence: int
    last_time: float
    lost: Future[None]
    """Fails as soon as it is known that this master can write no more, even if it has nothing to write."""

    @property
    def restored(self) -> float | None:
        """When it was put back from a backup, in Unix seconds; None if it never was."""

    @property
    def vault(self) -> Vault:
        """What is kept beside the journal."""

    @property
    def folder(self) -> Path:
        """Where the master keeps files."""

    def append(self, batch: Iterable[tuple[float, Event]]) -> Future[None]:
        """Make ``batch`` durable in one transaction; the result is there once it is, or is `StoreError`."""

    def set_damage_aside(self) -> None:
        """Look for all lines that cannot be read, and note them, durably, in ``damage``."""

    def has_room(self) -> bool:
        """Whether there is more room than what is reserved for the jobs that were accepted already."""

    def next_epoch(self) -> int:
        """Count this start of a master, durably; the new number."""

    def notified(self) -> dict[str, int]:
        """Up to which line of the journal each target of words about jobs was told; empty if that was never noted."""

    def note_notified(self, told: Mapping[str, int]) -> Future[None]:
        """Note that, durably."""

    def close(self) -> None:
        """Finish writing and let another master open it."""


def columns(event: Event) -> tuple[str, str, str, str]:
    """What is written of ``event``: kind, job, node and body; job and node are empty where it is about none."""
    body = json.dumps(encode(event), separators=(",", ":"), allow_nan=False)
    return type(event).__name__, str(getattr(event, "job", "")), str(getattr(event, "node", "")), body


def decoded(sequence: int, kind: str, job: str, body: str) -> Event:
    """The event of a line. Raises `DamagedLineError`, or `StoreError` if this version does not know it."""
    try:
        return decode_event(kind, json.loads(body))
    except UnknownEventError:
        raise StoreError(f"line {sequence} of the journal, {kind}, was written by a newer version of Ebbtide") from None
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise DamagedLineError(DamagedLine(sequence, kind, job, str(error))) from error
