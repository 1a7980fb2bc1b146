"""Knows when this node is gone, and makes the attempts that are left by then save and end, even if no master is heard.

The master asks each attempt to leave earlier than that. So where it is heard, there is nothing left to do here.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ebbtide_machine.process import boot_id
from ebbtide_protos.v1 import agent_pb2

from ebbtide_agent.jsonfile import read_json

log = logging.getLogger(__name__)

MARGIN_S = 5.0
"""Seconds before the end at which no attempt is left; the master asks for more, so that its word comes first."""
NOTICE = "notice.json"
"""File in the node's directory with what was announced on this machine.

It has ``until`` (Unix seconds), ``boot_id``, and ``owner`` if the one who lends the node was not said at the start.
"""
HEARD_S = 2.0
"""Seconds in which the master asks the attempts of a node that is to be left at once, if it is there."""
_LONGEST_PAUSE_S = 5.0  # because the clock may be set, and an attempt may start


class Leaving(Protocol):
    """An attempt on this node."""

    @property
    def key(self) -> tuple[str, int]: ...
    @property
    def grace_s(self) -> float: ...
    @property
    def is_over(self) -> bool: ...
    def leave_alone(self, grace_s: float) -> None: ...


class NodeEnd:
    """The end of this node: as it was said at the agent's start, until something else is said of it."""

    def __init__(self, said: agent_pb2.Loan | None = None, notice_file: Path | None = None) -> None:
        """`notice_file` is where `ebb node leave --ends-in` on this machine leaves its notice."""
        self._said = said
        self._announced: agent_pb2.Loan | None = None  # by this agent itself, without a notice
        self._outdated = dict[str, Any]()  # the notice that was there before that
        self._notice_file = notice_file
        self.own = said  # what this agent says of the end: what was announced on this machine last; None: it stays
        self.until = None if said is None else said.until  # in Unix seconds, by the last word; None: it stays
        self._leave_at = math.inf  # on the monotonic clock: the attempts need not stay until the end
        self._changed = asyncio.Event()
        self._asked = set[tuple[Leaving, float]]()
        self.look_for_notice()

    def announce(self, until: float, owner: str) -> None:
        """Have the next look find that the node ends then, where no notice can say so. A later notice goes first."""
        self._announced, self._outdated = self._loan(until, owner), self._notice()

    def look_for_notice(self) -> bool:
        """Take in what was announced on this machine since its boot. Return whether there is a new notice."""
        notice, own = self._notice(), self._announced or self._said
        until = notice.get("until")
        if isinstance(until, int | float) and notice != self._outdated:
            own = self._loan(until, str(notice.get("owner", "")))
        if own == self.own:
            return False
        self.own = own
        self.hear(None)
        return own is not self._said

    def _notice(self) -> dict[str, Any]:
        content = None
        with suppress(OSError, ValueError):
            content = None if self._notice_file is None else read_json(self._notice_file)
        return content if content is not None and content.get("boot_id") == boot_id() else {}

    def _loan(self, until: float, owner: str) -> agent_pb2.Loan:
        return agent_pb2.Loan(until=until, owner=owner if self._said is None else self._said.owner)

    def hear(self, until: float | None) -> None:
        """Take in what the master was told of the end; None: what this agent says holds."""
        own = None if self.own is None else self.own.until
        self._set(own if until is None else until)

    def _set(self, until: float | None) -> None:
        self.until = until
        self._changed.set()
        log.info("event=node-ends in_s=%s", "never" if until is None else f"{until - time.time():.0f}")

    def leave_now(self) -> None:
        """Have all attempts leave now; the master has a moment to ask them first."""
        self._leave_at = min(self._leave_at, time.monotonic() + HEARD_S)
        self._changed.set()

    async def run(self, attempts: Callable[[], Iterable[Leaving]]) -> None:
        """Ask the `attempts` that are left to save and end when it is time, until cancelled."""
        while True:
            self._changed.clear()
            pause_s = None if self.until is None else self._ask(attempts(), self.until)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    def _ask(self, attempts: Iterable[Leaving], until: float) -> float:
        """Ask the attempts whose time has come. Return the seconds until the next look."""
        left_s, pause_s = until - time.time(), _LONGEST_PAUSE_S
        to_leave_s = self._leave_at - time.monotonic()
        for attempt in attempts:
            early_s = min(left_s - attempt.grace_s - MARGIN_S, to_leave_s)
            if attempt.is_over or (attempt, until) in self._asked:
                continue
            if early_s > 0:
                pause_s = min(pause_s, early_s)
                continue
            self._asked.add((attempt, until))
            grace_s = min(attempt.grace_s, max(left_s - MARGIN_S, left_s / 2, 0.0))
            log.info("event=leave-before-end job=%s attempt=%d grace_s=%g", *attempt.key, grace_s)
            attempt.leave_alone(grace_s)
        return pause_s
