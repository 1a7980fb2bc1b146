"""Looks up accounts without blocking the agent, because a directory service may be slow or not answer at all."""

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Final

from ebbtide_machine.threads import on_daemon_thread

from ebbtide_agent.accounts import accounts
from ebbtide_agent.accounts.accounts import Account, AllowedAccounts, NoAccount

ANSWER_S: Final = 10.0
"""Seconds in which an account must be found; else the job cannot run here for now."""


async def account_of(name: str, uid: int | None, allowed: AllowedAccounts) -> Account | None:
    """Return the account as which an attempt for ``name`` runs; None: the agent's own, or root's, if root may run jobs.

    ``uid`` is the one the master knows. Raises NoAccount.
    """
    if not name:
        if os.geteuid() == 0 and allowed.min_uid > 0:
            raise NoAccount("the job would run as root, as which none does here (ebb agent --min-uid 0)")
        return None
    try:
        async with asyncio.timeout(ANSWER_S):
            return await on_daemon_thread(partial(accounts.find, name, uid, allowed))
    except TimeoutError:
        raise NoAccount(f"account {name!r} cannot be looked up here: nothing answers") from None


def owner_of(path: Path) -> Account | None:
    """Return the account that owns the directory, with whose rights its files may be shown; None: the agent's own.

    Raises FileNotFoundError if the directory does not exist.
    """
    facts = path.lstat()
    return accounts.owner(facts.st_uid, facts.st_gid)
