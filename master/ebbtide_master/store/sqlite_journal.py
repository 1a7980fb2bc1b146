"""Reads a journal in an SQLite file, which may be a copy, or the file that a master is writing."""

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from ebbtide_master.store.fatal import sqlite_errors
from ebbtide_master.store.journal import (
    ANYTHING,
    About,
    DamagedLine,
    DamagedLineError,
    StoredEvent,
    StoreError,
    decoded,
)
from ebbtide_master.store.sqlite_file import reading

MAX_SEQUENCE: Final = 2**63 - 1


class SqliteJournal:
    """The journal at ``path``, for reading. Raises `StoreError` if it cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.damage: dict[int, DamagedLine] = {}
        with sqlite_errors(), closing(self._read()) as db:
            meta: dict[str, str] = dict(db.execute("SELECT key, value FROM meta").fetchall())
            try:
                self.cluster_id = meta["cluster_id"]
                self.restored = float(meta["restored"]) if "restored" in meta else None
                self.epoch = int(meta["epoch"])
                """Epoch of the last master that had started when this was read."""
            except (KeyError, ValueError) as error:
                raise StoreError(f"{path} is damaged: what it says of itself cannot be read ({error})") from None
            last = "SELECT sequence, time FROM events ORDER BY sequence DESC LIMIT 1"
            self.last_sequence: int
            self.last_time: float
            self.last_sequence, self.last_time = db.execute(last).fetchone() or (0, 0.0)
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'damage'").fetchone():
                lines = db.execute("SELECT sequence, kind, job, reason FROM damage ORDER BY sequence")
                self.damage.update((line[0], DamagedLine(*line)) for line in lines)

    def events(
        self, after: int = 0, job: str | None = None, limit: int = -1, kinds: Collection[str] = ()
    ) -> Iterator[StoredEvent]:
        """Yield the journal's events as `ebbtide_master.store.journal.Journal` says."""
        query = "SELECT sequence, time, kind, job, body FROM events WHERE sequence > ?"
        arguments: list[object] = [min(after, MAX_SEQUENCE)]
        if kinds:
            query += f" AND kind IN ({','.join('?' * len(kinds))})"
            arguments += kinds
        if job is not None:
            query += " AND job = ? AND job <> ''"
            arguments.append(job)
        with sqlite_errors(), closing(self._read()) as db:
            for sequence, time, *line in db.execute(f"{query} ORDER BY sequence LIMIT ?", [*arguments, limit]):
                if sequence not in self.damage:
                    yield StoredEvent(sequence, time, decoded(sequence, *line))

    def newest(self, before: int, after: int = 0, limit: int = -1, about: About = ANYTHING) -> Iterator[StoredEvent]:
        """Yield the newest events first, as `ebbtide_master.store.journal.Journal` says."""
        query = "SELECT sequence, time, kind, job, body FROM events WHERE sequence < ? AND sequence > ?"
        arguments: list[object] = [min(before, MAX_SEQUENCE), min(after, MAX_SEQUENCE)]
        if about.kinds:
            query += f" AND kind IN ({','.join('?' * len(about.kinds))})"
            arguments += about.kinds
        if about.job:
            query += " AND job = ? AND job <> ''"
            arguments.append(about.job)
        if about.node:
            query += " AND node = ?"
            arguments.append(about.node)
        if about.since:
            query += " AND time >= ?"
            arguments.append(about.since)
        if about.until:
            query += " AND time <= ?"
            arguments.append(about.until)
        with sqlite_errors(), closing(self._read()) as db:
            for sequence, time, *line in db.execute(f"{query} ORDER BY sequence DESC LIMIT ?", [*arguments, limit]):
                if sequence not in self.damage:
                    yield StoredEvent(sequence, time, decoded(sequence, *line))

    def recorded(self, since: float, until: float, before: int, after: int = 0) -> range:
        """Return the lines around those of a time, as `ebbtide_master.store.journal.Journal` says."""
        query = (
            "SELECT min(sequence), max(sequence) FROM events"
            " WHERE time >= ? AND time <= ? AND sequence < ? AND sequence > ?"
        )
        with sqlite_errors(), closing(self._read()) as db:
            bounds = since, until, min(before, MAX_SEQUENCE), min(after, MAX_SEQUENCE)
            first, last = db.execute(query, bounds).fetchone()
        return range(first or 1, (last or 0) + 1)

    def damaged(self) -> Iterator[DamagedLine]:
        """Yield all lines that cannot be read."""
        with sqlite_errors(), closing(self._read()) as db:
            for line in db.execute("SELECT sequence, kind, job, body FROM events ORDER BY sequence"):
                try:
                    decoded(*line)
                except DamagedLineError as error:
                    yield error.line

    def _read(self) -> sqlite3.Connection:
        return reading(self._path)


def damages(path: Path) -> list[str]:
    """Return what SQLite finds wrong with the file at ``path``; an empty list if it is sound."""
    with sqlite_errors(), closing(reading(path)) as db:
        found = [str(row[0]) for row in db.execute("PRAGMA integrity_check(10)")]
    return [] if found == ["ok"] else found
