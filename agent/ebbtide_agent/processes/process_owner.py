"""Names the user that a process belongs to."""

import pwd
from functools import lru_cache

from ebbtide_agent.processes import procfs


def owner_name(pid: int) -> str:
    """Return the name of the process's user, or the uid if it has no name; empty if the process is gone."""
    uid = procfs.owner_uid(pid)
    return "" if uid is None else _name(uid)


@lru_cache(maxsize=256)
def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
