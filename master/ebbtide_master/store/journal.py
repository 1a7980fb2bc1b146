"""Defines what the master needs of a journal, which may be a file or on a server."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ebbtide_core.events import Event
from ebbtide_core.events.codec import UnknownEventError, decode_event, encode

from ebbtide_master.store.vault import Vault


class StoreError(RuntimeError):
    """The journal cannot be trusted any more, and the master has to stop."""


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
    """A line that cannot be read, and why; ``job`` is the id of the line's job, or empty."""

    sequence: int
    kind: str
    job: str
    reason: str

    def __str__(self) -> str:
        return f"line {self.sequence} of the journal, {self.kind}, is damaged: {self.reason}"


class DamagedLineError(StoreError):
    """A line cannot be read and is not set aside yet."""

    def __init__(self, line: DamagedLine) -> None:
        super().__init__(str(line))
        self.line = line


@dataclass(frozen=True, slots=True)
class About:
    """What somebody looks for in the journal: only events of ``kinds``, about ``job`` and ``node``, and of a time.

    What is empty or 0 means any.
    """

    kinds: tuple[str, ...] = ()
    job: str = ""
    node: str = ""
    since: float = 0.0
    until: float = 0.0


ANYTHING: Final = About()


@dataclass(frozen=True, slots=True)
class StandbyMaster:
    """A master that waits to lead on the same journal, and how many seconds ago it last asked whether it may."""

    name: str
    heard_s: float


class Journal(Protocol):
    """A journal that can be read. Its methods raise `StoreError` for any failure."""

    @property
    def damage(self) -> Mapping[int, DamagedLine]:
        """The lines that were set aside, by number."""

    def events(
        self, after: int = 0, job: str | None = None, limit: int = -1, kinds: Collection[str] = ()
    ) -> Iterator[StoredEvent]:
        """Yield the events behind line ``after`` in order; only those of ``job`` and of ``kinds``, if given.

        A negative limit means none. Lines that were set aside are left out; another damaged one raises
        `DamagedLineError`.
        """

    def newest(self, before: int, after: int = 0, limit: int = -1, about: About = ANYTHING) -> Iterator[StoredEvent]:
        """Yield the events before line ``before`` and behind ``after``, the newest first, as `events` does."""

    def recorded(self, since: float, until: float, before: int, after: int = 0) -> range:
        """Return the lines from the first to the last one of those recorded from ``since`` to ``until``.

        Others may lie between them, as a clock that was set right went back. Looks through all lines before ``before``
        and behind ``after``.
        """


class Store(Journal, Protocol):
    """The journal of one cluster, which only one master at a time writes."""

    cluster_id: str
    last_sequence: int
    last_time: float
    lost: Future[None]
    """A future that fails as soon as this master is known to be unable to write, even if it has nothing to write."""

    @property
    def restored(self) -> float | None:
        """When the journal was restored from a backup, in Unix seconds; None if it never was."""

    @property
    def vault(self) -> Vault:
        """The vault that is kept beside the journal."""

    @property
    def folder(self) -> Path:
        """The directory in which the master keeps files."""

    def append(self, batch: Iterable[tuple[float, Event]]) -> Future[None]:
        """Make ``batch`` durable in one transaction; the future ends once it is, or fails with `StoreError`."""

    def set_damage_aside(self) -> None:
        """Find all lines that cannot be read, and note them durably in ``damage``. Raises `StoreError` at too many."""

    def has_room(self) -> bool:
        """Whether there is more room than is reserved for the jobs that were already accepted."""

    def standbys(self) -> list[StandbyMaster]:
        """Return the masters that wait to lead, by name; those of a file never do. Blocks."""

    def next_epoch(self) -> int:
        """Count this start of a master durably, and return the new epoch."""

    def notified(self) -> dict[str, int]:
        """Return the last line of the journal up to which each target was notified; empty if none was noted."""

    def note_notified(self, cursors: Mapping[str, int]) -> Future[None]:
        """Make durable up to which line of the journal each target was notified."""

    def close(self) -> None:
        """Finish writing and let another master open it."""


def columns(event: Event) -> tuple[str, str, str, str]:
    """Return the columns of ``event``: kind, job, node and body; job and node are empty if the event has none."""
    body = json.dumps(encode(event), separators=(",", ":"), allow_nan=False)
    return type(event).__name__, str(getattr(event, "job", "")), str(getattr(event, "node", "")), body


def decoded(sequence: int, kind: str, job: str, body: str) -> Event:
    """Return the event of a line. Raises `DamagedLineError`, or `StoreError` if this version does not know the kind."""
    try:
        return decode_event(kind, json.loads(body))
    except UnknownEventError:
        raise StoreError(f"line {sequence} of the journal, {kind}, was written by a newer version of Ebbtide") from None
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise DamagedLineError(DamagedLine(sequence, kind, job, str(error))) from error
