"""Compacts a journal: forgets jobs that ended long ago, if the rest of the state stays the same without them.

A copy is rewritten, and folded as a check, before it replaces the journal. If its state differs, nothing is changed.
"""

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.events import Event, JournalCompacted
from ebbtide_core.events.codec import encode
from ebbtide_core.lifecycle.forgetting import JournalLine, forgettable, rewritten
from ebbtide_core.model.settings import DEFAULT_POLICY
from ebbtide_core.model.types import JobId
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.state import ClusterState
from ebbtide_core.views.digest import digest

from ebbtide_master.backup.backups import sync, take
from ebbtide_master.store.fatal import sqlite_errors
from ebbtide_master.store.journal import StoreError
from ebbtide_master.store.recovery import fold
from ebbtide_master.store.sqlite import JOURNAL_NAME, LOCK_NAME, lock
from ebbtide_master.store.sqlite_file import open_journal
from ebbtide_master.store.sqlite_journal import SqliteJournal

DRAFT_NAME: Final = "journal.draft"


@dataclass(frozen=True, slots=True)
class Compacted:
    """The numbers of ``forgotten`` jobs and removed ``lines``; ``backup`` has them, and is None if there were none."""

    before: float
    forgotten: int
    lines: int
    backup: Path | None
    size_bytes: int


def compact(home: Path, keep_s: float) -> Compacted:
    """Take a backup, and then forget the jobs in ``home`` that ended more than ``keep_s`` seconds ago.

    Raises `StoreInUseError` while a master runs there, and `StoreError`; then nothing is changed.
    """
    held = lock(home / LOCK_NAME)
    try:
        return _compact(home, time.time() - keep_s)
    finally:
        os.close(held)


def _compact(home: Path, before: float) -> Compacted:
    path, draft = home / JOURNAL_NAME, home / DRAFT_NAME
    with sqlite_errors():
        open_journal(path).close()  # takes in what a killed master had written last
        journal = SqliteJournal(path)
        if journal.damage:
            raise StoreError(f"{path} has damaged lines: what follows from them is not known, so nothing is forgotten")
        state = _folded(journal)
        gone = forgettable(_lines(journal), state, before)
        if not gone:
            return Compacted(before, 0, 0, None, path.stat().st_size)
        backup, _ = take(home)
        shutil.copyfile(backup.path / JOURNAL_NAME, draft)
        draft.chmod(0o600)
        lines = _rewrite(draft, journal, state, before, gone)
        _check(SqliteJournal(draft), state, gone)
        sync(draft)
        draft.replace(path)
        sync(home)
    return Compacted(before, len(gone), lines, backup.path, path.stat().st_size)


def _rewrite(draft: Path, journal: SqliteJournal, state: ClusterState, before: float, gone: set[JobId]) -> int:
    """Rewrite the copy of the journal without the jobs ``gone``, and return how many lines were removed."""
    removed = 0
    with closing(sqlite3.connect(draft, isolation_level=None)) as db:
        db.execute("BEGIN")
        for line, event in rewritten(lambda: _lines(journal), gone, state.jobs):
            if event is None:
                db.execute("DELETE FROM events WHERE sequence = ?", (line,))
                removed += 1
            else:
                record = (type(event).__name__, _body(event), line)
                db.execute("UPDATE events SET kind = ?, job = '', node = '', body = ? WHERE sequence = ?", record)
        said = JournalCompacted(before, len(gone))
        last = (journal.last_sequence + 1, journal.last_time, type(said).__name__, _body(said))
        db.execute("INSERT INTO events VALUES (?, ?, ?, '', '', ?)", last)
        db.execute("COMMIT")
        db.execute("VACUUM")
    return removed


def _check(journal: SqliteJournal, state: ClusterState, gone: set[JobId]) -> None:
    """Raise `StoreError` unless folding the journal gives ``state`` without the jobs ``gone``."""
    shorter = _folded(journal)
    for job in gone:
        del state.jobs[job]
    before, after = _facts(state), _facts(shorter)
    differing = [name for name in before if before[name] != after[name]]
    if differing:
        raise StoreError(f"the journal would amount to something else ({', '.join(differing)}): nothing is forgotten")


def _facts(state: ClusterState) -> dict[str, object]:
    return {
        "jobs and nodes": digest(state),
        "ids": (state.submissions, state.gates.next_id(state.submissions)),
        "runs": state.history.runs,
        "memory": state.peaks,
        "speeds": {script: curve.points for script, curve in state.rates.curves.items()},
        "health": {id: (node.quarantine, node.gpus, node.drain, node.loan) for id, node in state.nodes.items()},
        "problems": state.problems,
    }


def _folded(journal: SqliteJournal) -> ClusterState:
    cluster = Cluster(create_policy(DEFAULT_POLICY, {}))
    fold(cluster, journal)
    return cluster.state


def _lines(journal: SqliteJournal) -> Iterator[JournalLine]:
    return (JournalLine(line.sequence, line.time, line.event) for line in journal.events())


def _body(event: Event) -> str:
    return json.dumps(encode(event), separators=(",", ":"), allow_nan=False)
