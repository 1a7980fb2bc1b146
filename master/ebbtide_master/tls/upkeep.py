"""Renews the master's own certificate, forgets those of nodes that are gone, and warns of others that end soon."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import Final, NoReturn

from ebbtide_master.store.journal import StoreError
from ebbtide_master.tls.authority import DAY_S, CertificateError
from ebbtide_master.tls.folder import RENEWED_S
from ebbtide_master.tls.listeners import Listeners

WARNED_S: Final = 14 * DAY_S
"""Seconds before the end at which a warning begins; a node that could renew its certificate did so long before,
with a third of its life left."""
PAUSE_S: Final = 3600.0
WARNING_PAUSE_S: Final = DAY_S

log = logging.getLogger(__name__)


async def keep_up(listeners: Listeners, now: Callable[[], float], nodes: Callable[[], Collection[str]]) -> NoReturn:
    """Renew the master's certificate in time, and warn once a day of others that end soon, until cancelled.

    ``nodes`` returns the names of the cluster's nodes. The certificate of another one may be of a node that has joined
    and not come yet, so that it is forgotten only once it has ended.
    """
    warned = -WARNING_PAUSE_S
    while True:
        renew(listeners, now())
        try:
            await listeners.enrolment.forget(over(listeners, now(), nodes()))
        except StoreError as error:
            log.warning("certificate=not-forgotten %s", error)
        if now() - warned >= WARNING_PAUSE_S:
            warned = now()
            for warning in ending(listeners, warned, nodes()):
                log.warning("certificate=ends %s", warning)
        await asyncio.sleep(PAUSE_S)


def renew(listeners: Listeners, now: float) -> None:
    """Replace the master's certificate if it ends soon; open connections stay open."""
    try:
        if listeners.folder.ensure_covers((), now, RENEWED_S):
            log.info("certificate=renewed file=%s", listeners.folder.server_file)
    except (CertificateError, OSError) as error:
        log.error("certificate=not-renewed %s", error)


def over(listeners: Listeners, now: float, nodes: Collection[str]) -> list[str]:
    """Return whose certificates have ended, except for the cluster's ``nodes``."""
    return [node for node, ends in listeners.enrolment.members().items() if ends <= now and node not in nodes]


def ending(listeners: Listeners, now: float, nodes: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each certificate that ends soon, the master's or of ``nodes``, with what to do about it."""
    if listeners.enrolment.authority.ends - now < WARNED_S:
        when = day(listeners.enrolment.authority.ends)
        yield f"the authority's certificate ends on {when}: make a new one, and have every node and user join again"
    server = listeners.certificate_ends()
    if server is not None and server - now < WARNED_S:
        yield f"the master's certificate ends on {day(server)}, and could not be renewed"
    for node, ends in listeners.enrolment.members().items():
        if node in nodes and ends - now < WARNED_S:
            yield f"the certificate of node {node} ends on {day(ends)}: start its agent, or have it join again"


def day(seconds: float) -> str:
    """Return the date of a Unix time, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")
