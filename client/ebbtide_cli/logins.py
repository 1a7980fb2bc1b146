"""Where this user has logged in: by address, the token that proves them there, and whom to trust to be that master.

The file is the user's alone (0600, in a folder 0700): ``${XDG_CONFIG_HOME:-~/.config}/ebbtide/logins.json``. The last
login in it is the master that is talked to if nothing else says which.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ebbtide_cli.errors import Failure


@dataclass(frozen=True, slots=True)
class Login:
    """What proves this user, and the certificate (PEM) of whoever vouches for the master; empty without TLS."""

    token: str
    ca: str = ""

    @property
    def token_id(self) -> str:
        """Under which the master knows the token: what stands between its first two marks."""
        return self.token.split("_")[1]


def login_at(address: str) -> Login | None:
    """The login at that address."""
    return _read().get(address)


def login_for(*addresses: str) -> Login | None:
    """The first login at one of these; masters that stand by for each other know the same tokens."""
    logins = _read()
    return next((logins[address] for address in addresses if address in logins), None)


def last_login() -> str | None:
    """The address of the last one."""
    return next(reversed(_read()), None)


@contextmanager
def trying(address: str, login: Login) -> Iterator[None]:
    """Have the login, as the last one; if the block fails, what there was before."""
    before = _read()
    _write({**{key: value for key, value in before.items() if key != address}, address: login})
    try:
        yield
    except BaseException:
        _write(before)
        raise


def forget(address: str) -> Login | None:
    """Have no login there any more; the one that there was."""
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
    """In one step, and never readable by anybody else."""
    path = _path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump({address: asdict(login) for address, login in logins.items()}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
