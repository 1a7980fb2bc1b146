"""Opens the master's journal: a file in its home, or a database on a server."""

from pathlib import Path

from ebbtide_master.store.journal import Store
from ebbtide_master.store.sqlite import JOURNAL_NAME, SqliteStore


def open_store(url: str, home: Path, *, wait: bool = True) -> Store:
    """Open the journal in the database at ``url``, or in ``home`` if that is empty. Raises `StoreError`.

    While another master leads on the database, it waits, or raises `StoreInUseError` if ``wait`` is false; a file in
    use raises `StoreInUseError` at once.
    """
    if not url:
        return SqliteStore(home / JOURNAL_NAME)
    from ebbtide_master.store.postgres import PostgresStore  # most masters do not need psycopg

    return PostgresStore(url, home, wait=wait)
