"""Finds the UNIX account of this node that a job runs as.

An agent of root may choose it, and an `Account` is then never root's. An agent of an ordinary account starts jobs of
its own account and no others, unless it is allowed to run all jobs as that one account.
"""

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

MIN_UID: Final = 1000
"""The lowest uid of jobs by default; below it are the system's own accounts, as login.defs has it."""


class NoAccount(Exception):
    """The job cannot run here as the user who submitted it; the message says why in one line."""


@dataclass(frozen=True, slots=True)
class AllowedAccounts:
    """As root, an agent runs jobs of accounts from ``min_uid`` on; else with ``shared``, all jobs as its own one."""

    min_uid: int = MIN_UID
    shared: bool = False


BY_DEFAULT: Final = AllowedAccounts()


@dataclass(frozen=True, slots=True)
class Account:
    """An account of this node other than the agent's."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str = "/bin/sh"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that a login would set."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}

    @classmethod
    def of(cls, entry: pwd.struct_passwd) -> Self:
        """Return the account with all groups that it is in."""
        groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
        shell = entry.pw_shell or "/bin/sh"
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, shell)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Parse the content; raises KeyError or TypeError if it is no account."""
        return cls(**{**content, "groups": tuple(content["groups"])})


def find(name: str, uid: int | None, allowed: AllowedAccounts = BY_DEFAULT) -> Account | None:
    """Return the account as which a job of ``name`` runs; None: the agent's own. ``uid`` is the one the master knows.

    May block if accounts are looked up over a network. Raises NoAccount.
    """
    if not name or (allowed.shared and os.geteuid()):  # no job becomes root's
        return None
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise NoAccount(f"there is no account {name[:64]!r} here") from None
    if uid is not None and uid != entry.pw_uid:
        raise NoAccount(f"account {name} has uid {entry.pw_uid} here, and {uid} as the master knows it")
    if entry.pw_uid == os.geteuid() and entry.pw_uid:
        return None
    if os.geteuid():
        own = name_of(os.geteuid())
        raise NoAccount(f"the agent here runs as {own} and starts no jobs of {name}: only one that runs as root may")
    if entry.pw_uid < allowed.min_uid:
        raise NoAccount(
            f"account {name} has uid {entry.pw_uid}: below {allowed.min_uid} no jobs run here (ebb agent --min-uid)"
        )
    return Account.of(entry) if entry.pw_uid else None


def owner(uid: int, gid: int) -> Account | None:
    """Return the account that owns a file with these ids; None: the agent's own, or root's."""
    if uid in (0, os.geteuid()):
        return None
    try:
        return Account.of(pwd.getpwuid(uid))
    except KeyError:
        return Account(str(uid), uid, gid, (gid,), "/")


def login_shell() -> str:
    """Return the login shell of the agent's own account."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_shell or "/bin/sh"
    except KeyError:
        return "/bin/sh"


def name_of(uid: int) -> str:
    """Return the name of an account, or its uid if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
