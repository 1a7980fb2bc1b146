"""Which journal a master opens: a file in its home, or a database on a server."""

from pathlib import Path

from ebbtide_master.store.journal import Store
from ebbtide_master.store.sqlite import JOURNAL_NAME, SqliteStore


def open_store(url: str, home: Path, *, wait: bool = True) -> Store:
    """The journal in the database at ``url``, else in ``home``. Raises `StoreError`, `StoreInUseError`.

    Waits for as long as another master leads on that database, or raises `StoreInUseError` at once.
    """
    if not url:
        return SqliteStore(home / JOURNAL_NAME)
    from ebbtide_master.store.postgres import PostgresStore  # most have no use for psycopg

    return PostgresStore(url, home, wait=wait)
