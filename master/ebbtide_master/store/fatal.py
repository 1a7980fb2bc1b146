"""Turns errors of SQLite into `StoreError`, because each of them must end the master."""

import sqlite3

from ebbtide_master.store.journal import StoreError


class sqlite_errors:
    """Turns every error of SQLite into `StoreError`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error | OSError):
            raise StoreError(f"the journal failed: {error}") from error
