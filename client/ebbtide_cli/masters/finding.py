"""Find the master: ``--master``, else ``EBB_MASTER``, else the one of ``EBB_HOME``, else that of the last login.

The last login does not count while ``EBB_HOME`` is set.

``--master`` and ``EBB_MASTER`` may name several masters that stand by for each other: ``HOST:PORT,HOST:PORT``.
``unix:HOME`` is the socket of the master with that home.
"""

import os

from ebbtide_cli.errors import Unreachable
from ebbtide_cli.home import Home
from ebbtide_cli.masters.address import Address, local_master, parse_address
from ebbtide_cli.masters.logins import last_login


def find_master(option: "str | Address | None") -> Address:
    """Find the master's address; `Unreachable` if the local one does not run and there is no login.

    A user who sets ``EBB_HOME`` means the cluster there: while its master is away, no other master is asked instead.
    """
    if isinstance(option, Address):
        return option
    if named := named_masters(option):
        return _one_of(named)
    try:
        return local_master(Home.current())
    except Unreachable as error:
        if (last := last_login()) is None:
            raise
        if os.environ.get("EBB_HOME"):
            raise Unreachable(f"{error.message}, or unset EBB_HOME for {last}, where you logged in last") from None
    return parse_address(last, "the last login")


def named_masters(option: str | None) -> list[Address]:
    """Return the addresses that ``--master`` names, or else ``EBB_MASTER``; none if neither does."""
    if option is not None:
        source, text = "--master", option
    elif named := os.environ.get("EBB_MASTER"):
        source, text = "EBB_MASTER", named
    else:
        return []
    return [parse_address(part.strip(), source) for part in text.split(",")]


def _one_of(addresses: list[Address]) -> Address:
    """Return the address; of several, the first where a master serves now."""
    if len(addresses) == 1:
        return addresses[0]
    from ebbtide_cli.masters.choosing import first_that_serves  # here, for it imports gRPC

    beside = tuple(map(str, addresses))
    return first_that_serves([address._replace(beside=beside) for address in addresses])
