"""Restores a backup in place of a journal; a crash on the way leaves nothing that seems complete and is not."""

import json
import os
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_core.events import JournalRestored
from ebbtide_core.events.codec import encode

from ebbtide_master.backup.backups import Backup, JournalFindings, check, sync, verified
from ebbtide_master.store.fatal import sqlite_errors
from ebbtide_master.store.journal import StoreError
from ebbtide_master.store.sqlite import JOURNAL_NAME, LOCK_NAME, VAULT_NAME, lock
from ebbtide_master.store.sqlite_file import RESTORING_NAME
from ebbtide_master.store.sqlite_journal import SqliteJournal, damages
from ebbtide_master.store.vault import EntryKind

EPOCHS_SKIPPED: Final = 1000
"""Starts of masters that the journal may have lost; agents obey no master with a lower epoch than they know."""
IDS_SKIPPED: Final = 100_000
"""Jobs that may have been submitted since the backup, if their number is unknown."""
SIDE_FILES: Final = ("-wal", "-shm")


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored; ``replaced`` is the directory with the files that were there before, or None."""

    backup: Backup
    findings: JournalFindings
    epoch: int
    skipped: int
    replaced: Path | None


def restore(home: Path, path: Path) -> Restored:
    """Restore the backup in ``path`` to ``home``, and keep the files that it replaces.

    Raises `StoreInUseError` while a master runs there, and `StoreError` if the backup is not sound.
    """
    held = lock(home / LOCK_NAME)
    try:
        with sqlite_errors():
            backup, findings = verified(path)
            now = time.time()
            epoch, next_id = _known(home, findings)
            skipped = next_id - findings.next_id if next_id else IDS_SKIPPED
            draft = _prepared(home, backup, epoch + EPOCHS_SKIPPED, JournalRestored(backup.taken, skipped), now)
            replaced = _set_aside(home, now)
            _switch(home, draft)
            return Restored(backup, findings, epoch + EPOCHS_SKIPPED, skipped, replaced)
    finally:
        os.close(held)


def _known(home: Path, findings: JournalFindings) -> tuple[int, int]:
    """Return the highest known epoch, and the id of the next job, or 0 if that is unknown."""
    try:
        epoch = SqliteJournal(home / JOURNAL_NAME).epoch
    except StoreError:
        return findings.epoch, 0
    try:
        present = check(home)
    except StoreError:
        return max(epoch, findings.epoch), 0
    if present.cluster_id != findings.cluster_id:
        return findings.epoch, 0
    return max(epoch, findings.epoch), max(present.next_id, findings.next_id)


def _prepared(home: Path, backup: Backup, epoch: int, event: JournalRestored, now: float) -> Path:
    """Prepare the restored files in a directory of their own, check them, and return the directory."""
    draft = home / ".restored"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    shutil.copy2(backup.path / JOURNAL_NAME, draft / JOURNAL_NAME)
    journal = SqliteJournal(draft / JOURNAL_NAME)
    with closing(sqlite3.connect(draft / JOURNAL_NAME)) as db, db:
        db.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?), ('restored', ?)", (str(epoch), repr(now)))
        body = json.dumps(encode(event), separators=(",", ":"))
        line = (journal.last_sequence + 1, max(journal.last_time, now), type(event).__name__, body)
        db.execute("INSERT INTO events VALUES (?, ?, ?, '', '', ?)", line)
    _restore_vault(home, backup, draft)
    check(draft)
    for path in (*draft.iterdir(), draft):
        sync(path)
    return draft


def _restore_vault(home: Path, backup: Backup, draft: Path) -> None:
    """Keep the present vault if it is sound, so that tokens that were revoked since the backup stay revoked.

    Only the backup's environments are added, because jobs that have ended since the backup are unfinished again. A
    vault of another cluster is replaced.
    """
    present, old, new = home / VAULT_NAME, backup.path / VAULT_NAME, draft / VAULT_NAME
    if not old.exists():
        return
    shutil.copy2(old, new)
    if not present.exists() or not _is_sound(present) or _is_of_another(home, draft):
        return
    with closing(sqlite3.connect(new)) as db, db:
        db.execute("DELETE FROM entries WHERE kind <> ?", (EntryKind.ENVIRONMENT.value,))
        with closing(sqlite3.connect(f"{present.absolute().as_uri()}?mode=ro", uri=True)) as kept:
            rows = kept.execute("SELECT kind, key, value FROM entries").fetchall()
        db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", rows)


def _is_sound(path: Path) -> bool:
    try:
        return not damages(path)
    except StoreError:
        return False


def _is_of_another(home: Path, draft: Path) -> bool:
    """Return whether the present journal can be read, and is of another cluster than the draft's."""
    try:
        return SqliteJournal(home / JOURNAL_NAME).cluster_id != SqliteJournal(draft / JOURNAL_NAME).cluster_id
    except StoreError:
        return False


def _set_aside(home: Path, now: float) -> Path | None:
    """Copy the present files to a directory of their own, and return it, or None if there are no files."""
    names = [f"{name}{side}" for name in (JOURNAL_NAME, VAULT_NAME) for side in ("", *SIDE_FILES)]
    there = [home / name for name in names if (home / name).exists()]
    if not there:
        return None
    replaced = home / time.strftime("replaced-%Y%m%dT%H%M%SZ", time.gmtime(now))
    replaced.mkdir(mode=0o700, exist_ok=True)
    for path in there:
        shutil.copy2(path, replaced / path.name)
        sync(replaced / path.name)
    sync(replaced)
    return replaced


def _switch(home: Path, draft: Path) -> None:
    """Move the new files to the place of the old ones; until all are moved, no master starts there.

    The vault comes first: a restore that is done again takes it for that of the journal beside it.
    """
    marker = home / RESTORING_NAME
    marker.touch(mode=0o600)
    sync(home)
    for name in (VAULT_NAME, JOURNAL_NAME):
        for side in SIDE_FILES:  # SQLite would take the old file's log for the new file's
            (home / f"{name}{side}").unlink(missing_ok=True)
        if (draft / name).exists():
            (draft / name).replace(home / name)
    sync(home)
    marker.unlink()
    sync(home)
    draft.rmdir()
