"""Takes backups of journal and vault beside a running master, and keeps only those that could be folded.

A backup is a directory ``backups/TIME`` in the master's home, with both files and ``backup.json``, which says what was
found in it. It gets its name last; what a process left that was killed before that is removed with the next backup.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from ebbtide_core.cluster import Cluster
from ebbtide_core.model.settings import DEFAULT_POLICY
from ebbtide_core.policies.registry import create_policy
from ebbtide_core.views.digest import digest
from ebbtide_protos.version import VERSION

from ebbtide_master.store.fatal import sqlite_errors
from ebbtide_master.store.journal import DamagedLine, StoreError
from ebbtide_master.store.recovery import fold
from ebbtide_master.store.sqlite import JOURNAL_NAME, VAULT_NAME
from ebbtide_master.store.sqlite_file import BACKUPS_NAME, reading
from ebbtide_master.store.sqlite_journal import SqliteJournal, damages

RECORD_NAME: Final = "backup.json"
DRAFT: Final = ".draft-"


@dataclass(frozen=True, slots=True)
class JournalFindings:
    """What is in a journal; ``digest`` is of the state after folding it, and ``next_id`` is the id of the next job."""

    cluster_id: str
    epoch: int
    lines: int
    last_time: float
    jobs: int
    next_id: int
    digest: str
    damage: tuple[DamagedLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup in ``path``, made at Unix time ``taken``; ``said`` is the content of its ``backup.json``.

    Each backup has a higher ``number`` than those that its home had when it was made, whatever the clock said. Those of
    versions that did not count have 0.
    """

    path: Path
    taken: float
    number: int
    said: dict[str, object]


def check(folder: Path) -> JournalFindings:
    """Read the whole journal and vault in ``folder``, which a master may write meanwhile, and return the findings.

    Raises `StoreError` if a file is damaged, or no master could start with it.
    """
    for path in (folder / JOURNAL_NAME, folder / VAULT_NAME):
        if path.exists() and (found := damages(path)):
            raise StoreError(f"{path} is damaged: {found[0]}")
    journal = SqliteJournal(folder / JOURNAL_NAME)
    journal.damage.update((line.sequence, line) for line in journal.damaged())
    cluster = Cluster(create_policy(DEFAULT_POLICY, {}))
    lines, state = fold(cluster, journal), cluster.state
    if state.problems:
        raise StoreError(f"{folder / JOURNAL_NAME} does not come to sound books: {'; '.join(state.problems)}")
    return JournalFindings(
        cluster_id=journal.cluster_id,
        epoch=journal.epoch,
        lines=lines,
        last_time=journal.last_time,
        jobs=len(state.jobs),
        next_id=int(state.gates.next_id(state.submissions)),
        digest=digest(state),
        damage=tuple(journal.damage.values()),
    )


def take(home: Path, keep: int = 0, to: Path | None = None) -> tuple[Backup, JournalFindings]:
    """Back up journal and vault in ``home`` to ``to``, or to the home's backups, and keep the newest ``keep`` of these.

    A ``keep`` of 0 keeps all. Raises `StoreError`, and leaves no backup, if the copy is not sound.
    """
    own = home / BACKUPS_NAME
    folder = own if to is None else to.parent
    taken = time.time()
    path = to if to is not None else _unused(folder, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(taken)))
    if path.exists():
        raise StoreError(f"{path} is there already")
    with sqlite_errors():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _drafting(own) if folder.resolve() == own.resolve() else nullcontext():
            draft = folder / f"{DRAFT}{path.name}-{os.getpid()}"
            draft.mkdir(mode=0o700)
            try:
                findings = _fill(draft, home, taken)
                draft.rename(path)
                sync(folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        if to is None and keep:
            _prune(folder, keep)
    return read(path), findings


@contextmanager
def _drafting(folder: Path) -> Iterator[None]:
    """Share a lock on ``folder`` for as long as the block lasts; if nobody else has it, remove the drafts there first.

    The kernel releases the lock with the process, so that drafts without it are nobody's any more.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in folder.glob(f"{DRAFT}*"):
                shutil.rmtree(left, ignore_errors=True)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _unused(folder: Path, name: str) -> Path:
    """Return an unused path that sorts behind the other ones of the same second."""
    return next(path for number in range(1, 100) if not (path := folder / f"{name}-{number:02}").exists())


def _fill(draft: Path, home: Path, taken: float) -> JournalFindings:
    # The vault comes second, so that it has all that jobs of the copied journal need; newer entries do no harm.
    for name in (JOURNAL_NAME, VAULT_NAME):
        if name == JOURNAL_NAME or (home / name).exists():
            _copy(home / name, draft / name)
    findings = check(draft)
    number = 1 + max((backup.number for backup in backups(home)), default=0)
    said = {"taken": taken, "number": number, "version": VERSION, "sha256": _sums(draft), **asdict(findings)}
    (draft / RECORD_NAME).write_text(json.dumps(said, indent=1) + "\n")
    for path in (*draft.iterdir(), draft):
        sync(path)
    return findings


def read(path: Path) -> Backup:
    """Return the backup in ``path``. Raises `StoreError` if there is none."""
    try:
        said: dict[str, object] = json.loads((path / RECORD_NAME).read_text())
        return Backup(path, float(str(said["taken"])), int(str(said.get("number", 0))), said)
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path} is no backup: {error}") from None


def verified(path: Path) -> tuple[Backup, JournalFindings]:
    """Read the whole backup in ``path``. Raises `StoreError` if its files are not as they were when it was made."""
    backup = read(path)
    with sqlite_errors():
        if backup.said.get("sha256") != _sums(path):
            raise StoreError(f"{path} is damaged: its files are not those that were made")
    return backup, check(path)


def backups(home: Path) -> Iterator[Backup]:
    """Yield the backups of ``home``, the one that was made last first, sound or not.

    One without a number is as old as its name says among those that have one, or else older than these.
    """
    folder, found = home / BACKUPS_NAME, list[Backup]()
    for path in folder.iterdir() if folder.is_dir() else ():
        if not path.name.startswith(DRAFT):
            with suppress(StoreError):
                found.append(read(path))
    numbered = sorted((backup for backup in found if backup.number), key=lambda backup: backup.number)
    latest = max((time.time(), *(backup.taken for backup in numbered)))

    def place(backup: Backup) -> tuple[int, str]:
        name, number = backup.path.name, backup.number
        if not number and backup.taken <= latest:  # else the clock was wrong
            number = max((each.number for each in takewhile(lambda each: each.path.name < name, numbered)), default=0)
        return number, name

    yield from sorted(found, key=place, reverse=True)


def newest_verified(home: Path) -> Backup | None:
    """Return the newest sound backup of ``home``, or None."""
    for backup in backups(home):
        with suppress(StoreError):
            return verified(backup.path)[0]
    return None


def advice(home: Path) -> str:
    """Return what to do about a journal that cannot be used, as an addition to the error message; may be empty."""
    backup = newest_verified(home)
    return "" if backup is None else f"; the newest backup that is sound: ebb master restore {backup.path}"


def _copy(source: Path, target: Path) -> None:
    """Copy a database as it is at one moment to one plain file that no other account may read."""
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with closing(reading(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)
        new.execute("PRAGMA journal_mode=DELETE").fetchone()


def _sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file, in hexadecimal."""
    found = {}
    for name in (JOURNAL_NAME, VAULT_NAME):
        if (folder / name).exists():
            with (folder / name).open("rb") as file:
                found[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _prune(folder: Path, keep: int) -> None:
    for backup in list(backups(folder.parent))[keep:]:
        shutil.rmtree(backup.path)


def sync(path: Path) -> None:
    """Force a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
