"""Keeps when each token and each user was last used, to tell which ones nobody needs any more.

A use costs two assignments. What has changed is written to the vault every few minutes, and at the end of the master.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Final

from ebbtide_master.store.journal import StoreError
from ebbtide_master.store.vault import EntryKind, Vault

WRITTEN_S: Final = 600.0
"""Seconds after which uses are written to the vault; a master that is killed forgets those since the last time."""

log = logging.getLogger(__name__)


class LastUses:
    """Last uses in Unix seconds, by the id of the token and by the name of the user."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._known = {kind: _read(vault, kind) for kind in (EntryKind.TOKEN_USE, EntryKind.USER_USE)}
        self._changed: dict[EntryKind, set[str]] = {kind: set() for kind in self._known}

    def note(self, token: str, user: str, now: float) -> None:
        """Note that somebody has just proved to be ``user`` with ``token``."""
        self._note(EntryKind.TOKEN_USE, token, now)
        self._note(EntryKind.USER_USE, user, now)

    def of_token(self, id: str) -> float | None:
        """Return when a token was last used; None if it is not known."""
        return self._known[EntryKind.TOKEN_USE].get(id)

    def of_user(self, name: str) -> float | None:
        """Return when any token of a user was last used; None if it is not known."""
        return self._known[EntryKind.USER_USE].get(name)

    def forget_token(self, id: str) -> None:
        """Forget a token that was revoked."""
        self._forget(EntryKind.TOKEN_USE, id)

    def forget_user(self, name: str) -> None:
        """Forget a user who was removed."""
        self._forget(EntryKind.USER_USE, name)

    async def write(self) -> None:
        """Make durable what was noted since the last time. Raises `StoreError`."""
        for kind, changed in self._changed.items():
            if changed:
                self._changed[kind] = set()
                known = self._known[kind]
                entries = {key: f"{known[key]:.0f}" if key in known else None for key in changed}
                written: Future[None] = self._vault.put(kind, entries)
                await asyncio.wrap_future(written)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Write now and then for as long as the block lasts, and at its end; a journal that fails ends the master."""
        task = asyncio.create_task(self._write_now_and_then(), name="last uses")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            with suppress(StoreError):
                await self.write()

    async def _write_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(WRITTEN_S)
            try:
                await self.write()
            except StoreError as error:
                log.warning("last-uses=lost %s", error)
                return

    def _note(self, kind: EntryKind, key: str, now: float) -> None:
        self._known[kind][key] = now
        self._changed[kind].add(key)

    def _forget(self, kind: EntryKind, key: str) -> None:
        if self._known[kind].pop(key, None) is not None:
            self._changed[kind].add(key)


def _read(vault: Vault, kind: EntryKind) -> dict[str, float]:
    return {key: float(text) for key, text in vault.read(kind).items()}
