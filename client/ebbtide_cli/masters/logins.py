"""Keep this user's logins: by address, the token that proves the user, and the authority that proves the master.

Only the user can read the file (0600, in a directory 0700): ``${XDG_CONFIG_HOME:-~/.config}/ebbtide/logins.json``. Its
last login names the master that verbs talk to if nothing else names one.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ebbtide_cli.errors import Failure


class Login(NamedTuple):
    """The token that proves this user, and the certificate (PEM) of the master's authority; empty without TLS."""

    token: str
    ca: str = ""

    @property
    def token_id(self) -> str:
        """The id by which the master knows the token: the part between its first two underscores."""
        return self.token.split("_")[1]


def login_at(address: str) -> Login | None:
    """Return the login at this address; None if there is none."""
    return _read().get(address)


def login_for(*addresses: str) -> Login | None:
    """Return the first login at one of the addresses; masters that stand by for each other know the same tokens."""
    logins = _read()
    return next((logins[address] for address in addresses if address in logins), None)


def last_login() -> str | None:
    """Return the address of the last login; None if there is no login."""
    return next(reversed(_read()), None)


@contextmanager
def trying(address: str, login: Login) -> Iterator[None]:
    """Store the login as the last one; if the block fails, restore the logins as they were."""
    before = _read()
    _write({**{key: value for key, value in before.items() if key != address}, address: login})
    try:
        yield
    except BaseException:
        _write(before)
        raise


def forget(address: str) -> Login | None:
    """Remove the login at this address and return it; None if there was none."""
    logins = _read()
    gone = logins.pop(address, None)
    if gone is not None:
        _write(logins)
    return gone


def _path() -> Path:
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path.home() / ".config") / "ebbtide" / "logins.json"


def _read() -> dict[str, Login]:
    path = _path()
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    try:
        return {address: Login(str(one["token"]), str(one.get("ca", ""))) for address, one in json.loads(text).items()}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise Failure(f"{path} is damaged: remove it, and log in again") from None


def _write(logins: dict[str, Login]) -> None:
    """Write the logins in one step, never readable by another user."""
    path = _path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump({address: login._asdict() for address, login in logins.items()}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
