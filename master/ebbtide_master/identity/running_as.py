"""Finds the UNIX account that a user's jobs run as on nodes where the agent may choose."""

from collections.abc import Callable
from dataclasses import dataclass

from ebbtide_master.identity.identities import Identities
from ebbtide_master.identity.local import own_account


@dataclass(frozen=True, slots=True)
class SubmitterAccount:
    """The account that nodes get; an empty ``name`` means the agent's own. ``uid`` is None if it is unknown."""

    name: str = ""
    uid: int | None = None


Accounts = Callable[[str], SubmitterAccount]
"""Returns the account of a user."""

AGENTS_OWN = SubmitterAccount()


def accounts_of(identities: Identities, *, personal: bool) -> Accounts:
    """Return the function that finds a user's account in ``identities``.

    In a ``personal`` cluster, which is all on one machine, the agents run the jobs of the master's own account as
    themselves, even if that is root.
    """
    own = own_account()

    def account(user: str) -> SubmitterAccount:
        if personal and user == own:
            return AGENTS_OWN
        known = identities.user(user)
        return SubmitterAccount(user) if known is None else SubmitterAccount(known.account or user, known.uid)

    return account
