"""Admits calls: the caller is proven and may make the call (`gate`), and is within the limits (`throttle`)."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from ebbtide_master.calls.gate import Gate
from ebbtide_master.identity.access import ACCESS, READS, Access
from ebbtide_master.identity.caller import Caller, set_caller
from ebbtide_master.identity.standing import Standing
from ebbtide_master.throttle.fair_queue import use_queue
from ebbtide_master.throttle.throttle import CallKind, Throttle

Allow = Callable[[Any], None]
"""Lets a message pass, or raises an error that says why its sender may not send it."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """An admitted call: how its messages are checked, how replies are shown, and how long its stream may go on."""

    allow: Allow
    show: Callable[[Any], Any]
    standing: Callable[[], AbstractContextManager[Standing]]
    turn: asyncio.Semaphore
    """Semaphore to hold while the call is worked on, so that only a few calls of one user are at a time."""


class Admission:
    """Admits calls of all methods. Raises the errors that `ebbtide_master.calls.edge` sends to the caller."""

    def __init__(self, gate: Gate, throttle: Throttle) -> None:
        self._gate = gate
        self._throttle = throttle
        self._agents = count()

    @contextmanager
    def admitted(self, method: str, context: Any, *, streams: bool) -> Iterator[Admitted]:
        """Admit a call for as long as the block lasts."""
        caller = self._gate.admit(method, context)
        set_caller(caller)
        agent = ACCESS.get(method) is Access.AGENT
        # Each agent has a queue of its own, so that nodes' reports do not wait behind users' requests.
        use_queue(f"agent {next(self._agents)}" if agent else f"user {caller.user}")
        with self._throttle.open(
            CallKind.AGENT if agent else CallKind.STREAM if streams else CallKind.CALL, caller.user
        ):
            yield Admitted(
                partial(self._gate.allow, method, caller=caller) if agent else self._metered(method, caller, streams),
                partial(self._gate.show, method, caller=caller),
                partial(self._gate.standing, caller),
                self._throttle.work(caller.user),
            )

    def _metered(self, method: str, caller: Caller, streams: bool) -> Allow:
        reads, submits = method in READS, method.endswith("/Submit")
        if reads:
            self._throttle.read(caller)
        elif streams:  # counts once, however many messages the stream has
            self._throttle.change(caller)

        def allow(message: Any) -> None:
            self._gate.allow(method, message, caller)
            if not streams and not reads:
                self._throttle.change(caller, max(1, len(message.tasks)) if submits else 0)

        return allow
