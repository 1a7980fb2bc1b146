"""Stands before every call: who asks is known, asks for no more than there may be at a time, and waits in a line."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final
from weakref import WeakValueDictionary

from ebbtide_core.model import limits

from ebbtide_master.calls.gate import Gate
from ebbtide_master.identity.access import ACCESS, Access
from ebbtide_master.identity.caller import Caller, set_caller
from ebbtide_master.identity.standing import Standing
from ebbtide_master.throttle.fair_queue import stand_in
from ebbtide_master.throttle.open_calls import Crowd, crowd_of_agents, crowd_of_calls, crowd_of_streams
from ebbtide_master.throttle.rates import Meter

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


class Guard:
    """Of all methods. Raises what `ebbtide_master.calls.edge` tells the caller."""

    def __init__(self, gate: Gate, meter: Meter) -> None:
        self._gate = gate
        self._meter = meter
        self._calls: Crowd = crowd_of_calls()
        self._streams: Crowd = crowd_of_streams()
        self._agents: Crowd = crowd_of_agents()
        self._lines = count()
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextmanager
    def admitted(self, method: str, context: Any, *, streams: bool) -> Iterator[Admitted]:
        """Let a call in for as long as the block lasts."""
        caller = self._gate.admit(method, context)
        set_caller(caller)
        agent = ACCESS.get(method) is Access.AGENT
        # Each agent has a line of its own: what nodes report does not wait behind what users want.
        stand_in(f"agent {next(self._lines)}" if agent else f"user {caller.user}")
        crowd = self._agents if agent else self._streams if streams else self._calls
        with crowd.one_more(caller.user):
            yield Admitted(
                partial(self._gate.allow, method, caller=caller) if agent else self._metered(method, caller, streams),
                partial(self._gate.show, method, caller=caller),
                partial(self._gate.standing, caller),
                self._turn(caller.user),
            )

    def _turn(self, user: str) -> asyncio.Semaphore:
        found = self._turns.get(user)
        if found is None:
            found = self._turns[user] = asyncio.Semaphore(limits.CALLS_AT_A_TIME)
        return found

    def _metered(self, method: str, caller: Caller, streams: bool) -> Allow:
        name = method.rpartition("/")[2]
        if name.startswith(_QUESTIONS):
            self._meter.read(caller)
        elif streams:  # however many messages it brings
            self._meter.change(caller)

        def allow(message: Any) -> None:
            self._gate.allow(method, message, caller)
            if not streams and not name.startswith(_QUESTIONS):
                self._meter.change(caller, max(1, len(message.tasks)) if name == "Submit" else 0)

        return allow
