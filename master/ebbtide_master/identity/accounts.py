"""Reads the accounts of the master's machine as users."""

import grp
import pwd
from typing import Final

from ebbtide_protos.v1 import user_pb2

FIRST_UID: Final = 1000
"""Lowest uid of a person's account; lower ones are system accounts on all distributions."""
NOBODY_UID: Final = 65534


def accounts(group: str = "") -> list[user_pb2.User]:
    """Return people's accounts by name: all, or those of ``group``. Raises ``KeyError`` if there is no such group."""
    people = [known for known in pwd.getpwall() if known.pw_uid >= FIRST_UID and known.pw_uid != NOBODY_UID]
    if group:
        found = grp.getgrnam(group)
        people = [known for known in people if known.pw_name in found.gr_mem or known.pw_gid == found.gr_gid]
    by_name = {known.pw_name: known.pw_uid for known in people}
    return [user_pb2.User(name=name, uid=uid) for name, uid in sorted(by_name.items())]
