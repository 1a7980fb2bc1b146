"""Provides the token of the master's own account in the master's home, which only that account can read."""

import os
import pwd
import socket
from pathlib import Path
from typing import Final

from ebbtide_master.identity.caller import NotKnownError, Role
from ebbtide_master.identity.identities import Identities, User

TOKEN_NAME: Final = "token"
LABEL: Final = "of the master's own account"


async def provide_token(identities: Identities, home: Path, now: float) -> None:
    """Write a token to ``home`` that proves this account as an admin, unless there is one; its owner alone reads it."""
    path, account = home / TOKEN_NAME, own_account()
    try:
        if identities.caller(path.read_text().strip(), now).user == account:
            return
    except (FileNotFoundError, NotKnownError):
        pass  # there is no token yet, or it belongs to another journal
    if identities.user(account) is None:
        await identities.put_user(User(account, Role.ADMIN))
    label = f"{LABEL}, in {home} on {socket.gethostname()}"  # another master may lead on the same journal elsewhere
    for token in list(identities.tokens_of(account)):
        if token.label == label:
            await identities.revoke(token.id)
    _, text = await identities.issue(account, now, label=label)
    _write(path, text)


def own_account() -> str:
    """Return the name of the account that this process runs as, or its number if it has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(descriptor)
    draft.replace(path)
