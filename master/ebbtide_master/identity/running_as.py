"""As which UNIX accounts the jobs of the cluster's users run, where an agent may choose."""

from collections.abc import Callable
from dataclasses import dataclass

from ebbtide_master.identity.identities import Identities
from ebbtide_master.identity.local import own_account


@dataclass(frozen=True, slots=True)
class SubmitterAccount:
    """What nodes are told; an empty ``name`` is the agent's own. ``uid`` is None if the master does not know it."""

    name: str = ""
    uid: int | None = None


Accounts = Callable[[str], SubmitterAccount]
"""The account of a user."""

AGENTS_OWN = SubmitterAccount()


def accounts_of(identities: Identities, *, personal: bool) -> Accounts:
    """Those that ``identities`` say.

    In a ``personal`` cluster, all of which is on one machine, the jobs of whoever runs the master are run by the agents
    as themselves, even if that is root.
    """
    own = own_account()

    def account(user: str) -> SubmitterAccount:
        if personal and user == own:
            return AGENTS_OWN
        known = identities.user(user)
        return SubmitterAccount(user) if known is None else SubmitterAccount(known.account or user, known.uid)

    return account
