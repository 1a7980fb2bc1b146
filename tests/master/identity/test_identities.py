"""What a master that is killed amid a change leaves of users and tokens."""

from contextlib import suppress

import pytest
from ebbtide_master.identity.caller import NotKnownError, Role
from ebbtide_master.identity.identities import Identities, User
from ebbtide_master.store.journal import StoreError
from ebbtide_master.store.vault import EntryKind

from tests.master.identity.test_last_uses import CountedVault


class DyingVault(CountedVault):
    """A vault that writes so many times more."""

    left = 99

    def put(self, kind, entries):
        if not self.left:
            self.error = StoreError("the master was killed")
        self.left -= 1
        return super().put(kind, entries)


@pytest.mark.parametrize("writes", [0, 1, 2])
async def test_tokens_of_a_user_whose_removal_broke_off_are_none_of_the_next_one_of_that_name(writes: int):
    vault = DyingVault()
    identities = Identities(vault)
    await identities.put_user(User("ann", Role.ADMIN))
    texts = [(await identities.issue("ann", 100.0))[1] for _ in range(2)]
    vault.left = writes
    with suppress(StoreError):
        await identities.remove_user("ann")
    vault.error, vault.left = None, 99
    identities = Identities(vault)
    if identities.user("ann") is not None:
        await identities.remove_user("ann")
    await identities.put_user(User("ann", Role.USER))
    for text in texts:
        with pytest.raises(NotKnownError):
            identities.caller(text, 200.0)
    assert not vault.read(EntryKind.TOKEN)
