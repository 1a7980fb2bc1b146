"""Lets calls in: who asks is proven and may do so (`gate`), and asks for no more than there may be (`throttle`)."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

from ebbtide_master.calls.gate import Gate
from ebbtide_master.identity.access import ACCESS, Access
from ebbtide_master.identity.caller import Caller, set_caller
from ebbtide_master.identity.standing import Standing
from ebbtide_master.throttle.fair_queue import stand_in
from ebbtide_master.throttle.throttle import Kind, Throttle

Allow = Callable[[Any], None]
"""Lets a message pass, or raises why its sender may not send it."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A call that was let in: what lets its messages pass, what of a reply may be seen, and for how long all that."""

    allow: Allow
    show: Callable[[Any], Any]
    standing: Callable[[], AbstractContextManager[Standing]]
    turn: asyncio.Semaphore
    """To be held while it is worked on: of one user's calls, a few are at a time, whatever waits."""


_QUESTIONS: Final = ("List", "Show", "Watch", "Read", "Find", "Explain", "Usage")
"""How the names of methods begin that change nothing."""


class Admission:
    """Of all methods. Raises what `ebbtide_master.calls.edge` tells the caller."""

    def __init__(self, gate: Gate, throttle: Throttle) -> None:
        self._gate = gate
        self._throttle = throttle
        self._agents = count()

    @contextmanager
    def admitted(self, method: str, context: Any, *, streams: bool) -> Iterator[Admitted]:
        """Let a call in for as long as the block lasts."""
        caller = self._gate.admit(method, context)
        set_caller(caller)
        agent = ACCESS.get(method) is Access.AGENT
        # Each agent has a line of its own: what nodes report does not wait behind what users want.
        stand_in(f"agent {next(self._agents)}" if agent else f"user {caller.user}")
        with self._throttle.open(Kind.AGENT if agent else Kind.STREAM if streams else Kind.CALL, caller.user):
            yield Admitted(
                partial(self._gate.allow, method, caller=caller) if agent else self._metered(method, caller, streams),
                partial(self._gate.show, method, caller=caller),
                partial(self._gate.standing, caller),
                self._throttle.work(caller.user),
            )

    def _metered(self, method: str, caller: Caller, streams: bool) -> Allow:
        name = method.rpartition("/")[2]
        if name.startswith(_QUESTIONS):
            self._throttle.read(caller)
        elif streams:  # however many messages it brings
            self._throttle.change(caller)

        def allow(message: Any) -> None:
            self._gate.allow(method, message, caller)
            if not streams and not name.startswith(_QUESTIONS):
                self._throttle.change(caller, max(1, len(message.tasks)) if name == "Submit" else 0)

        return allow
