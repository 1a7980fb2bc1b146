"""When tokens and users were last used: what it costs the journal, and what is known after a restart."""

import asyncio
from concurrent.futures import Future

import pytest
from ebbtide_master.identity import last_uses
from ebbtide_master.identity.caller import NotKnownError, Role
from ebbtide_master.identity.identities import Identities, User
from ebbtide_master.store.journal import StoreError
from ebbtide_master.store.vault import EntryKind


class CountedVault:
    """A vault in memory that counts what is written to it."""

    def __init__(self) -> None:
        self.entries: dict[EntryKind, dict[str, str]] = {}
        self.writes = 0
        self.error: StoreError | None = None

    def put(self, kind, entries):
        done = Future()
        if self.error is not None:
            done.set_exception(self.error)
            return done
        self.writes += 1
        kept = self.entries.setdefault(kind, {})
        for key, value in entries.items():
            if value is None:
                kept.pop(key, None)
            else:
                kept[key] = value
        done.set_result(None)
        return done

    def read(self, kind):
        return dict(self.entries.get(kind, {}))


async def ann_with_a_token(vault: CountedVault) -> tuple[Identities, str, str]:
    identities = Identities(vault)
    await identities.put_user(User("ann", Role.USER))
    token, text = await identities.issue("ann", 100.0)
    return identities, token.id, text


async def test_a_call_notes_the_use_of_its_token_and_writes_nothing():
    vault = CountedVault()
    identities, id, text = await ann_with_a_token(vault)
    assert (identities.uses.of_token(id), identities.uses.of_user("ann")) == (None, None)
    before = vault.writes
    for now in (200.0, 300.0):
        identities.caller(text, now)
    with pytest.raises(NotKnownError):
        identities.caller(f"{text[:-1]}-", 400.0)
    assert (identities.uses.of_token(id), identities.uses.of_user("ann")) == (300.0, 300.0)
    assert vault.writes == before


async def test_uses_are_known_after_a_restart_and_only_what_changed_is_written():
    vault = CountedVault()
    identities, id, text = await ann_with_a_token(vault)
    async with identities.uses.kept():
        identities.caller(text, 300.4)
    uses = Identities(vault).uses
    assert (uses.of_token(id), uses.of_user("ann")) == (300.0, 300.0)
    before = vault.writes
    async with uses.kept():
        pass
    assert vault.writes == before


async def test_a_master_that_runs_writes_now_and_then(monkeypatch):
    monkeypatch.setattr(last_uses, "WRITTEN_S", 0.0)
    vault = CountedVault()
    identities, id, text = await ann_with_a_token(vault)
    async with identities.uses.kept():
        identities.caller(text, 300.0)
        async with asyncio.timeout(30):
            while vault.entries.get(EntryKind.TOKEN_USE) != {id: "300"}:
                await asyncio.sleep(0.001)


async def test_what_is_revoked_or_removed_is_forgotten_while_the_user_of_a_revoked_token_is_not():
    vault = CountedVault()
    identities, id, text = await ann_with_a_token(vault)
    async with identities.uses.kept():
        identities.caller(text, 300.0)
    await identities.revoke(id)
    async with identities.uses.kept():
        assert (identities.uses.of_token(id), identities.uses.of_user("ann")) == (None, 300.0)
    assert (vault.entries[EntryKind.TOKEN_USE], vault.entries[EntryKind.USER_USE]) == ({}, {"ann": "300"})
    await identities.remove_user("ann")
    async with identities.uses.kept():
        assert identities.uses.of_user("ann") is None
    assert vault.entries[EntryKind.USER_USE] == {}


async def test_a_vault_that_fails_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(last_uses, "WRITTEN_S", 0.0)
    vault = CountedVault()
    identities, _, text = await ann_with_a_token(vault)
    vault.error = StoreError("the disk is gone")
    async with identities.uses.kept():
        identities.caller(text, 300.0)
    assert identities.caller(text, 400.0).user == "ann"
