"""Checks whether the certificates of the node and of the master are good for some time to come."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ebbtide_protos.handshake import day, own_trouble, validity

from ebbtide_agent.doctor.finding import Finding, ok, problem, warning
from ebbtide_agent.link import joined

WARNED_S: Final = 14 * 86_400.0
"""Seconds before its end from which on to warn; an agent renews it four months, a third of its life, before."""
CHECK: Final = "certificate"
JOIN: Final = "ebb node invite NODE on the master's machine, ebb agent join here"


def node(node_dir: Path, now: float) -> Iterator[Finding]:
    """Yield what is found of the certificate of a node that has joined; nothing for one that has not."""
    try:
        member = joined.load(node_dir)
        if member is None:
            return
        words, ends = own_trouble(member.own, now), validity(member.certificate)[1]
    except (ValueError, OSError) as error:
        yield problem(CHECK, str(error), JOIN)
        return
    if words:
        yield problem(CHECK, words.partition(":")[0], JOIN)
    elif ends - now < WARNED_S:
        yield warning(CHECK, f"the node's ends on {day(ends)}, and was not renewed", "start the agent: ebb agent")
    else:
        yield ok(CHECK, f"the node's holds until {day(ends)}")


def master(ends: float | None, now: float) -> Iterator[Finding]:
    """Yield a warning if the certificate of a master that speaks TLS ends soon. Times are in Unix seconds."""
    if ends is not None and ends - now < WARNED_S:
        yield warning(CHECK, f"the master's ends on {day(ends)}, and was not renewed", "see the master's log")
