"""Find the authority whose certificate a master must show, as this user knows it."""

import os
from pathlib import Path
from typing import Final

from ebbtide_cli.errors import USAGE, Failure
from ebbtide_cli.home import Home, read_record
from ebbtide_cli.masters.address import Address
from ebbtide_cli.masters.logins import login_for

AUTHORITY_VARIABLE: Final = "EBB_CA"


def authority(address: Address) -> str:
    """Return the authority's certificate as PEM; empty for a master that is not known.

    ``EBB_CA`` names its file; without that, it is the authority of the local master, or else the one given at login.
    """
    if named := os.environ.get(AUTHORITY_VARIABLE):
        return _read(Path(named))
    if address.home is not None:
        ca = Home(address.home).authority
        return _read(ca) if ca.exists() else ""
    if is_own(address):
        return _read(Home.current().authority)
    login = login_for(str(address), *address.beside)
    return login.ca if login is not None else ""


def is_own(address: Address) -> bool:
    """Whether the master of ``EBB_HOME`` listens at this address."""
    home = Home.current()
    record = (read_record(home.master_record) if home.master() else None) or {}
    here = address.is_loopback or record.get("host") == address.host
    return record.get("port") == address.port and here


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise Failure(f"{AUTHORITY_VARIABLE}: {path}: {why}", USAGE) from None
