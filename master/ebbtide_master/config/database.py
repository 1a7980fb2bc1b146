"""Reads ``[journal] store``, the URL of a database that keeps the journal instead of a file."""

from pathlib import Path
from typing import Final

from ebbtide_master.config.table import ConfigError, Table

SCHEMES: Final = ("postgresql://", "postgres://")


class UrlError(ValueError):
    """The database URL cannot be used; the message repeats no part of it."""


def take_store(journal: Table) -> str:
    """Return the URL of the database; empty means a file in the master's home."""
    url = journal.take("store", str, "")
    try:
        if url:
            has_password(url)
    except UrlError as error:
        raise journal.error("store", str(error)) from None
    return url


def check_kept_secret(url: str, path: Path) -> None:
    """Raise `ConfigError` if other accounts may read the password in the configuration file at ``path``."""
    mode = path.stat().st_mode & 0o777
    if url and mode & 0o077 and has_password(url):
        raise ConfigError(f"journal.store: has a password, and the file has mode {mode:04o}: chmod 600 {path}")


def has_password(url: str) -> bool:
    """Whether ``url`` has a password. Raises `UrlError` if the URL cannot be used."""
    if not url.startswith(SCHEMES):
        raise UrlError("is not postgresql://USER@HOST:PORT/DATABASE")
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ModuleNotFoundError:
        raise UrlError("needs psycopg: pip install 'ebbtide[postgres]'") from None
    try:
        return "password" in conninfo_to_dict(url)
    except ProgrammingError:  # the message of this error may repeat the password
        raise UrlError(
            "is not a URL that PostgreSQL understands: is every special character in it %-encoded?"
        ) from None
