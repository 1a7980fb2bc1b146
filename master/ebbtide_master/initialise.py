"""Makes what a master needs to serve other machines (``ebb master init``), and keeps what exists."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_protos.invitation import Invitation, encode

from ebbtide_master.config.file import CONFIG_NAME, read_config
from ebbtide_master.identity.caller import Role
from ebbtide_master.identity.identities import Identities, User
from ebbtide_master.identity.local import own_account
from ebbtide_master.store.opening import open_store
from ebbtide_master.tls.authority import Certificate
from ebbtide_master.tls.folder import LOCAL_HOSTS, TlsFolder, own_hosts, write

LABEL: Final = "of ebb master init"


@dataclass(frozen=True, slots=True)
class Initialised:
    """What exists now, and which of it were ``made``: authority, certificate, invitation.

    The first invitation is made with the authority. Later it is None, and `ebb token create --invite` makes others.
    """

    folder: TlsFolder
    authority: Certificate
    server: Certificate
    address: str
    invitation: str | None
    made: tuple[str, ...]


def initialise(home: Path, hosts: tuple[str, ...], port: int | None, store: str = "") -> Initialised:
    """Make an authority, and a certificate for ``hosts`` and this machine, where they do not exist.

    The first of the ``hosts`` is the one by which others reach the master from now on.

    An authority that was copied here from another machine is used, so that masters that stand by for each other share
    one. ``store`` is the URL of the database with the journal; empty means what ``ebbtide.toml`` in ``home`` says, else
    a file.

    Raises `StoreInUseError` if a running master has to be stopped first, and `StoreError`, `ConfigError`,
    `CertificateError`, OSError.
    """
    folder, now, made, invitation = TlsFolder.of(home), time.time(), list[str](), None
    if not folder.exists:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        token = _admin_token(home, store or _configured(home), now)  # first, as it fails while a master runs
        folder.create_authority(now)
        made.append("authority")
    folder.remember_port(port)
    if folder.ensure_covers(own_hosts(), now, first=hosts):
        made.append("certificate")
    server = folder.server()
    assert server is not None
    address = f"{_bracketed(_first(hosts or server.hosts))}:{folder.port}"
    if "authority" in made:
        invitation = encode(Invitation(address, token, folder.authority_file.read_text()))
        write(folder.invitation_file, invitation + "\n")
        made.append("invitation")
    return Initialised(folder, folder.authority().certificate, server, address, invitation, tuple(made))


def _configured(home: Path) -> str:
    path = home / CONFIG_NAME
    return read_config(path).journal.store if path.exists() else ""


def _admin_token(home: Path, url: str, now: float) -> str:
    store = open_store(url, home, wait=False)
    try:
        return asyncio.run(_issue(Identities(store.vault), own_account(), now))
    finally:
        store.close()


async def _issue(identities: Identities, account: str, now: float) -> str:
    if identities.user(account) is None:
        await identities.put_user(User(account, Role.ADMIN))
    for token in list(identities.tokens_of(account)):
        if token.label == LABEL:  # nobody knows this token, because its invitation does not exist
            await identities.revoke(token.id)
    _, text = await identities.issue(account, now, label=LABEL)
    return text


def _first(hosts: tuple[str, ...]) -> str:
    return next((host for host in hosts if host not in LOCAL_HOSTS), hosts[0])


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
